"""What `/status` says, as typed records: the schema of that JSON is these classes, and each field's words are here.

Owns the shape, made from what the engine believes and the history remembers. Reads memory only. Shows no text of any
prompt, no key, no path. `VERSION` grows when a field goes or changes its meaning; new fields may come at any time.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from proxy import __version__
from proxy.serving.engine import Engine
from proxy.serving.history import Advice, Day, History, Past
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Nothing, Prefix, Talk
from proxy.slots.ledger import SlotBelief

VERSION = 1
SHOWN_REQUESTS = 200
_documented = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class ProxyStatus:
    """This proxy."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    version: str
    started_at: float
    """Seconds since 1970."""
    upstream: str
    """The server's address."""
    observes_only: bool
    persists: bool
    """Whether checkpoints are saved and restored."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The llama-server behind it. The three-valued fields are true (seen to work), false (seen not to), null."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    state: str
    """ready, sleeping, locked (wants a key that isn't configured here), loading, unreachable, unknown."""
    build: str
    model: str
    slots: int
    context_tokens: int
    """Of one slot; 0 where that is not known."""
    prompt_ms_per_token: float
    """What prefilling a token costs, measured; 0 before the first measurement."""
    rolls_back: bool | None
    restores: bool | None
    keeps_copies: bool | None
    shows_slots: bool | None
    acts_on_slots: bool | None


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot, as far as the proxy knows; it doesn't ask the server for this."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    slot: int
    holds: str
    """nothing, prefix, conversation, leftover (of the proxy's own probing), unknown (somebody else's work)."""
    checkpoint: str
    """Key of the prefix that its content begins with."""
    prefix_tokens: int
    other_tokens: int
    """Those after the prefix, or all where it is unknown what they are."""
    free_tokens: int | None
    is_working: bool
    is_estimate: bool
    """While a request runs its tokens are estimated from its size."""
    source: str
    """Of the request that runs in it."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Requests that are here now."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    running: int
    """Passed to the server."""
    waiting: int
    """For a free slot."""


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """One checkpoint on disk."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    key: str
    model: str
    tokens: int
    size_bytes: int
    created_at: float
    last_used_at: float
    uses: int
    verdict: str
    """Of the last verification: good, another word, or nothing."""


@dataclass(frozen=True, slots=True)
class DiskStatus:
    """All checkpoints together."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    checkpoints: int
    size_bytes: int
    may_delete: bool
    """Whether this proxy may: not beside another one on the same directory."""


@dataclass(frozen=True, slots=True)
class Status:
    """All of it."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    version: int
    """Of this schema."""
    now: float
    proxy: ProxyStatus
    server: ServerStatus
    slots: list[SlotStatus]
    queue: QueueStatus
    today: Day
    requests: list[Past]
    """The last ones, newest first."""
    remembered: int
    """How many requests are remembered in all."""
    disk: DiskStatus
    checkpoints: list[CheckpointStatus]
    """The most recently used first; the page gets no more than some."""
    advice: list[Advice]
    """Newest first."""


def schema() -> dict[str, Any]:
    """The JSON Schema of `/status`."""
    return TypeAdapter(Status).json_schema(mode="serialization")


def status(
    engine: Engine,
    history: History,
    state: str,
    now: float,
    *,
    limit: int = SHOWN_REQUESTS,
    after: int = 0,
    max_checkpoints: int | None = None,
) -> Status:
    """How it is now; of the requests the last ones, and only those after a number."""
    return Status(
        version=VERSION,
        now=now,
        proxy=ProxyStatus(
            version=__version__,
            started_at=history.started_at,
            upstream=engine.model.client.upstream.address,
            observes_only=engine.settings.observe_only,
            persists=engine.store.is_on,
        ),
        server=_server(engine, state),
        slots=slots(engine, history),
        queue=QueueStatus(running=len(history.running), waiting=engine.model.gate.waiting),
        today=history.today,
        requests=history.latest(limit, after),
        remembered=len(history.requests),
        disk=_disk(engine),
        checkpoints=checkpoints(engine)[:max_checkpoints],
        advice=list(reversed(history.advice.values())),
    )


def _server(engine: Engine, state: str) -> ServerStatus:
    model = engine.model
    able: Capabilities = model.able
    return ServerStatus(
        state=state,
        build=model.process.build if model.process else "",
        model=_name(model.identity.model_id) if model.identity else "",
        slots=model.process.total_slots if model.process else 0,
        context_tokens=able.n_ctx,
        prompt_ms_per_token=round(model.prompt_ms_per_token, 4),
        rolls_back=able.rolls_back,
        restores=able.restores,
        keeps_copies=able.keeps_copies,
        shows_slots=able.shows_slots,
        acts_on_slots=able.acts_on_slots,
    )


def _name(model_id: str) -> str:
    """A model's name; where nobody gave it one its id is the path of its file."""
    return model_id.rpartition("/")[2]


def slots(engine: Engine, history: History) -> list[SlotStatus]:
    """Every slot; none before the server was met."""
    if engine.model.process is None:
        return []
    return [_slot(belief, engine.model.able.n_ctx, history) for belief in engine.model.ledger.slots]


def _slot(belief: SlotBelief, n_ctx: int, history: History) -> SlotStatus:
    ticket = history.running.get(belief.lease)
    is_working = bool(belief.lease) or (belief.seen is not None and belief.seen.is_busy)
    if ticket is not None:
        kind, key, prefix, total = (
            "conversation",
            ticket.need.prefix_key,
            ticket.need.prefix_tokens,
            ticket.need.n_tokens,
        )
    else:
        kind, key, prefix, total = _held(belief)
    return SlotStatus(
        slot=belief.slot,
        holds=kind,
        checkpoint=key,
        prefix_tokens=prefix,
        other_tokens=max(0, total - prefix),
        free_tokens=max(0, n_ctx - total) if n_ctx else None,
        is_working=is_working,
        is_estimate=ticket is not None,
        source=str(ticket.plan.source) if ticket is not None else "",
    )


def _held(belief: SlotBelief) -> tuple[str, str, int, int]:
    """Kind, key, tokens of the prefix, tokens in all."""
    match belief.holds:
        case Nothing():
            return "nothing", "", 0, 0
        case Prefix(key, n_tokens) if key:
            return "prefix", key, n_tokens, n_tokens
        case Prefix(_, n_tokens):
            return "leftover", "", 0, n_tokens
        case Talk() as talk:
            return "conversation", talk.prefix_key, min(talk.prefix_tokens, talk.n_tokens), talk.n_tokens
        case other:
            return "unknown", "", 0, other.n_tokens


def disk_bytes(engine: Engine) -> int:
    """Of all checkpoints, as the index knows them."""
    index = engine.store.index
    return sum(one.size_bytes for one in index.records.values()) if index is not None else 0


def _disk(engine: Engine) -> DiskStatus:
    index = engine.store.index
    return DiskStatus(
        checkpoints=len(index.records) if index is not None else 0,
        size_bytes=disk_bytes(engine),
        may_delete=index is not None and index.is_owner,
    )


def checkpoints(engine: Engine) -> list[CheckpointStatus]:
    """What the index knows."""
    records = engine.store.index.records.values() if engine.store.index is not None else ()
    return [
        CheckpointStatus(
            key=one.key,
            model=_name(one.model_id),
            tokens=one.n_tokens,
            size_bytes=one.size_bytes,
            created_at=one.created_at,
            last_used_at=one.last_used_at,
            uses=one.uses,
            verdict=one.verdict,
        )
        for one in sorted(records, key=lambda one: one.last_used_at, reverse=True)
    ]
