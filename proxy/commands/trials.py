"""What the doctor tries on an idle server: slots are used, and left empty again.

Only where `/slots` shows that a slot holds nothing is anything put into it, and only what was put there is erased. Each
trial is one short prompt of random or made-up text. A running proxy has tried the same at the server's start; beside
one none of this runs.
"""

import asyncio
import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import orjson

from proxy.checkpoints import slot_directory
from proxy.checkpoints.key import temporary_name
from proxy.commands.findings import Finding, advice, ok, wrong
from proxy.commands.server_checks import Met
from proxy.llama.client import ControlFailed
from proxy.llama.probe import N_TOKENS, probe
from proxy.llama.renderer import exact_prefix
from proxy.request.body import ChatRequest, read_chat
from proxy.request.prefix import StablePrefix, stable_prefix
from proxy.serving.looked_over import is_as_left, is_unused, note
from proxy.settings import Settings
from proxy.slots.capabilities import Capabilities
from proxy.slots.ledger import Look

TRY_S = 20.0
PROBE_KEY = "0" * 16
MANY = 30
LOOKS, LOOKS_APART_S = 10, 0.1
ASK_AGAIN = "ask again beside the running proxy, or right after llama-server's start"
TOO_SLOW = advice(
    "probe",
    "what the server can do is not known: 96 tokens take it too long for more questions",
    "nothing; the proxy learns from requests. If it was busy with other work, ask again",
)
_serials = itertools.count(1)
YES_NO = {True: "yes", False: "no", None: "not known"}


# The directory


async def directory_check(met: Met, directory: Path, limit_s: float) -> Finding:
    """Whether what the server saves appears here: an empty slot's state, a few bytes."""
    empty = next((look.slot for look in met.looks or () if not look.is_busy and not look.n_tokens), None)
    if empty is None:
        words = "not proven to be the server's --slot-save-path: no slot is empty, and none is touched"
        return advice("slot directory", words, ASK_AGAIN)
    name = temporary_name(PROBE_KEY, os.getpid(), next(_serials))
    path = directory / name
    try:
        await met.client.save(empty, name, met.auth, limit_s)
    except ControlFailed as error:
        words = f"the server can't write to its --slot-save-path ({error}): gone, full, or not its user's"
        return wrong("slot directory", words, "create that directory, give it to the server's user, make room")
    is_there = await asyncio.to_thread(path.exists)
    with suppress(OSError):
        await asyncio.to_thread(slot_directory.discard, path)
    return same_directory(directory, is_there=is_there, left=name)


def directory_change(directory: Path | str) -> str:
    """What to change where SLOT_DIR is another directory than the server's."""
    return f"start llama-server with --slot-save-path {directory}, or correct SLOT_DIR"


def same_directory(directory: Path | str, *, is_there: bool, left: str = "") -> Finding:
    """What it means that a file has appeared, or not."""
    if is_there:
        return ok("slot directory", "what the server saves appears in SLOT_DIR")
    words = (
        f"what the server saves does not appear in SLOT_DIR={directory}{f' (it left {left} elsewhere)' if left else ''}"
    )
    return wrong("slot directory", words, directory_change(directory))


# The probe


@dataclass(slots=True)
class Trials:
    """The trials of one idle server."""

    met: Met
    settings: Settings
    may_save: bool
    """Whether what the server saves can be removed from here."""
    _lengths: set[int] = field(default_factory=lambda: set(range(N_TOKENS + MANY)))
    """How many tokens a slot has that holds what was put there by a trial."""

    async def run(self) -> list[Finding]:
        """All of them, one after the other; the proxy that starts next is told that it was only us."""
        looks, marker, directory = self.met.looks, self.met.process.marker, self.settings.dir
        was_unused = bool(looks) and (
            is_unused(looks or ()) or await asyncio.to_thread(is_as_left, directory, marker, looks or ())
        )
        found = await self._run(looks)
        if was_unused:
            await self._note(directory, marker)
        return found

    async def _note(self, directory: Path, marker: str) -> None:
        """As soon as the slots are idle and empty: for us the last trial ends a moment earlier."""
        for _ in range(LOOKS):
            with suppress(ControlFailed):
                left = await self.met.client.slots(self.met.auth)
                if await asyncio.to_thread(note, directory, marker, left):
                    return
            await asyncio.sleep(LOOKS_APART_S)

    async def _run(self, looks: list[Look] | None) -> list[Finding]:
        if looks is None or any(look.is_busy or look.n_tokens for look in looks):
            why = "its slots are hidden" if looks is None else "its slots are in use"
            return [advice("probe", f"what the server can do was not tried: {why}", ASK_AGAIN)]
        try:
            async with asyncio.timeout(self.settings.warm_timeout):
                return [*await self._probe(), await self._reuses(), await self._template()]
        except (ControlFailed, TimeoutError) as error:
            words = f"the server failed in a trial: {error or type(error).__name__}"
            return [wrong("probe", words, "see llama-server's own log")]
        finally:
            with suppress(ControlFailed):
                await self._tidy_up()

    async def _probe(self) -> list[Finding]:
        met, settings = self.met, self.settings
        name = temporary_name(PROBE_KEY, os.getpid(), next(_serials)) if self.may_save else None
        able = Capabilities(total_slots=met.process.total_slots, n_ctx=met.process.n_ctx, shows_slots=True)
        try:
            found = await probe(met.client, able, met.auth, name, TRY_S)
        finally:
            if name is not None and settings.slot_dir is not None:
                with suppress(OSError):
                    await asyncio.to_thread(slot_directory.discard, settings.slot_dir / name)
        return [*able_checks(found.able, persists=settings.persist, unknown=TOO_SLOW)]

    async def _reuses(self) -> Finding:
        """Whether a prompt that came before is reused though the request doesn't ask for it, as clients' don't."""
        client, auth = self.met.client, self.met.auth
        text = " ".join(secrets.token_hex(2) for _ in range(N_TOKENS))
        tokens = (await client.tokenize(text, auth))[: N_TOKENS + 1]
        await client.prefill_plainly(tokens[:-1], auth, TRY_S)
        again = await client.prefill_plainly(tokens, auth, TRY_S)
        if again.cache_n:
            return ok("reuse", "a prompt that goes on is reused")
        words = "a prompt that goes on is prefilled again as a whole: nothing that is prepared is of use"
        return wrong(
            "reuse", words, "start llama-server without --no-cache-prompt, and without --slot-prompt-similarity 0"
        )

    # The template

    async def _template(self) -> Finding:
        found = await template_check(self.met)
        if found is not None:
            return found
        request, prefix = made_up(self.met.client.model)
        rendered = await exact_prefix(self.met.client, request, prefix, self.met.auth)
        body = orjson.dumps({**request.fields, "stream": False, "max_tokens": 1})
        count = await self.met.client.count_chat(body, self.met.auth, TRY_S)
        self._lengths |= {count, count + 1, rendered.n_real, rendered.n_real + 1}
        return exactness(is_exact=count == rendered.n_real)

    async def _tidy_up(self) -> None:
        """Leave the slots as they were: empty."""
        if not self.met.acts:
            return
        for look in await self.met.client.slots(self.met.auth):
            if look.n_tokens in self._lengths and look.n_tokens and not look.is_busy:
                await self.met.client.erase(look.slot, self.met.auth, self.settings.erase_timeout)


