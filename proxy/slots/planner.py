"""The planner: what to do before a request is forwarded, as a pure function of what is believed.

The server chooses the slot, so a plan prepares the slot that it will choose and moves out of the way what would make it
choose badly. Three properties of the server carry all of it (each tried on the running server, see the probe):

- a completion with an *empty* prompt aimed at a slot copies the slot's content to host memory and changes nothing else;
  so a conversation can be kept safe while its slot goes on to serve another one (`Copy`);
- a request that shares enough with a slot overwrites that slot without looking into host memory; so before a
  conversation can come back from there, slots that share its beginning must be emptied (`Clear`);
- a slot that holds exactly the prefix is continued, on every kind of model, without going back.

Where a server was seen to make nothing of what its slots hold, nothing is ever prepared. Else the cases are numbered;
the numbers stand again at the branches.

 1. several answers at once (`n` > 1) or no idle slot: forward.
 2. an idle slot holds the conversation that the request continues or repeats: forward (`continue`).
 3. host memory has that conversation, or an anchor in it and the server can't go back farther elsewhere: copy and
    clear the slots that the server would choose instead (`resume`).
 4. not everything since the server's start was seen, and the request is the first one or in mid-conversation: what it
    needs may be anywhere. Forward; its answer teaches.
 5. no exact prefix: forward.
 6. the prefix is so small a part of the prompt that the server would not see it: forward.
 7. an idle slot holds exactly the prefix: move aside whoever shares more, forward (`hit`).
 8. an idle slot's conversation begins with the prefix and can be gone back in, at least to a mark near its end: copy
    it, forward (`hit`), unless a restore gives more; likewise one in host memory that the request goes back in
    (`resume`). Where none can be gone back in to the prefix's end and host memory has the prefix's anchor, that is
    loaded; or else, for a later turn of a conversation in that slot, the first turn of one that it would load.
 9. a checkpoint exists: copy and clear what shares the prefix, restore, forward (`restore`).
10. the prefix is in a slot that is busy, and nothing is to be saved, or the request is in mid-conversation: whoever
    builds it now does so in its own request anyway. Forward.
11. in mid-conversation with a prefix never seen (tools switched, a prompt rewritten each turn): the request prefills it
    anyway, and it may never come again. Forward.
12. prefilling it would keep the client waiting for too long: forward, and build it when the server is idle.
13. a conversation in host memory begins with the prefix: the server takes that one for it, as it would without us.
    Forward; a warm-up would take it just the same.
14. the model can't roll back, nothing is saved, there can be no anchor, and the request leaves an in-memory checkpoint
    of its own within the prefix that outlives its later turns. One that a warm-up left instead would lie farther back
    by all that follows the prefix here. Forward; with the second such session the prefix is prefilled from there on
    (15).
15. else prefill it (`warm-up`), save it where that is wanted, forward.

Where a model can't roll back, sessions of one folder share more than the exact prefix: the head. It is treated like the
exact prefix, one level deeper: 7 and 9 look for it first, and where it is not there yet, 7, 9 and 15 end with
prefilling and saving it on top of the exact prefix. The request would have prefilled these tokens anyway.

Where a first turn's prefix was found or made (7, 8, 13, 15) without files, an anchor is left behind where that is worth
it (`anchoring`).

Wherever a request is forwarded unprepared (5, 6, 10 to 12, 14), a conversation that it would overwrite is copied first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from proxy.request.conversation import shared_messages
from proxy.slots.anchoring import anchor_of, anchors, has_more_than_window, in_its_way, is_outdone, is_within_window
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import (
    Holding,
    Need,
    Nothing,
    Prefix,
    Talk,
    Unknown,
    continues_talk,
    goes_back_in,
    goes_beyond,
    repeats_talk,
    share,
)
from proxy.slots.ledger import Ledger, SlotBelief
from proxy.slots.only_slot import confined
from proxy.slots.plan import Clear, Copy, Discard, Keep, Plan, Restore, Save, Source, Step, Warm, nothing
from proxy.slots.prediction import (
    CHECKPOINT_DISTANCE,
    CHECKPOINT_STEP,
    SIMILARITY,
    choose,
    is_overwritten,
    is_turn_kept,
    loaded,
)
from proxy.slots.truncation import is_resumable, truncated

CHECKPOINT_SLACK = 2100
"""Within how many tokens of a prompt's end a server leaves its last in-memory checkpoint: four more than `-ub`, whose
default is 512; this much is right up to `-ub 2048`."""


LEAST_WON = 1 / 24
"""Part of the prefix up to which conversations with a sliding window are not brought back, for what would be lost."""


@dataclass(frozen=True, slots=True)
class Disk:
    """What checkpoints can do for this request."""

    has_checkpoint: bool = False
    may_save: bool = False
    has_head: bool = False
    """The same for the head."""
    may_save_head: bool = False


def plan(need: Need, ledger: Ledger, able: Capabilities, disk: Disk = Disk(), only_slot: int | None = None) -> Plan:
    """Decide; `only_slot` confines all preparation to that slot, while the server still chooses among all."""
    idle = ledger.idle()
    if able.reuses is False or able.finds_alike is False:
        return nothing("reuse_useless")
    if need.slots > 1 or not idle:
        return nothing("several_answers" if need.slots > 1 else "no_idle_slot")  # 1
    if held := _holder(need, idle):
        choice = choose(need, idle)
        slot = choice.slot if choice and choice.shared >= (share(need, held.holds) or 0) else held.slot
        return Plan(Source.CONTINUE, "slot_holds_conversation", slot=slot)  # 2
    return confined(_cleared(need, ledger, idle, able, disk, only_slot), need, idle, able, only_slot)


def _cleared(
    need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities, disk: Disk, only_slot: int | None
) -> Plan:
    """The plan, after what would be gone back in to where it is not whole has been moved out of the request's way."""
    if not (beliefs := truncated(need, idle, able)):
        return _prepare(need, ledger, idle, able, disk, only_slot)
    after = ledger.without([b.slot for b in (idle if able.clears_idle else beliefs)], are_kept=bool(able.keeps_copies))
    wanted = _prepare(need, after, after.idle(), able, disk, only_slot)
    over = _prepare(need, ledger, idle, able, disk, only_slot)
    if wanted.source is over.source is Source.WARM_UP:
        return over  # prefilled anew over it; into an empty slot the server would load something to the same end
    out = _moved_out(need, beliefs, idle, able) if able.keeps_copies else tuple(Clear(b.slot) for b in beliefs)
    return replace(wanted, steps=(*out, *wanted.steps))


