"""What is restored from a file, into which slot, and what goes out of its way, as pure functions.

A request's files are those of its exact prefix, of its head, and of its stems (`stems`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Need, Nothing, share
from proxy.slots.ledger import SlotBelief
from proxy.slots.making_room import copies_of, moved_out
from proxy.slots.plan import Copy, Plan, Restore, Source, Step


@dataclass(frozen=True, slots=True)
class Disk:
    """What checkpoints can do for this request."""

    has_checkpoint: bool = False
    may_save: bool = False
    has_head: bool = False
    """The same for the head."""
    may_save_head: bool = False
    stems: frozenset[str] = frozenset()
    """Keys of the stems that have a checkpoint."""
    new_stems: frozenset[str] = frozenset()
    """Of those that have none and may get one."""


NO_FILES = Disk()


def restored(
    key: str, n_tokens: int, need: Need, idle: Sequence[SlotBelief], able: Capabilities, only_slot: int | None
) -> Plan | None:
    """Restore this checkpoint, after all that the server would choose instead has been moved out of the way."""
    targets = [b for b in idle if only_slot in (None, b.slot)]
    if not targets:
        return None
    target = min(targets, key=lambda b: (0 if isinstance(b.holds, Nothing) else b.last_used + 1, b.slot))
    sharing = [b for b in idle if share(need, b.holds) != 0]
    if len(sharing) == 1 and not able.keeps_copies and sharing[0] in targets:
        target = sharing[0]  # the server would choose it and overwrite it in any case
    sharing = [b for b in sharing if b is not target]
    if able.clears_idle and able.keeps_copies:
        steps: tuple[Step, ...] = (Copy(target.slot),) if any(not isinstance(b.holds, Nothing) for b in idle) else ()
    elif able.keeps_copies:
        steps = (*moved_out(need, sharing, idle, able), *copies_of([target], able))
    elif sharing:
        return None  # the server may choose one of those: it would be overwritten, and the restore in vain
    else:
        steps = ()
    return Plan(Source.RESTORE, "checkpoint_on_disk", (*steps, Restore(target.slot, key)), n_tokens, target.slot)
