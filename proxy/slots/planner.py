"""The planner: what to do before a request is forwarded, as a pure function of what is believed.

The server chooses the slot, so a plan prepares the slot that it will choose and moves out of the way what would make it
choose badly. Three properties of the server carry all of it (each tried on the running server, see the probe):

- a completion with an *empty* prompt aimed at a slot copies the slot's content to host memory and changes nothing else;
  so a conversation can be kept safe while its slot goes on to serve another one (`Copy`);
- a request that shares enough with a slot overwrites that slot without looking into host memory; so before a
  conversation can come back from there, slots that share its beginning must be emptied (`Clear`);
- a slot that holds exactly the prefix is continued, on every kind of model, without going back.

The cases are numbered; the numbers stand again at the branches.

 1. several answers at once (`n` > 1) or no idle slot: forward.
 2. an idle slot holds the conversation that the request continues: forward (`continue`).
 3. host memory has that conversation: copy and clear the slots that the server would choose instead (`resume`).
 4. in mid-conversation, and not everything since the server's start was seen: what it needs may be anywhere. Forward.
 5. no exact prefix: keep safe what the request would overwrite, forward.
 6. an idle slot holds exactly the prefix: move aside whoever shares more, forward (`hit`).
 7. an idle slot's conversation begins with the prefix and can be gone back in, at least to a mark near its end: copy
    it, forward (`hit`), unless a restore gives more.
 8. a checkpoint exists: copy and clear what shares the prefix, restore, forward (`restore`).
 9. the prefix is in a slot that is busy: whoever builds it now does so in its own request anyway. Forward.
10. in mid-conversation with a prefix never seen (tools switched, a prompt rewritten each turn): the request prefills it
    anyway, and it may never come again. Forward.
11. prefilling it would keep the client waiting for too long: forward, and build it when the server is idle.
12. a conversation in host memory begins with the prefix: the server takes that one for it, as it would without us.
    Forward; a warm-up would take it just the same.
13. else prefill it (`warm-up`), save it where that is wanted, forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Need, Nothing, Prefix, Talk, Unknown, continues_talk, share
from proxy.slots.ledger import Ledger, SlotBelief
from proxy.slots.plan import Clear, Copy, Plan, Restore, Save, Source, Step, Warm, nothing
from proxy.slots.prediction import choose

CHECKPOINT_SLACK = 517
"""Tokens before a prompt's end at which a server with the default `-ub 512` leaves its last in-memory checkpoint."""


@dataclass(frozen=True, slots=True)
class Disk:
    """What checkpoints can do for this request."""

    has_checkpoint: bool = False
    may_save: bool = False


def plan(need: Need, ledger: Ledger, able: Capabilities, disk: Disk = Disk(), only_slot: int | None = None) -> Plan:
    """Decide; `only_slot` confines all preparation to that slot."""
    idle = [b for b in ledger.idle() if only_slot is None or b.slot == only_slot]
    if need.slots > 1 or not idle:
        return nothing("several_answers" if need.slots > 1 else "no_idle_slot")  # 1
    if held := _holder(need, idle):
        return Plan(Source.CONTINUE, "slot_holds_conversation", slot=held.slot)  # 2
    if able.keeps_copies and (talk := ledger.longest_copy(need)):
        return _resume(need, idle, talk, able)  # 3
    if need.has_past and not ledger.saw_start and any(isinstance(b.holds, Unknown) for b in idle):
        return nothing("may_be_hot")  # 4
    if not need.prefix_key:
        return Plan(Source.NONE, "no_prefix", _keep_safe(need, idle, able))  # 5
    return _give_prefix(need, ledger, idle, able, disk)


def _give_prefix(need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities, disk: Disk) -> Plan:
    bare = next((b for b in idle if isinstance(b.holds, Prefix) and b.holds.key == need.prefix_key), None)
    if bare is not None:  # 6
        return Plan(Source.HIT, "slot_holds_prefix", _aside(need, bare, idle, able), need.prefix_tokens, bare.slot)
    can_restore = disk.has_checkpoint and able.restores is not False and able.acts_on_slots is not False
    native = _native(need, idle, able)
    if native and (native.expected_cache_n >= need.prefix_tokens or not can_restore):  # 7
        return native
    if can_restore and (restore := _restore(need, idle, able)):  # 8
        return restore
    if _is_busy_with_prefix(need, ledger):  # 9
        return nothing("prefix_in_busy_slot")
    if need.has_past:  # 10
        return Plan(Source.NONE, "mid_conversation", _keep_safe(need, idle, able))
    if need.is_slow:  # 11
        return nothing("built_when_idle")
    may_save = disk.may_save and able.acts_on_slots is not False
    copy = next((talk for talk in ledger.copies.values() if talk.prefix_key == need.prefix_key), None)
    if copy is not None and not may_save:  # 12
        return Plan(Source.HIT, "host_memory_begins_with_prefix", (), _reach(need, copy, able))
    save: tuple[Step, ...] = (Save(need.prefix_key),) if may_save else ()
    aside = _copies([b for b in idle if isinstance(b.holds, Unknown | Talk)], able)
    return Plan(Source.WARM_UP, "no_checkpoint", (*aside, Warm(need.prefix_key), *save), need.prefix_tokens)  # 13


