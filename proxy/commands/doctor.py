"""`pi-prefix-cache doctor`: what is right, what could be better, what is wrong, each with what to change.

Looks at settings, files and server. Beside a running proxy it takes that one's findings and touches no slot; without
one it tries things on the server if its slots are empty, and leaves them so. Exit code: 0 nothing wrong, 1 advice, 2
wrong.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxy import logs
from proxy.checkpoints.listing import MISSING, OTHER_SIZE, THERE
from proxy.commands import arguments
from proxy.commands.admin_client import AdminClient, NobodyThereError, StrangerError
from proxy.commands.arguments import write_json
from proxy.commands.file_checks import file_checks, is_held, read_own_index
from proxy.commands.findings import Finding, Grade, advice, as_json, ok, print_out, worst, wrong
from proxy.commands.server_checks import Met, meet, server_checks
from proxy.commands.setting_checks import settings_checks
from proxy.commands.trials import (
    Trials,
    able_checks,
    directory_change,
    directory_check,
    exactness,
    same_directory,
    template_check,
)
from proxy.llama.client import LlamaClient
from proxy.llama.upstream import Upstream
from proxy.serving.acquaintance import NOT_PROBED, RESTART_ONCE
from proxy.serving.app import control_session
from proxy.settings import Settings
from proxy.slots.capabilities import Capabilities

WORDS = "Check server, settings and files, and say what to change."
EPILOG = "Exit code: 0 nothing wrong, 1 advice, 2 wrong."
WORTH_SAYING = ("claim", "reuse_useless", "cleanup", "index_not_written", "cannot_render", "inexact_prefix", "bug")


def doctor(argv: Sequence[str]) -> int:
    """Look at everything; returns the exit code."""
    given = arguments.read(argv, "doctor", WORDS, settings=(), epilog=EPILOG)
    logs.configure("console", "error")
    findings = [*settings_checks(given.settings, given.warnings)]
    proxy = _running(given.settings)
    if isinstance(proxy, Finding):
        findings.append(proxy)
        proxy = None
    findings += asyncio.run(_look(_beside(given.settings, proxy), proxy))
    if given.as_json:
        write_json(as_json(findings))
    else:
        print_out(findings)
    return int(worst(findings))


def _running(settings: Settings) -> Mapping[str, Any] | Finding | None:
    """The status of the proxy that runs, where one does, and which of its files are there."""
    client = AdminClient.of(settings)
    if client is None:
        return None
    try:
        return {**client.status(), "files": client.ask("/checkpoints").json["checkpoints"]}
    except NobodyThereError:
        return None
    except StrangerError as error:
        return wrong("admin listener", str(error), "set ADMIN_HOST, ADMIN_PORT and ADMIN_TOKEN as the proxy has them")


def _beside(settings: Settings, proxy: Mapping[str, Any] | None) -> Settings:
    """Where nobody says which server, the running proxy's is meant."""
    if proxy is None or "base_url" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"base_url": proxy["proxy"]["upstream"]})


async def _look(settings: Settings, proxy: Mapping[str, Any] | None) -> list[Finding]:
    upstream = Upstream.parse(settings.base_url)
    found = []
    if proxy is not None and proxy["proxy"]["upstream"] != upstream.address:
        words = f"the running proxy is in front of {proxy['proxy']['upstream']}, not of BASE_URL ({upstream.address})"
        found.append(advice("proxy", words, "give this command the proxy's own settings"))
        proxy = None
    files = await asyncio.to_thread(file_checks, settings, is_held_by_ours=proxy is not None)
    async with control_session(settings) as session:
        client = LlamaClient(upstream, session, control_s=settings.control_timeout)
        met = await meet(client, settings)
        if isinstance(met, Finding):
            return [*found, met, *files]
        longest = proxy["server"].get("longest_prefix_tokens", 0) if proxy else 0
        found += server_checks(met, settings, await asyncio.to_thread(read_own_index, settings), longest)
        found += await (_as_the_proxy_says(met, settings, proxy) if proxy else _tried(met, settings, files))
    return [*found, *files]


async def _tried(met: Met, settings: Settings, files: Sequence[Finding]) -> list[Finding]:
    """Without a proxy: find out."""
    if await asyncio.to_thread(is_held, settings):
        return [ok("probe", "nothing was tried on the server: the proxy that holds DIR may be using it")]
    if met.process.is_sleeping:
        words = "the server sleeps, and was not woken for it"
        return [advice("probe", f"what the server can do was not tried: {words}", "ask again when it is awake")]
    found = []
    is_usable = not any(one.check == "slot directory" for one in files)
    if settings.persist and settings.slot_dir is not None and met.acts and is_usable:
        found.append(await directory_check(met, settings.slot_dir, settings.save_timeout))
    may_save = worst(found) is Grade.OK and bool(found)
    return [*found, *await Trials(met, settings, may_save).run()]


async def _as_the_proxy_says(met: Met, settings: Settings, proxy: Mapping[str, Any]) -> list[Finding]:
    """Beside a proxy: what it has found out; only the rendering is tried, which touches no slot."""
    server, persists = proxy["server"], proxy["proxy"]["persists"]
    names = ("rolls_back", "restores", "keeps_copies")
    found = [ok("proxy", f"version {proxy['proxy']['version']} runs; what it has found out is taken from it")]
    if persists and (proxy["proxy"]["slot_dir"] or proxy["disk"]["sees_files"] is not None):
        found.append(_slot_directory(proxy))
    if persists and not proxy["disk"]["may_delete"]:
        words = "the running proxy neither saves nor deletes: its DIR is another proxy's, or can't be used"
        found.append(wrong("index", words, "give each proxy a DIR of its own; its log says why"))
    found += able_checks(
        Capabilities(**{name: server[name] for name in names}), persists=persists, unknown=_unknown(proxy)
    )
    found.append(await template_check(met) or exactness(is_exact=server.get("renders_exactly")))
    return [*found, *_advised(proxy)]


def _slot_directory(proxy: Mapping[str, Any]) -> Finding:
    """Whether what the server saves is where the proxy looks for it."""
    where, sees_files = proxy["proxy"]["slot_dir"], proxy["disk"]["sees_files"]
    if sees_files is not None:
        return same_directory(where, is_there=sees_files)
    known = [one["disk"] for one in proxy["files"] if one["disk"] in (THERE, OTHER_SIZE, MISSING)]
    if known and set(known) == {MISSING}:
        words = f"none of the {len(known)} checkpoints known is in SLOT_DIR={where}"
        return wrong("slot directory", words, directory_change(where))
    words = f"SLOT_DIR={where} is not proven yet to be the server's: nothing was saved since the proxy's start"
    return advice("slot directory", words, "ask again after the next new session, or restart llama-server")


def _unknown(proxy: Mapping[str, Any]) -> Finding | None:
    """The proxy does not know what the server can do, and won't find out by itself."""
    is_so = any(one["reason"] == "not_probed" for one in proxy["advice"])
    return advice("probe", NOT_PROBED, RESTART_ONCE) if is_so else None


def _advised(proxy: Mapping[str, Any]) -> Iterator[Finding]:
    """What the proxy itself has to say, as far as it isn't said already."""
    for one in proxy["advice"]:
        kind = one["reason"].partition(":")[0]
        if kind in WORTH_SAYING:
            times = f" ({one['times']} times)" if one["times"] > 1 else ""
            yield advice("proxy", f"{one['words']}{times}", "see its log")
