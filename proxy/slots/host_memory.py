"""What comes back from host memory, and whether that is better than what a slot has, as pure functions.

A conversation that goes on (case 3 of the planner), one that was edited, the prefix's anchor, a first turn (8). Each
comes with the steps after which the server loads that one and no other.
"""

from collections.abc import Sequence

from proxy.request.conversation import shared_messages
from proxy.slots.anchoring import (
    anchor_of,
    has_more_than_window,
    in_its_way,
    is_outdone,
    is_within_window,
    serves_unprepared,
)
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Holding, Need, Nothing, Talk, goes_beyond, share
from proxy.slots.ledger import Ledger, SlotBelief
from proxy.slots.making_room import is_given_up, moved_out, unprepared
from proxy.slots.plan import Clear, Keep, Plan, Requeue, Source, Step
from proxy.slots.prediction import (
    CHECKPOINT_DISTANCE,
    Choice,
    choose,
    chosen,
    is_overwritten,
    is_question_edited,
    is_telling,
    loaded,
    may_begin_in_head,
    reach,
)
from proxy.slots.truncation import is_resumable

LEAST_WON = 1 / 24
"""Part of the prefix up to which conversations with a sliding window are not brought back, for what would be lost."""


def held_conversation(
    need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities, native: Plan | None
) -> Talk | None:
    """The conversation in host memory that is worth being brought back; `native` is what a slot gives without it."""
    talk = ledger.longest_copy(need) if able.keeps_copies else None
    if talk is None or is_outdone(talk, need, ledger, able) or not is_resumable(need, talk, able):
        return None
    slot = next((b for b in idle if able.has_window and native is not None and b.slot == native.slot), None)
    is_whole = native is not None and native.expected_cache_n >= need.prefix_tokens
    if slot is None or not has_more_than_window(slot.holds, able):
        return talk
    if not (is_whole or is_within_window(need, slot.holds, able)):
        return talk
    # What comes back has a window only: whatever begins in its place afterwards finds less of what they share.
    won = ledger.given_up[need.prefix_key] + talk.n_tokens - (share(need, slot.holds) or 0)
    return talk if won >= LEAST_WON * need.prefix_tokens else None


def may_come_back(need: Need, ledger: Ledger, able: Capabilities) -> bool:
    """Whether the server may bring back by itself what the request goes on from, or begins like; nobody has tried."""
    if able.keeps_copies is False or able.truncates:
        return False
    if able.keeps_copies is None and ledger.longest_copy(need) is not None:
        return True
    return any(
        is_telling(need, talk, able) or (able.is_untried and is_question_edited(need, talk, able))
        for talk in ledger.copies.values()
    )


def resume(need: Need, ledger: Ledger, idle: Sequence[SlotBelief], talk: Talk, able: Capabilities) -> Plan:
    """Have the server load this conversation: what it would choose or load instead goes out of the way."""
    in_the_way = [b for b in idle if share(need, b.holds) != 0]
    further = [b for b in in_the_way if goes_beyond(b.holds, talk) and is_overwritten(need, b.holds)]
    if further and able.acts_on_slots is False:
        return unprepared("slot_goes_further", need, idle, able)
    # Copied, such a slot would have the copy removed that is wanted; and the server would have overwritten its end.
    emptied = [Clear(b.slot) for b in further]
    copied = [b for b in in_the_way if b not in further]
    steps = (*emptied, *moved_out(need, copied, idle, able), *_requeued(talk, need, ledger, copied, able))
    return Plan(Source.RESUME, "host_memory_holds_conversation", steps, talk.prefix_tokens)


def resume_edited(need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities) -> Plan | None:
    """A conversation in host memory that was gone back in, or whose last message was edited: the server may take it."""
    talks = [talk for talk in ledger.copies.values() if shared_messages(need.chain, talk.chain) > 1]
    talk = max(talks, key=lambda one: share(need, one) or 0, default=None)
    if (
        not able.keeps_copies
        or able.copies_roll_back is False
        or talk is None
        or reach(need, talk, able) < need.prefix_tokens
    ):
        return None
    in_the_way = [b for b in idle if share(need, b.holds) != 0]
    steps = (*moved_out(need, in_the_way, idle, able), *_requeued(talk, need, ledger, in_the_way, able))
    return Plan(Source.RESUME, "host_memory_holds_edited_conversation", steps, need.prefix_tokens)


def _requeued(
    talk: Talk, need: Need, ledger: Ledger, copied: Sequence[SlotBelief], able: Capabilities
) -> tuple[Step, ...]:
    """Anchors that would be loaded in the place of this copy; `copied` come to host memory before."""
    talks = [b.holds for b in copied if isinstance(b.holds, Talk) and not is_given_up(need, b.holds, able)]
    return tuple(Requeue(anchor) for anchor in in_its_way(talk, need, [*ledger.copies.values(), *talks]))


def from_anchor(need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities) -> Plan | None:
    """The head's or the prefix's anchor in host memory, unless a slot serves as well.

    It is asked for by what no other entry has.
    """
    key = next((key for key in (need.head_key, need.prefix_key) if key and anchor_of(key, ledger)), "")
    anchor, choice = anchor_of(key, ledger), choose(need, idle)
    is_served = any(_begins_right(b, choice, need, able, is_head=key == need.head_key) for b in idle)
    if anchor is None or is_served:
        return None
    return _from_host_memory(anchor, need, idle, able, Keep(key))


def from_first_turn(need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities) -> Plan | None:
    """A conversation's first turn in host memory, in the place of a later one in the slot that the server would choose.

    The server can go back in it to the prefix's end, in the other one not. It loses what followed, so not where that is
    more than what is won.
    """
    talks = [belief.holds for belief in idle if isinstance(belief.holds, Talk)]
    choice = choose(need, idle)
    if not able.keeps_copies or able.truncates or any(_begins_right(b, choice, need, able) for b in idle):
        return None
    first = loaded(need, Nothing(), [*ledger.copies.values(), *talks])
    if first is None or not first.is_first or first.prefix_key != need.prefix_key:
        return None
    if first.n_tokens - need.prefix_tokens >= CHECKPOINT_DISTANCE:
        return None
    return _from_host_memory(first, need, idle, able)


def from_same_folder(need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities) -> Plan | None:
    """A conversation in host memory that the server loads by itself, and may go back in to within the head."""
    if able.keeps_copies is False or not may_begin_in_head(need, would_load(need, ledger, idle), able):
        return None
    return Plan(Source.HIT, "host_memory_begins_with_prefix")


def would_load(need: Need, ledger: Ledger, idle: Sequence[SlotBelief]) -> Holding:
    """What the server loads for this request where nobody prepares anything."""
    return loaded(need, chosen(need, idle), ledger.copies.values()) or Nothing()


def _from_host_memory(copy: Talk, need: Need, idle: Sequence[SlotBelief], able: Capabilities, *more: Step) -> Plan:
    steps = (*moved_out(need, [b for b in idle if share(need, b.holds) != 0], idle, able), *more)
    return Plan(Source.HIT, "host_memory_begins_with_prefix", steps, reach(need, copy, able))


def _begins_right(
    belief: SlotBelief, choice: Choice | None, need: Need, able: Capabilities, *, is_head: bool = False
) -> bool:
    """Whether the server can go back to the prefix's end, or the head's, in what this slot holds."""
    held = belief.holds
    if not isinstance(held, Talk) or not held.prefix_key or held.prefix_key != need.prefix_key:
        return False
    is_chosen = choice is not None and choice.slot == belief.slot
    return (held.is_first and not is_head) or (is_chosen and serves_unprepared(need, held, able))