def _holder(need: Need, idle: Sequence[SlotBelief]) -> SlotBelief | None:
    held = [b for b in idle if continues_talk(need, b.holds)]
    return max(held, key=lambda b: len(b.holds.chain) if isinstance(b.holds, Talk) else 0, default=None)


def _resume(need: Need, idle: Sequence[SlotBelief], talk: Talk, able: Capabilities) -> Plan:
    in_the_way = [b for b in idle if share(need, b.holds) != 0]
    return Plan(Source.RESUME, "host_memory_holds_conversation", _moved_out(in_the_way, idle, able), talk.prefix_tokens)


def _moved_out(beliefs: Sequence[SlotBelief], idle: Sequence[SlotBelief], able: Capabilities) -> tuple[Step, ...]:
    """Copy these slots and empty them."""
    if not beliefs:
        return ()
    if able.clears_idle:
        # Any task empties the idle slots other than its own: an empty one to aim it at makes a clear needless.
        empty = next((b for b in idle if isinstance(b.holds, Nothing)), None)
        return (Copy(empty.slot),) if empty else (Copy(beliefs[0].slot), Clear(beliefs[0].slot))
    return tuple(step for b in beliefs for step in (Copy(b.slot), Clear(b.slot)))


def _keep_safe(need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> tuple[Step, ...]:
    choice = choose(need, idle)
    if choice is None or not choice.overwrites:
        return ()
    return _copies([b for b in idle if b.slot == choice.slot], able)


def _aside(need: Need, kept: SlotBelief, idle: Sequence[SlotBelief], able: Capabilities) -> tuple[Step, ...]:
    """Out of the way of the prepared slot, if nothing is lost by it."""
    sharing = [b for b in idle if b is not kept and share(need, b.holds) != 0]
    if not able.keeps_copies or not sharing:
        return ()
    return (Copy(kept.slot),) if able.clears_idle else _moved_out(sharing, idle, able)


def _copies(beliefs: Sequence[SlotBelief], able: Capabilities, kept: SlotBelief | None = None) -> tuple[Step, ...]:
    """Copies of these slots; where a copy of one empties the others, only of the one that must stay."""
    held = [b for b in beliefs if not isinstance(b.holds, Nothing)]
    if not able.keeps_copies or not held:
        return ()
    return (Copy((kept or held[0]).slot),) if able.clears_idle else tuple(Copy(b.slot) for b in held)


def _native(need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> Plan | None:
    choice = choose(need, idle)
    sharing = [b for b in idle if isinstance(b.holds, Talk) and b.holds.prefix_key == need.prefix_key]
    chosen = next((b for b in sharing if choice is not None and b.slot == choice.slot), None)
    if chosen is None or not isinstance(chosen.holds, Talk) or not (expected := _reach(need, chosen.holds, able)):
        return None
    copies = _copies(sharing, able, chosen)
    return Plan(Source.HIT, "conversation_begins_with_prefix", copies, expected, chosen.slot)


def _reach(need: Need, talk: Talk, able: Capabilities) -> int:
    """How much of the prefix a conversation gives to another one; 0 where that is not known."""
    if not talk.is_whole:
        return 0
    if able.rolls_back:
        return need.prefix_tokens
    return max(0, need.prefix_tokens - CHECKPOINT_SLACK) if talk.is_marked else 0


def _restore(need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> Plan | None:
    target = min(idle, key=lambda b: (0 if isinstance(b.holds, Nothing) else b.last_used + 1, b.slot))
    sharing = [b for b in idle if b is not target and share(need, b.holds) != 0]
    if able.clears_idle and able.keeps_copies:
        steps: tuple[Step, ...] = (Copy(target.slot),) if any(not isinstance(b.holds, Nothing) for b in idle) else ()
    elif able.keeps_copies:
        steps = (*_moved_out(sharing, idle, able), *_copies([target], able))
    elif sharing:
        return (
            None  # without copies a slot that shares more would be chosen and overwritten, and the restore be in vain
        )
    else:
        steps = ()
    return Plan(
        Source.RESTORE,
        "checkpoint_on_disk",
        (*steps, Restore(target.slot, need.prefix_key)),
        need.prefix_tokens,
        target.slot,
    )


def _is_busy_with_prefix(need: Need, ledger: Ledger) -> bool:
    idle = ledger.idle()
    return any(b not in idle and share(need, b.holds) for b in ledger.slots)
