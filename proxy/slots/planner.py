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
    needs may be anywhere. Forward; its answer teaches. So too where nobody has tried what comes back from host memory,
    and what the request goes on from, or begins like, would be there.
 5. no exact prefix: forward.
 6. the prefix is so small a part of the prompt that the server would not see it: forward.
 7. an idle slot holds exactly the prefix: move aside whoever shares more, forward (`hit`).
 8. an idle slot's conversation begins with the prefix and can be gone back in, at least to a mark near its end: copy
    it, forward (`hit`), unless a restore gives more. Where nobody has tried that, too: the answer tells. Likewise one
    in host memory that the request goes back in (`resume`). Where none can be gone back in to the prefix's end and host
    memory has the prefix's anchor, that is loaded; or else, for a later turn of a conversation in that slot, the first
    turn of one that it would load. Where nobody has tried it, and no file has the head, the server is left to itself
    with a conversation of the same folder, in the slot or in host memory: it may go back to within the head.
 9. a checkpoint exists: copy and clear what shares the prefix, restore, forward (`restore`).
10. the prefix is in a slot that is busy, and nothing is to be saved, or the request is in mid-conversation: whoever
    builds it now does so in its own request anyway. Forward.
11. in mid-conversation with a prefix never seen (tools switched, a prompt rewritten each turn): the request prefills it
    anyway, and it may never come again. Forward, after its stem has been restored, if there is one; but not where the
    server would go back in what is not whole.
12. prefilling it would keep the client waiting for too long: forward, and build it when the server is idle.
13. a conversation in host memory begins with the prefix: the server takes that one for it, as it would without us.
    Forward; a warm-up would take it just the same. Where the prefix is to be saved, only if the server can go back in
    it to where another first question begins.
14. the model can't roll back, nothing is saved, and there can be no anchor: the in-memory checkpoint that a warm-up
    leaves takes the place of one farther on that the request would leave, and the next turn keeps one of them. Forward.
    So too beside other requests, where the request's own lies within the prefix; with the second such session the
    prefix is prefilled from there on (16). And where nobody knows whether it can, as the server was not probed: if it
    can, it finds its beginning anyway.
15. the server keeps no copies, and would put the prefix, as it is shorter than the request, into a slot of somebody
    else's that shares a part of it. Forward.
16. else prefill it (`warm-up`), save it where that is wanted, forward. If another prefix that began like it has left a
    file of its stem, go on from there (`stems`); if not, save the stems on the way.

Where a model can't roll back, sessions of one folder share more than the exact prefix: the head. It is treated like the
exact prefix, one level deeper: 7 and 9 look for it first, and where it is not there yet, 7, 9 and 16 end with
prefilling and saving it on top of the exact prefix. The request would have prefilled these tokens anyway. Without
files, and with `--swa-full`, it has an anchor between the prefix's and the prompt's, which 8 looks for first.

Where a first turn's prefix was found or made (7, 8, 13, 16) without files, an anchor is left behind where that is worth
it (`anchoring`).

A sliding window comes back with its window only: for little, 3 is left where a slot has everything and nearly as much
of the conversation; with `--swa-full` such a slot is moved out of the way before all else (`truncation`).