def _prepare(
    need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities, disk: Disk, only_slot: int | None
) -> Plan:
    if (talk := _resumed(need, ledger, idle, able)) is not None:
        return _resume(need, ledger, idle, talk, able)  # 3
    is_open = not ledger.saw_start and any(isinstance(b.holds, Unknown) for b in idle)
    if is_open and (need.has_past or ledger.may_be_hot):
        return nothing("may_be_hot")  # 4
    if not need.prefix_key:
        return _unprepared("no_prefix", need, idle, able)  # 5
    if len(ledger.slots) > 1 and need.prefix_tokens <= SIMILARITY * need.n_tokens:
        return _unprepared("prefix_below_similarity", need, idle, able)  # 6
    wanted = _give_prefix(need, ledger, idle, able, disk, only_slot)
    has_files = able.restores is not False and able.acts_on_slots is not False
    is_kept = has_files and (disk.has_checkpoint or disk.may_save)
    is_native = wanted.reason == "conversation_begins_with_prefix"
    is_kept = is_kept or (is_native and anchor_of(need.prefix_key, ledger) is not None)
    if is_kept or wanted.source not in (Source.HIT, Source.WARM_UP):
        return wanted
    more = (step for step in anchors(need, ledger, able) if step not in wanted.steps)
    return replace(wanted, steps=(*wanted.steps, *more))


def _give_prefix(
    need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities, disk: Disk, only_slot: int | None
) -> Plan:
    acts = able.restores is not False and able.acts_on_slots is not False
    head = (Warm(need.head_key), Save(need.head_key)) if _wants_head(need, able, disk) else ()
    for key in filter(None, (need.head_key, need.prefix_key)):  # 7
        if bare := _bare(key, need, idle, able):
            aside = _aside(need, bare, idle, able)
            return _with_head(Plan(Source.HIT, "slot_holds_prefix", aside, bare.holds.n_tokens, bare.slot), head, need)
    native = _native(need, idle, able)
    can_restore = acts and (disk.has_checkpoint or disk.has_head)
    is_near = any(b.slot == native.slot and is_within_window(need, b.holds, able) for b in idle) if native else False
    if native and (native.expected_cache_n >= need.prefix_tokens or is_near):  # 8
        return native
    if edited := _edited(need, ledger, idle, able):
        return edited
    if not can_restore and (kept := _kept(need, ledger, idle, able)):
        return kept
    if native and not can_restore:
        return _first_turn(need, ledger, idle, able) or native
    for key, n_tokens, is_there in (  # 9
        (need.head_key, need.head_tokens, disk.has_head),
        (need.prefix_key, need.prefix_tokens, disk.has_checkpoint),
    ):
        if acts and is_there and (restore := _restore(key, n_tokens, need, idle, able, only_slot)):
            return _with_head(restore, head, need)
    return _build(need, ledger, idle, able, may_save=disk.may_save and acts, head=head)


