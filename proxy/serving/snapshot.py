"""How it is now: a status made from what the engine believes and the history remembers.

Reads memory only; asks neither the server nor the disk. Counterpart: `status` has the records.
"""

from proxy import __version__
from proxy.checkpoints.listing import model_name
from proxy.serving.engine import Engine
from proxy.serving.history import History
from proxy.serving.status import (
    VERSION,
    CheckpointStatus,
    DiskStatus,
    ProxyStatus,
    QueueStatus,
    ServerStatus,
    SlotStatus,
    Status,
)
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Nothing, Prefix, Talk
from proxy.slots.ledger import SlotBelief

SHOWN_REQUESTS = 200


def snapshot(
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
            slot_dir=str(engine.store.directory or ""),
        ),
        server=_server(engine, state),
        slots=slots(engine, history) if state != "unreachable" else [],
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
    prefixes = model.prefixes.values()
    return ServerStatus(
        state=state,
        build=model.process.build if model.process else "",
        model=model_name(model.identity.model_id) if model.identity else "",
        slots=model.process.total_slots if model.process else 0,
        context_tokens=able.n_ctx,
        prompt_ms_per_token=round(model.prompt_ms_per_token, 4),
        rolls_back=able.rolls_back,
        restores=able.restores,
        keeps_copies=able.keeps_copies,
        shows_slots=able.shows_slots,
        acts_on_slots=able.acts_on_slots,
        renders_exactly=(True if any(one.tokens for one in prefixes) else None) if model.renders else False,
        longest_prefix_tokens=max((one.n_tokens for one in prefixes), default=0),
    )


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
        sees_files=_sees_files(engine),
    )


def _sees_files(engine: Engine) -> bool | None:
    """A version is known only where a file that the server wrote was read from here."""
    shelf = engine.store.shelf
    if shelf.directory is None or shelf.is_blind:
        return False if shelf.is_blind else None
    return True if shelf.made_here or engine.model.able.format_version is not None else None


def checkpoints(engine: Engine) -> list[CheckpointStatus]:
    """What the index knows."""
    records = engine.store.index.records.values() if engine.store.index is not None else ()
    return [
        CheckpointStatus(
            key=one.key,
            model=model_name(one.model_id),
            tokens=one.n_tokens,
            size_bytes=one.size_bytes,
            created_at=one.created_at,
            last_used_at=one.last_used_at,
            uses=one.uses,
            verdict=one.verdict,
        )
        for one in sorted(records, key=lambda one: one.last_used_at, reverse=True)
    ]
