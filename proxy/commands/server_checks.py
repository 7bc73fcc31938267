"""The doctor's look at llama-server: is it there, what is it, which flags does it lack.

Only questions that touch no slot; what needs one is tried by `trials`, on an idle server that no proxy works on. Beside
a running proxy its own findings are taken instead.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from proxy.checkpoints.index_file import IndexRead
from proxy.commands.findings import Finding, advice, ok, wrong
from proxy.llama.client import Auth, ControlFailed, LlamaClient
from proxy.llama.identity import Process, process
from proxy.settings import Settings
from proxy.slots.ledger import Look

SMALL_CONTEXT = 8192
ROOM_TOKENS = 1024
"""For a question and an answer behind the prefix, at the least."""
Told = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Met:
    """A server that answers."""

    client: LlamaClient
    auth: Auth
    process: Process
    model_id: str
    looks: list[Look] | None
    """None where it hides its slots."""
    acts: bool
    """Whether slot actions are on."""


def credentials(settings: Settings) -> Auth:
    """The configured key, as a client would send it."""
    key = settings.api_key.get_secret_value()
    return {"Authorization": f"Bearer {key}"} if key else {}


async def meet(client: LlamaClient, settings: Settings) -> Met | Finding:
    """Ask all that can be asked without touching a slot; the finding says why that ended early."""
    auth = credentials(settings)
    try:
        props = await client.props(auth)
        told, models = process(props), await client.models(auth)
        if told.is_router:
            loaded = _loaded(models)
            if loaded is None:
                words = "a router with no model loaded: there is no slot to look at"
                return advice("model", words, "ask again when a client has used one")
            if not client.model:
                return await meet(client.of_model(loaded), settings)
        elif not isinstance(props.get("total_slots"), int):
            return _stranger(client.upstream.address, "its /props is not llama-server's")
        return Met(
            client,
            auth,
            told,
            client.model or _first_id(models),
            await _looks(client, auth),
            await client.lets_act(auth),
        )
    except ControlFailed as error:
        return _not_met(client.upstream.address, error, has_key=bool(auth))


def _first_id(models: Told) -> str:
    data = models.get("data")
    first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
    return str(first.get("id", ""))


def _loaded(models: Told) -> str | None:
    """The first of a router's models that is in memory."""
    data = models.get("data")
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    return next((str(one.get("id")) for one in entries if (one.get("status") or {}).get("value") == "loaded"), None)


async def _looks(client: LlamaClient, auth: Auth) -> list[Look] | None:
    try:
        return await client.slots(auth)
    except ControlFailed as error:
        if error.code != HTTPStatus.NOT_IMPLEMENTED:
            raise
        return None


def _not_met(address: str, error: ControlFailed, *, has_key: bool) -> Finding:
    if error.is_timeout:
        return wrong("server", f"{address} does not answer within CONTROL_TIMEOUT", "see what keeps llama-server busy")
    match error.code:
        case 0:
            change = "start llama-server there (--host, --port), or set BASE_URL to where it is"
            return wrong("server", f"nothing that speaks HTTP answers at {address}", change)
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return wrong("model", f"llama-server at {address} is still loading its model", "wait, and ask again")
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN if has_key:
            words = f"llama-server at {address} refuses API_KEY"
            return wrong("key", words, "set API_KEY to one of the server's --api-key")
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            words = f"llama-server at {address} wants a key, and API_KEY is not set: requests bring theirs, but nothing"
            change = "set API_KEY to one of the server's --api-key; without it this doctor looks no further, either"
            return advice("key", f"{words} is restored at its start", change)
        case status:
            return _stranger(address, f"/props is answered with HTTP {status:d}")


def _stranger(address: str, why: str) -> Finding:
    words = f"what answers at {address} is no llama-server, or not at that path ({why})"
    return wrong("server", words, "set BASE_URL to llama-server's address, with /v1 at its end")


# What was met


def server_checks(met: Met, settings: Settings, index: IndexRead | None, longest_prefix: int = 0) -> list[Finding]:
    """What there is to say without touching a slot."""
    known = [one.n_tokens for one in index.records if one.model_id == met.model_id] if index else []
    return [
        ok("server", f"llama-server build {met.process.build or 'unknown'} at {met.client.upstream.address}"),
        ok("key", "accepted" if met.auth else "the server asks for none"),
        ok("model", _named(met)),
        *_slots(met, settings),
        _context(met.process, max([longest_prefix, *known])),
        _actions(met, settings),
    ]


def _named(met: Met) -> str:
    name = Path(met.process.model_path).name or met.model_id or "not named"
    return f"{name}; of a router's only this one was looked at" if met.client.model else name


def _slots(met: Met, settings: Settings) -> Iterator[Finding]:
    count = met.process.total_slots
    if settings.slot != "auto" and settings.slot >= count:
        words = f"SLOT={settings.slot}, but the server has {count} slot(s), from 0 on: nothing is prepared"
        yield wrong("slots", words, "set SLOT=auto, or to one that exists")
    elif met.looks is None:
        words = f"{count} slot(s), hidden: what others leave in them goes unnoticed"
        yield advice("slots", words, "start llama-server without --no-slots (older builds: with --slots)")
    else:
        yield ok("slots", f"{count} slot(s)")


def _context(told: Process, prefix_tokens: int) -> Finding:
    have = f"{told.n_ctx:,} tokens a slot"
    needed = prefix_tokens + ROOM_TOKENS
    if not told.n_ctx:
        return advice("context", "the server does not tell its size")
    if prefix_tokens and told.n_ctx < needed:
        words = f"{have}, less than the prefix of {prefix_tokens:,} tokens and {ROOM_TOKENS:,} for the rest"
        return wrong("context", words, f"start llama-server with a larger -c, or a lower -np: {needed:,} tokens a slot")
    if told.n_ctx < SMALL_CONTEXT:
        words = f"{have}: an agent's prompt alone is 5,000 to 20,000"
        change = f"start llama-server with -c {4 * SMALL_CONTEXT} or more (it is shared by the slots), or a lower -np"
        return advice("context", words, change)
    return ok("context", have)


def _actions(met: Met, settings: Settings) -> Finding:
    if met.acts:
        return ok("slot actions", "allowed")
    where = settings.slot_dir or "DIR"
    if settings.persist:
        words = "PERSIST=1, but the server neither saves nor restores slots"
        return wrong("slot actions", words, f"start llama-server with --slot-save-path {where}")
    words = "the server does not let slots be emptied, so some conversations can't be kept apart"
    return advice("slot actions", words, "start llama-server with --slot-save-path DIR, an existing directory")