def _build(
    need: Need,
    ledger: Ledger,
    idle: Sequence[SlotBelief],
    able: Capabilities,
    *,
    may_save: bool,
    head: tuple[Step, ...],
) -> Plan:
    if (need.has_past or not may_save) and _is_busy_with_prefix(need, ledger):  # 10
        return _unprepared("prefix_in_busy_slot", need, idle, able)
    if need.has_past:  # 11
        return _unprepared("mid_conversation", need, idle, able)
    if need.is_slow:  # 12
        return _unprepared("built_when_idle", need, idle, able)
    copy = next((talk for talk in ledger.copies.values() if talk.prefix_key == need.prefix_key), None)
    if copy is not None and not may_save and able.copies_roll_back is not False:  # 13
        return Plan(Source.HIT, "host_memory_begins_with_prefix", (), _reach(need, copy, able))
    if not may_save and not anchors(need, ledger, able) and _leaves_its_own_mark(need, idle, able):  # 14
        return _unprepared("own_checkpoint_serves", need, idle, able)
    save: tuple[Step, ...] = (Save(need.prefix_key),) if may_save else ()
    aside = _copies([b for b in idle if isinstance(b.holds, Unknown | Talk)], able)
    steps = (*aside, Warm(need.prefix_key), *save)
    return _with_head(Plan(Source.WARM_UP, "no_checkpoint", steps, need.prefix_tokens), head, need)  # 15