Wherever a request is forwarded unprepared (5, 6, 10 to 12, 14, 15), a conversation that it would overwrite is copied
first.
"""

from collections.abc import Sequence
from dataclasses import replace

from proxy.slots.anchoring import anchor_of, anchors, leaves_anchors, serves_unprepared
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Need, Nothing, Prefix, Talk, Unknown, continues_talk, only_prefix, repeats_talk, share
from proxy.slots.host_memory import (
    from_anchor,
    from_first_turn,
    from_same_folder,
    held_conversation,
    may_come_back,
    resume,
    resume_edited,
    would_load,
)
from proxy.slots.ledger import Ledger, SlotBelief
from proxy.slots.making_room import copies_of, is_given_up, moved_aside, moved_out, unprepared
from proxy.slots.only_slot import confined
from proxy.slots.plan import Clear, Copy, Plan, Save, Source, Step, Warm, nothing
from proxy.slots.prediction import SIMILARITY, choose, chosen, is_question_edited, is_telling, may_begin_in_head, reach
from proxy.slots.restoring import NO_FILES, Disk, restored
from proxy.slots.stems import stem_restored, stems_kept, stems_saved
from proxy.slots.truncation import is_spoilt, truncated


def plan(need: Need, ledger: Ledger, able: Capabilities, disk: Disk = NO_FILES, only_slot: int | None = None) -> Plan:
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
    out = moved_out(need, beliefs, idle, able) if able.keeps_copies else _emptied(beliefs, able)
    return replace(wanted, steps=(*out, *wanted.steps))


def _emptied(beliefs: Sequence[SlotBelief], able: Capabilities) -> tuple[Step, ...]:
    """Where nobody knows whether the server keeps copies, one does no harm."""
    is_unknown = able.keeps_copies is None
    return tuple(step for b in beliefs for step in ((Copy(b.slot), Clear(b.slot)) if is_unknown else (Clear(b.slot),)))


def _prepare(
    need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities, disk: Disk, only_slot: int | None
) -> Plan:
    if (talk := held_conversation(need, ledger, idle, able, _native(need, idle, able))) is not None:
        return resume(need, ledger, idle, talk, able)  # 3
    is_open = not ledger.saw_start and any(isinstance(b.holds, Unknown) for b in idle)
    if is_open and (need.has_past or ledger.may_be_hot):
        return nothing("may_be_hot")  # 4
    if may_come_back(need, ledger, able):
        return nothing("may_come_back")  # 4
    if not need.prefix_key:
        return unprepared("no_prefix", need, idle, able)  # 5
    if len(ledger.slots) > 1 and need.prefix_tokens <= SIMILARITY * need.n_tokens:
        return unprepared("prefix_below_similarity", need, idle, able)  # 6
    wanted = _give_prefix(need, ledger, idle, able, disk, only_slot)
    is_kept = able.may_restore and (disk.has_checkpoint or disk.may_save)
    is_native = wanted.reason == "conversation_begins_with_prefix"
    is_kept = is_kept or (is_native and anchor_of(need.prefix_key, ledger) is not None)
    if is_kept or wanted.source not in (Source.HIT, Source.WARM_UP):
        return wanted
    steps = anchors(need, ledger, able)
    n_done = max((place + 1 for place, step in enumerate(steps) if step in wanted.steps), default=0)
    return replace(wanted, steps=(*wanted.steps, *steps[n_done:]))  # each goes on from the one before it


def _give_prefix(
    need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities, disk: Disk, only_slot: int | None
) -> Plan:
    acts = able.may_restore
    head = (Warm(need.head_key), Save(need.head_key)) if _wants_head(need, able, disk) else ()
    for key in filter(None, (need.head_key, need.prefix_key)):  # 7
        if bare := _bare(key, need, idle, able):
            aside = moved_aside(need, bare, idle, able)
            return _with_head(Plan(Source.HIT, "slot_holds_prefix", aside, bare.holds.n_tokens, bare.slot), head, need)
    native = None if _loads_spoilt(need, ledger, idle, able) else _native(need, idle, able)
    can_restore = acts and (disk.has_checkpoint or disk.has_head)
    held = next((b.holds for b in idle if native is not None and b.slot == native.slot), Nothing())
    is_near = serves_unprepared(need, held, able) or is_telling(need, held, able)
    is_near = is_near or (not disk.has_head and may_begin_in_head(need, held, able))
    if native and (native.expected_cache_n >= need.prefix_tokens or is_near):  # 8
        return native
    if edited := resume_edited(need, ledger, idle, able):
        return edited
    if not can_restore and (kept := from_anchor(need, ledger, idle, able)):
        return kept
    if not disk.has_head and (begun := from_same_folder(need, ledger, idle, able)):
        return begun
    if native and not can_restore:
        return from_first_turn(need, ledger, idle, able) or native
    for key, n_tokens, is_there in (  # 9
        (need.head_key, need.head_tokens, disk.has_head),
        (need.prefix_key, need.prefix_tokens, disk.has_checkpoint),
    ):
        if acts and is_there and (restore := restored(key, n_tokens, need, idle, able, only_slot)):
            return _with_head(restore, head, need)
    return _build(need, ledger, idle, able, disk, only_slot, head)


def _build(
    need: Need,
    ledger: Ledger,
    idle: Sequence[SlotBelief],
    able: Capabilities,
    disk: Disk,
    only_slot: int | None,
    head: tuple[Step, ...],
) -> Plan:
    may_save = disk.may_save and able.may_restore
    if (need.has_past or not may_save) and _is_busy_with_prefix(need, ledger):  # 10
        return unprepared("prefix_in_busy_slot", need, idle, able)
    begun = stem_restored(need, idle, able, disk, only_slot)
    if need.has_past and not _loads_spoilt(need, ledger, idle, able):  # 11
        return begun or unprepared("mid_conversation", need, idle, able)
    if need.is_slow:  # 12
        return unprepared("built_when_idle", need, idle, able)
    copy = next((talk for talk in ledger.copies.values() if talk.prefix_key == need.prefix_key), None)
    is_sound = able.copies_roll_back is not False and not _loads_spoilt(need, ledger, idle, able)
    is_right = not may_save or is_question_edited(need, would_load(need, ledger, idle), able)
    if copy is not None and able.keeps_copies and is_right and is_sound:  # 13
        return Plan(Source.HIT, "host_memory_begins_with_prefix", (), reach(need, copy, able))
    if not may_save and not anchors(need, ledger, able) and _leaves_its_own_mark(need, idle, able):  # 14
        return unprepared("own_checkpoint_serves", need, idle, able)
    if _takes_a_slot(need, idle, able):  # 15
        return unprepared("prefix_would_overwrite", need, idle, able)
    save: tuple[Step, ...] = (Save(need.prefix_key),) if may_save else ()
    stems = stems_saved(need, idle, able, disk, begun) if may_save else stems_kept(need, ledger, idle, able)
    others = [b for b in idle if isinstance(b.holds, Unknown | Talk) and Copy(b.slot) not in stems]
    aside = begun.steps if begun else copies_of(others, able)
    steps = (*aside, *stems, Warm(need.prefix_key), *save)
    made = Plan(Source.WARM_UP, begun.reason if begun else "no_checkpoint", steps, need.prefix_tokens)
    return _with_head(made, head, need)  # 16


def _takes_a_slot(need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> bool:
    """Whether the prefix alone would be put into a slot with somebody's work, the whole request elsewhere.

    Of a shorter prompt what two installs share is a larger part.
    """
    taken, wanted = choose(only_prefix(need, need.prefix_key, need.prefix_tokens), idle), choose(need, idle)
    if able.keeps_copies or taken is None or wanted is None or taken.slot == wanted.slot:
        return False
    return any(b.slot == taken.slot and isinstance(b.holds, Unknown | Talk) for b in idle)


def _leaves_its_own_mark(need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> bool:
    if able.is_untried:
        return True
    if able.rolls_back or not able.needs_anchors:
        return False
    if not leaves_anchors(able):
        return True
    if not 0 < need.rest_tokens <= (able.mark_distance or 0):
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


def _native(need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> Plan | None:
    choice = choose(need, idle)
    sharing = [b for b in idle if isinstance(b.holds, Talk) and b.holds.prefix_key == need.prefix_key]
    chosen = next((b for b in sharing if choice is not None and b.slot == choice.slot), None)
    if chosen is None or not isinstance(chosen.holds, Talk):
        return None
    expected = reach(need, chosen.holds, able) or int(serves_unprepared(need, chosen.holds, able))
    if not expected and not (is_telling(need, chosen.holds, able) or may_begin_in_head(need, chosen.holds, able)):
        return None  # else nothing is claimed
    copies = copies_of([b for b in sharing if not is_given_up(need, b.holds, able)], able, chosen)
    return Plan(Source.HIT, "conversation_begins_with_prefix", copies, expected, chosen.slot)


def _loads_spoilt(need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities) -> bool:
    """Whether the server would go back in a copy, or in the slot, where that has not all that is attended to."""
    return is_spoilt(need, chosen(need, idle), ledger.copies.values(), able)


def _is_busy_with_prefix(need: Need, ledger: Ledger) -> bool:
    idle = ledger.idle()
    return any(b not in idle and share(need, b.soon_holds) for b in ledger.slots)
