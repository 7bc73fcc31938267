"""Steps that make room: what is copied to host memory, and emptied, before a request overwrites it or is put elsewhere.

Pure functions of what is believed. What is prefilled again sooner than it is copied, and what a request's own client
has gone back in, is let go. Counterparts: `planner` says when, `plan` has the steps.
"""

from collections.abc import Sequence

from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Holding, Need, Nothing, Talk, goes_back_in, share
from proxy.slots.ledger import SlotBelief
from proxy.slots.plan import Clear, Copy, Plan, Source, Step
from proxy.slots.prediction import choose, is_overwritten


def moved_out(
    need: Need, beliefs: Sequence[SlotBelief], idle: Sequence[SlotBelief], able: Capabilities
) -> tuple[Step, ...]:
    """Copy these slots and empty them; what the request goes back in is let go, as the server would overwrite it.

    Copied, it could be loaded in the place of what the request leaves behind, when its client goes back once more.
    """
    left = [b for b in beliefs if is_given_up(need, b.holds, able)]
    emptied, others = tuple(Clear(b.slot) for b in left), [b for b in beliefs if b not in left]
    if not able.clears_idle:
        return (*emptied, *(step for b in others for step in (*copies_of([b], able), Clear(b.slot))))
    if not others:
        return emptied
    # Any task empties the idle slots other than its own: an empty one to aim it at makes a clear needless.
    empty = next((b for b in idle if isinstance(b.holds, Nothing) or b in left), None)
    return (*emptied, Copy(empty.slot)) if empty else (Copy(others[0].slot), Clear(others[0].slot))


def moved_aside(need: Need, kept: SlotBelief, idle: Sequence[SlotBelief], able: Capabilities) -> tuple[Step, ...]:
    """Out of the way of the prepared slot, if nothing is lost by it."""
    sharing = [b for b in idle if b is not kept and share(need, b.holds) != 0]
    if not able.keeps_copies or not sharing:
        return ()
    return (Copy(kept.slot),) if able.clears_idle else moved_out(need, sharing, idle, able)


def copies_of(beliefs: Sequence[SlotBelief], able: Capabilities, kept: SlotBelief | None = None) -> tuple[Step, ...]:
    """Copies of these slots; where a copy of one empties the others, only of the one that must stay.

    What is prefilled again sooner than it is copied is let go.
    """
    held = [b for b in beliefs if not isinstance(b.holds, Nothing) and not _is_let_go(b.holds, able)]
    if not able.keeps_copies or not held:
        return ()
    return (Copy((kept or held[0]).slot),) if able.clears_idle else tuple(Copy(b.slot) for b in held)


def is_given_up(need: Need, holding: Holding, able: Capabilities) -> bool:
    """Whether the request's own client has gone back in this, and the server will overwrite it."""
    return not able.goes_back_freely and goes_back_in(need, holding) and is_overwritten(need, holding)


def _is_let_go(holding: Holding, able: Capabilities) -> bool:
    return isinstance(holding, Talk) and not able.goes_back_freely and holding.n_tokens < able.copy_tokens


def unprepared(reason: str, need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> Plan:
    """Forward; but what the request would overwrite in the slot that it will get is copied first."""
    choice = choose(need, idle)
    overwritten = [b for b in idle if choice is not None and choice.overwrites and b.slot == choice.slot]
    return Plan(Source.NONE, reason, copies_of(overwritten, able))