def able_checks(able: Capabilities, *, persists: bool, unknown: Finding | None = None) -> Iterator[Finding]:
    """What a probe has found, the doctor's or the running proxy's; `unknown` is said where there was none."""
    is_untried = able.rolls_back is None or able.keeps_copies is None
    if is_untried and unknown is not None:
        yield unknown
        return
    yield ok("roll back", f"{YES_NO[able.rolls_back]}{_ROLLS_BACK[able.rolls_back]}")
    if able.keeps_copies is False:
        words = "no: a conversation that loses its slot is lost, and prefilled again"
        yield advice("host memory", words, "start llama-server with a higher --cache-ram (its default is 8192)")
    else:
        yield ok("host memory", f"keeps displaced conversations: {YES_NO[able.keeps_copies]}")
    if able.restores is False:
        words = "a restored prefix is not reused: checkpoints are of no use here, and none is saved"
        yield wrong("restore", words, "start llama-server with --swa-full (a sliding-window model)")
    elif persists:
        yield ok("restore", YES_NO[able.restores])


_ROLLS_BACK = {True: "", False: " (a hybrid or sliding-window model); the proxy prepares exact prefixes", None: ""}


def made_up(model: str = "") -> tuple[ChatRequest, StablePrefix]:
    """A session of nobody, with a tool; a router must be told the model."""
    rules = "\n".join(f"- rule {number}: read what is there before you change it." for number in range(MANY))
    system = f"You are an agent.\n\n<rules>\n{rules}\n</rules>\n\n<cwd>\n/somewhere\n</cwd>"
    path = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tool = {"type": "function", "function": {"name": "read", "description": "Read a file.", "parameters": path}}
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hello"}]
    body = {"model": model} if model else {}
    request = read_chat(orjson.dumps({**body, "messages": messages, "tools": [tool]}))
    assert isinstance(request, ChatRequest)  # noqa: S101 — it is ours
    prefix = stable_prefix(request)
    assert isinstance(prefix, StablePrefix)  # noqa: S101
    return request, prefix


async def template_check(met: Met) -> Finding | None:
    """What is wrong with how the server renders; touches no slot. None where nothing is."""
    request, prefix = made_up(met.client.model)
    change = "start llama-server with --jinja and a --chat-template-file that takes system messages and tools"
    try:
        rendered = await exact_prefix(met.client, request, prefix, met.auth)
        alone = len(await met.client.tokenize(prefix.text, met.auth))
    except ControlFailed as error:
        if error.code < HTTPStatus.BAD_REQUEST:
            raise
        words = f"the chat template does not render a system message with a tool ({error})"
        return wrong("template", words, change)
    if len(rendered.tokens) < alone // 2:
        words = "the chat template puts something that changes before the system text, or leaves that out"
        return wrong("template", words, change)
    return None


def exactness(*, is_exact: bool | None) -> Finding:
    """Whether renderings are what the server prefills."""
    if is_exact is None:
        return ok("template", "renders; not compared with a real prompt yet")
    if is_exact:
        return ok("template", "renders exactly what the server prefills")
    words = "what it renders is not exactly what the server prefills: prefixes are prepared by chat request instead"
    return advice("template", words, "start llama-server with --jinja, and no --chat-template of another model")