def _leaves_its_own_mark(need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> bool:
    if able.rolls_back or not able.mark_distance or not 0 < need.rest_tokens <= able.mark_distance:
        return False
    return not any(isinstance(b.holds, Talk) and b.holds.prefix_key == need.prefix_key for b in idle)


def _wants_head(need: Need, able: Capabilities, disk: Disk) -> bool:
    is_due = bool(need.head_key) and not need.has_past and not need.is_slow
    can_save = disk.may_save_head and bool(able.restores) and able.acts_on_slots is not False
    return is_due and can_save and not disk.has_head


def _with_head(wanted: Plan, head: tuple[Step, ...], need: Need) -> Plan:
    if not head or wanted.expected_cache_n >= need.head_tokens:
        return wanted
    return replace(wanted, steps=(*wanted.steps, *head), expected_cache_n=need.head_tokens)


def _unprepared(reason: str, need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> Plan:
    """Forward; but what the request would overwrite in the slot that it will get is copied first."""
    choice = choose(need, idle)
    overwritten = [b for b in idle if choice is not None and choice.overwrites and b.slot == choice.slot]
    return Plan(Source.NONE, reason, _copies(overwritten, able))


def _holder(need: Need, idle: Sequence[SlotBelief]) -> SlotBelief | None:
    held = [b for b in idle if continues_talk(need, b.holds) or repeats_talk(need, b.holds)]
    return max(held, key=lambda b: len(b.holds.chain) if isinstance(b.holds, Talk) else 0, default=None)


def _bare(key: str, need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> SlotBelief | None:
    """A slot that holds exactly this prefix and that the server will choose, once others are out of the way."""
    bare = next((b for b in idle if isinstance(b.holds, Prefix) and b.holds.key == key), None)
    if bare is None or able.keeps_copies:
        return bare
    choice = choose(need, idle)
    return bare if choice is not None and choice.slot == bare.slot else None


def _resumed(need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities) -> Talk | None:
    """The conversation in host memory that is worth being brought back."""
    talk = ledger.longest_copy(need) if able.keeps_copies else None
    if talk is None or is_outdone(talk, need, ledger, able) or not is_resumable(need, talk, able):
        return None
    native = _native(need, idle, able) if able.has_window else None
    slot = next((b for b in idle if native is not None and b.slot == native.slot), None)
    is_whole = native is not None and native.expected_cache_n >= need.prefix_tokens
    if slot is None or not has_more_than_window(slot.holds, able):
        return talk
    if not (is_whole or is_within_window(need, slot.holds, able)):
        return talk
    # What comes back has a window only: whatever begins in its place afterwards finds less of what they share.
    won = ledger.given_up[need.prefix_key] + talk.n_tokens - (share(need, slot.holds) or 0)
    return talk if won >= LEAST_WON * need.prefix_tokens else None


def _resume(need: Need, ledger: Ledger, idle: Sequence[SlotBelief], talk: Talk, able: Capabilities) -> Plan:
    in_the_way = [b for b in idle if share(need, b.holds) != 0]
    further = [b for b in in_the_way if goes_beyond(b.holds, talk) and is_overwritten(need, b.holds)]
    if further and able.acts_on_slots is False:
        return _unprepared("slot_goes_further", need, idle, able)
    # Copied, such a slot would have the copy removed that is wanted; and the server would have overwritten its end.
    emptied = [Clear(b.slot) for b in further]
    copied = [b for b in in_the_way if b not in further]
    steps = (*emptied, *_moved_out(need, copied, idle, able), *_discarded(talk, need, ledger, copied, able))
    return Plan(Source.RESUME, "host_memory_holds_conversation", steps, talk.prefix_tokens)


def _edited(need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities) -> Plan | None:
    """A conversation in host memory that was gone back in, or whose last message was edited: the server may take it."""
    talks = [talk for talk in ledger.copies.values() if shared_messages(need.chain, talk.chain) > 1]
    talk = max(talks, key=lambda one: share(need, one) or 0, default=None)
    if (
        not able.keeps_copies
        or able.copies_roll_back is False
        or talk is None
        or _reach(need, talk, able) < need.prefix_tokens
    ):
        return None
    in_the_way = [b for b in idle if share(need, b.holds) != 0]
    steps = (*_moved_out(need, in_the_way, idle, able), *_discarded(talk, need, ledger, in_the_way, able))
    return Plan(Source.RESUME, "host_memory_holds_edited_conversation", steps, need.prefix_tokens)


def _discarded(
    talk: Talk, need: Need, ledger: Ledger, copied: Sequence[SlotBelief], able: Capabilities
) -> tuple[Step, ...]:
    """Anchors that would be loaded in the place of this copy; `copied` come to host memory before."""
    talks = [b.holds for b in copied if isinstance(b.holds, Talk) and not _is_given_up(need, b.holds, able)]
    return tuple(Discard(anchor) for anchor in in_its_way(talk, need, [*ledger.copies.values(), *talks]))


def _moved_out(
    need: Need, beliefs: Sequence[SlotBelief], idle: Sequence[SlotBelief], able: Capabilities
) -> tuple[Step, ...]:
    """Copy these slots and empty them; what the request goes back in is let go, as the server would overwrite it.

    Copied, it could be loaded in the place of what the request leaves behind, when its client goes back once more.
    """
    left = [b for b in beliefs if _is_given_up(need, b.holds, able)]
    emptied, others = tuple(Clear(b.slot) for b in left), [b for b in beliefs if b not in left]
    if not able.clears_idle:
        return (*emptied, *(step for b in others for step in (*_copies([b], able), Clear(b.slot))))
    if not others:
        return emptied
    # Any task empties the idle slots other than its own: an empty one to aim it at makes a clear needless.
    empty = next((b for b in idle if isinstance(b.holds, Nothing) or b in left), None)
    return (*emptied, Copy(empty.slot)) if empty else (Copy(others[0].slot), Clear(others[0].slot))


def _is_given_up(need: Need, holding: Holding, able: Capabilities) -> bool:
    return not able.goes_back_freely and goes_back_in(need, holding) and is_overwritten(need, holding)


def _aside(need: Need, kept: SlotBelief, idle: Sequence[SlotBelief], able: Capabilities) -> tuple[Step, ...]:
    """Out of the way of the prepared slot, if nothing is lost by it."""
    sharing = [b for b in idle if b is not kept and share(need, b.holds) != 0]
    if not able.keeps_copies or not sharing:
        return ()
    return (Copy(kept.slot),) if able.clears_idle else _moved_out(need, sharing, idle, able)


def _copies(beliefs: Sequence[SlotBelief], able: Capabilities, kept: SlotBelief | None = None) -> tuple[Step, ...]:
    """Copies of these slots; where a copy of one empties the others, only of the one that must stay.

    What is prefilled again sooner than it is copied is let go.
    """
    held = [b for b in beliefs if not isinstance(b.holds, Nothing) and not _is_let_go(b.holds, able)]
    if not able.keeps_copies or not held:
        return ()
    return (Copy((kept or held[0]).slot),) if able.clears_idle else tuple(Copy(b.slot) for b in held)


def _is_let_go(holding: Holding, able: Capabilities) -> bool:
    return isinstance(holding, Talk) and not able.goes_back_freely and holding.n_tokens < able.copy_tokens


def _native(need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> Plan | None:
    choice = choose(need, idle)
    sharing = [b for b in idle if isinstance(b.holds, Talk) and b.holds.prefix_key == need.prefix_key]
    chosen = next((b for b in sharing if choice is not None and b.slot == choice.slot), None)
    if chosen is None or not isinstance(chosen.holds, Talk):
        return None
    expected = _reach(need, chosen.holds, able) or int(is_within_window(need, chosen.holds, able))
    if not expected:
        return None
    copies = _copies([b for b in sharing if not _is_given_up(need, b.holds, able)], able, chosen)
    return Plan(Source.HIT, "conversation_begins_with_prefix", copies, expected, chosen.slot)


def _kept(need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities) -> Plan | None:
    """The prefix's anchor in host memory, unless a slot serves as well; it is asked for by what no other entry has."""
    anchor = anchor_of(need.prefix_key, ledger)
    if anchor is None or any(_begins_right(b.holds, need, able) for b in idle):
        return None
    return _from_host_memory(anchor, need, idle, able, Keep(need.prefix_key))


def _first_turn(need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities) -> Plan | None:
    """A conversation's first turn in host memory, in the place of a later one in the slot that the server would choose.

    The server can go back in it to the prefix's end, in the other one not. It loses what followed, so not where that is
    more than what is won.
    """
    talks = [belief.holds for belief in idle if isinstance(belief.holds, Talk)]
    if not able.keeps_copies or able.truncates or any(_begins_right(talk, need, able) for talk in talks):
        return None
    first = loaded(need, Nothing(), [*ledger.copies.values(), *talks])
    if first is None or not first.is_first or first.prefix_key != need.prefix_key:
        return None
    if first.n_tokens - need.prefix_tokens >= CHECKPOINT_DISTANCE:
        return None
    return _from_host_memory(first, need, idle, able)


def _from_host_memory(copy: Talk, need: Need, idle: Sequence[SlotBelief], able: Capabilities, *more: Step) -> Plan:
    steps = (*_moved_out(need, [b for b in idle if share(need, b.holds) != 0], idle, able), *more)
    return Plan(Source.HIT, "host_memory_begins_with_prefix", steps, _reach(need, copy, able))


def _begins_right(held: Holding, need: Need, able: Capabilities) -> bool:
    """Whether the server can go back to the prefix's end in what this slot holds."""
    if not isinstance(held, Talk) or not held.prefix_key or held.prefix_key != need.prefix_key:
        return False
    return held.is_first or is_within_window(need, held, able)


def _reach(need: Need, talk: Talk, able: Capabilities) -> int:
    """How much of the prefix a conversation gives to another one; 0 where that is not known."""
    if not talk.is_whole:
        return 0
    if able.rolls_back:
        return need.prefix_tokens
    alike = shared_messages(need.chain, talk.chain)
    is_kept = (talk.is_marked and able.keeps_checkpoints) or is_turn_kept(need, talk, able)
    if (alike > 1 and is_kept) or (share(need, talk) or 0) >= need.prefix_tokens + CHECKPOINT_STEP:
        return need.prefix_tokens
    return max(1, need.prefix_tokens - CHECKPOINT_SLACK) if talk.is_marked else 0


def _restore(
    key: str, n_tokens: int, need: Need, idle: Sequence[SlotBelief], able: Capabilities, only_slot: int | None
) -> Plan | None:
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
        steps = (*_moved_out(need, sharing, idle, able), *_copies([target], able))
    elif sharing:
        return None  # the server may choose one of those: it would be overwritten, and the restore in vain
    else:
        steps = ()
    return Plan(Source.RESTORE, "checkpoint_on_disk", (*steps, Restore(target.slot, key)), n_tokens, target.slot)


def _is_busy_with_prefix(need: Need, ledger: Ledger) -> bool:
    idle = ledger.idle()
    return any(b not in idle and share(need, b.holds) for b in ledger.slots)
