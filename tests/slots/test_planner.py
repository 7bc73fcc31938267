"""The planner's cases, each with what makes it and what ends it."""

from dataclasses import replace
from itertools import product

import pytest

from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Holding, Need, Nothing, Prefix, Talk, Unknown, of_prefix, share
from proxy.slots.ledger import Ledger
from proxy.slots.plan import Clear, Copy, Keep, Plan, Restore, Save, Source, Warm
from proxy.slots.planner import plan
from proxy.slots.prediction import CHECKPOINT_DISTANCE, CHECKPOINT_SLACK, choose
from proxy.slots.restoring import Disk
from tests.slots.beliefs import MESSAGE_TOKENS, PREFIX_TOKENS, bare, chain, ledger, look, need, sizes, talk

ABLE = Capabilities(total_slots=4, rolls_back=True, keeps_copies=True, restores=True, acts_on_slots=True)
NO_COPIES = replace(ABLE, keeps_copies=False)
NO_ROLLBACK = replace(ABLE, rolls_back=False, is_windowed=False)
UNPROBED = Capabilities(total_slots=4)
SAVED = Disk(has_checkpoint=True)
FIRST = need("ab")
"""The first request of a new session."""


def is_untouched(made: Plan, reason: str) -> bool:
    return (made.source, made.reason, made.steps, made.expected_cache_n) == (Source.NONE, reason, (), 0)


# --- 1: no slot to prepare -----------------------------------------------------------------------------------------


def test_several_answers_at_once_are_forwarded() -> None:
    """They take several slots, and which ones nobody knows."""
    assert is_untouched(plan(need("ab", slots=2), ledger(bare(), bare()), ABLE, SAVED), "several_answers")


def test_without_an_idle_slot_the_request_is_forwarded() -> None:
    """Leased or seen at work for somebody else."""
    made = ledger(bare(), Nothing(), busy=(0,))
    made.observe([look(1, 5, 40, is_busy=True)])
    assert is_untouched(plan(FIRST, made, ABLE, SAVED), "no_idle_slot")


# --- 2: continue ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "able", [ABLE, NO_COPIES, NO_ROLLBACK, UNPROBED], ids=["all", "no copies", "hybrid", "unprobed"]
)
def test_a_conversation_that_a_slot_holds_goes_on_there(able: Capabilities) -> None:
    """Nothing is done, whatever stands in the other slots."""
    made = ledger(bare(), talk("ab"), Unknown(500), talk("xy"))
    assert Plan(Source.CONTINUE, "slot_holds_conversation", slot=1) == plan(
        need("abc", has_past=True), made, able, SAVED
    )


def test_of_two_turns_of_a_conversation_the_later_one_goes_on() -> None:
    """The server takes the slot that shares most."""
    assert 2 == plan(need("abcde"), ledger(talk("ab"), Nothing(), talk("abcd"), talk("abc")), ABLE).slot


def test_a_busy_holder_is_no_holder() -> None:
    """The earlier turn still runs: the request can't have its slot."""
    made = ledger(talk("ab"), Nothing(), busy=(0,))
    assert Source.CONTINUE is not plan(need("abc", has_past=True), made, ABLE).source


def test_a_retry_goes_where_its_prompt_is() -> None:
    """The same messages again: the slot that holds them is left as it is, on every kind of model, checkpoint or not."""
    for able in (ABLE, NO_ROLLBACK):
        told = plan(need("ab", has_past=True), ledger(Nothing(), talk("ab")), able, SAVED)
        assert (Source.CONTINUE, (), 1) == (told.source, told.steps, told.slot)


def test_an_edit_of_the_last_message_is_no_retry() -> None:
    """Equal length with another end: the slot would have to go back."""
    assert Source.CONTINUE is not plan(need("ac"), ledger(talk("ab")), ABLE).source


def test_a_switch_that_changes_no_token_ends_no_conversation() -> None:
    """A tool choice or the model's name is another rendering input, and the same prefix tokens: it goes on."""
    held = replace(talk("ab"), inputs=b"auto")
    asked = replace(need("abc", has_past=True), inputs=b"none")
    assert Source.CONTINUE is plan(asked, ledger(held), NO_ROLLBACK, SAVED).source
    other = replace(asked, prefix_key="other")
    assert Source.CONTINUE is not plan(other, ledger(held), NO_ROLLBACK, SAVED).source


@pytest.mark.parametrize("only", [0, 1, 2])
def test_a_warm_up_goes_into_the_only_slot(only: int) -> None:
    """The server chooses the slot of a warm-up: it is led to the one that was named, as the least recently used."""
    for made in (Ledger(3), ledger(talk("xy", "Q"), Unknown(5), Nothing())):
        made.saw_start = True
        told = plan(FIRST, made, ABLE, only_slot=only)
        for step in told.steps:
            if isinstance(step, Copy):
                made.used(step.slot)
        expected = choose(FIRST, made.idle())
        assert (Source.WARM_UP, only) == (told.source, expected.slot if expected else None)


def test_a_warm_up_that_would_go_elsewhere_is_left() -> None:
    """Where another slot shares the beginning, or nothing is known to lead there."""
    shares = ledger(Nothing(), replace(talk("az"), is_whole=False))
    assert "other_slot" == plan(FIRST, shares, NO_ROLLBACK, only_slot=0).reason
    assert "other_slot" == plan(FIRST, ledger(bare("Q"), Nothing()), NO_COPIES, only_slot=0).reason


HEADED = replace(FIRST, head_key="H", head_tokens=95)
HEAD_DISK = Disk(has_checkpoint=True, may_save=True, may_save_head=True)


def test_a_head_is_restored_rather_than_the_exact_prefix() -> None:
    """Sessions of one folder share more; where that has a checkpoint, it is the one to take."""
    told = plan(HEADED, ledger(Nothing()), NO_ROLLBACK, replace(HEAD_DISK, has_head=True))
    assert ((Restore(0, "H"),), 95) == (told.steps, told.expected_cache_n)


def test_a_new_head_is_built_on_top_of_the_exact_prefix() -> None:
    """Restore the prefix, prefill the rest of the head, save it: nothing is prefilled that the request would not."""
    told = plan(HEADED, ledger(Nothing()), NO_ROLLBACK, HEAD_DISK)
    assert ((Restore(0, "P"), Warm("H"), Save("H")), 95) == (told.steps, told.expected_cache_n)


@pytest.mark.parametrize("asked", [replace(HEADED, has_past=True), replace(HEADED, is_slow=True)], ids=["past", "slow"])
def test_no_head_is_built_in_mid_conversation_or_where_it_takes_too_long(asked: Need) -> None:
    """Only first requests of a session build one."""
    assert (Restore(0, "P"),) == plan(asked, ledger(Nothing()), NO_ROLLBACK, HEAD_DISK).steps


def test_a_slot_with_the_head_is_a_hit() -> None:
    """And one with the head of another folder still gives its exact prefix, which both begin with."""
    head = Prefix("H", 95, "P", PREFIX_TOKENS)
    told = plan(HEADED, ledger(head), NO_ROLLBACK, HEAD_DISK)
    assert (Source.HIT, (), 95) == (told.source, told.steps, told.expected_cache_n)
    assert PREFIX_TOKENS == share(replace(HEADED, head_key="other"), head)


# --- 3: resume -----------------------------------------------------------------------------------------------------


def with_copy(letters: str, *holdings: Holding, busy: tuple[int, ...] = ()) -> Ledger:
    made = ledger(*holdings, busy=busy)
    made.copied(talk(letters))
    return made


def test_a_parked_conversation_comes_back_once_its_prefix_is_out_of_the_way() -> None:
    """A bare prefix and another talk with that prefix are copied and cleared; what shares nothing stays."""
    made = with_copy("ab", bare(), talk("xy", "Q"), talk("az"), Nothing())
    told = plan(need("abc", has_past=True), made, ABLE, SAVED)
    assert Source.RESUME is told.source
    assert {Clear(0), Clear(2)} == {step for step in told.steps if isinstance(step, Clear)}
    assert {Copy(0), Copy(2)} >= {step for step in told.steps if isinstance(step, Copy)}
    assert PREFIX_TOKENS == told.expected_cache_n


def test_nothing_is_cleared_that_was_not_copied_first() -> None:
    """A conversation in the way must come back, too."""
    steps = plan(need("abc"), with_copy("ab", talk("az"), talk("aw")), ABLE).steps
    for slot in (0, 1):
        assert Clear(slot) in steps
        assert Copy(slot) in steps[: steps.index(Clear(slot))]


def test_a_slot_that_went_on_from_the_wanted_copy_is_emptied_without_a_copy() -> None:
    """A copy of it would have the server remove the one that is wanted: it contains that one."""
    told = plan(need("abx", has_past=True), with_copy("ab", talk("abc"), Nothing()), ABLE)
    assert (Source.RESUME, (Clear(0),)) == (told.source, told.steps)


def test_a_slot_that_went_far_beyond_is_kept() -> None:
    """The server itself would copy it rather than overwrite it."""
    steps = plan(need("abx", has_past=True), with_copy("ab", talk("abcdef")), ABLE).steps
    assert (Copy(0), Clear(0)) == steps


def test_where_it_cannot_be_emptied_the_server_goes_on_from_it() -> None:
    """Without slot actions; nothing is copied either, so that the earlier one stays."""
    able = replace(ABLE, acts_on_slots=False)
    told = plan(need("abx", has_past=True), with_copy("ab", talk("abc"), Nothing()), able)
    assert (Source.NONE, "slot_goes_further") == (told.source, told.reason)


def test_unknown_content_is_out_of_the_way_too() -> None:
    """It may share the prefix."""
    assert Clear(0) in plan(need("abc"), with_copy("ab", Unknown(900)), ABLE).steps


def test_a_busy_slot_is_never_touched() -> None:
    """Neither copied nor cleared, whatever it holds."""
    steps = plan(need("abc"), with_copy("ab", bare(), talk("az"), busy=(1,)), ABLE).steps
    assert 1 not in {step.slot for step in steps if isinstance(step, Copy | Clear | Restore)}


@pytest.mark.parametrize("keeps_copies", [False, None])
def test_without_host_memory_nothing_is_resumed(keeps_copies: bool | None) -> None:
    """Clearing slots for a copy that does not exist would only lose them."""
    told = plan(need("abc"), with_copy("ab", bare()), replace(ABLE, keeps_copies=keeps_copies))
    assert Source.RESUME is not told.source
    assert () == told.steps


# --- 4: hot servers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("disk", [Disk(), SAVED])
def test_in_mid_conversation_on_a_server_that_we_came_late_to_nothing_is_prepared(disk: Disk) -> None:
    """One of the unknown slots may hold the conversation: a restore would make its next turn prefill everything."""
    made = ledger(Nothing(), Unknown(10_700), saw_start=False)
    assert is_untouched(plan(need("abc", has_past=True), made, ABLE, disk), "may_be_hot")


def test_the_very_first_request_to_such_a_server_teaches() -> None:
    """It may be a retry of what a slot holds; its answer tells."""
    made = ledger(Unknown(10_700), saw_start=False)
    assert is_untouched(plan(FIRST, made, ABLE, SAVED), "may_be_hot")
    made.hold(0, talk("xy", "Q"))
    assert Source.RESTORE is plan(FIRST, made, ABLE, SAVED).source


def test_a_new_session_is_prepared_once_an_answer_has_taught() -> None:
    """The slots that are still unknown are copied before anything is built over them."""
    made = ledger(talk("xy", "Q"), Unknown(10_700), saw_start=False)
    told = plan(FIRST, made, ABLE)
    assert Source.WARM_UP is told.source
    assert {Copy(0), Copy(1)} == {*told.steps[:2]}


def test_of_a_server_that_was_seen_from_its_start_nothing_is_hot() -> None:
    """Unknown there is what somebody else left since: prepared, with a copy first."""
    assert Source.WARM_UP is plan(FIRST, ledger(Unknown(500)), ABLE).source


# --- 5: no exact prefix --------------------------------------------------------------------------------------------


def test_a_request_without_a_prefix_is_forwarded() -> None:
    assert is_untouched(plan(need("xy", ""), ledger(talk("ab"), Nothing()), ABLE, SAVED), "no_prefix")


def test_a_request_without_a_prefix_does_not_cost_another_its_tail() -> None:
    """An edit that keeps more than half of a slot would overwrite the rest without a copy."""
    told = plan(need("abcx", ""), ledger(Nothing(), talk("abcd")), ABLE)
    assert (Source.NONE, (Copy(1),)) == (told.source, told.steps)


def test_without_host_memory_there_is_no_use_in_copying() -> None:
    assert () == plan(need("abcx", ""), ledger(Nothing(), talk("abcd")), NO_COPIES).steps


# --- 6: too small a part -------------------------------------------------------------------------------------------

LONG = need("abcdefgh")
"""The prefix is a tenth of it: the server looks for more than that."""


@pytest.mark.parametrize("disk", [Disk(), SAVED])
def test_a_prefix_that_the_server_would_not_see_is_not_prepared(disk: Disk) -> None:
    """Of several slots it would take the least recently used one, and the work would be in vain."""
    told = plan(LONG, ledger(bare(), Nothing()), ABLE, disk)
    assert is_untouched(told, "prefix_below_similarity")
    assert Source.HIT is plan(need("abcdefg"), ledger(bare(), Nothing()), ABLE, disk).source


def test_with_one_slot_there_is_no_choice_to_go_wrong() -> None:
    assert Source.HIT is plan(LONG, ledger(bare()), ABLE).source


# --- 7: a bare prefix ----------------------------------------------------------------------------------------------


def test_a_slot_that_holds_exactly_the_prefix_is_a_hit() -> None:
    """On any kind of model, with nothing to do."""
    expected = Plan(Source.HIT, "slot_holds_prefix", (), PREFIX_TOKENS, 1)
    assert expected == plan(FIRST, ledger(talk("xy", "Q"), bare()), NO_ROLLBACK, SAVED)


def test_without_host_memory_a_bare_prefix_is_only_claimed_if_the_server_takes_it() -> None:
    """A conversation in a lower slot that shares as much would be taken; it can't be moved aside."""
    assert Source.HIT is not plan(FIRST, ledger(talk("xy"), bare()), replace(NO_COPIES, rolls_back=False)).source
    assert 0 == plan(FIRST, ledger(bare(), talk("xy")), replace(NO_COPIES, rolls_back=False)).slot


def test_another_prefix_is_no_hit() -> None:
    assert Source.HIT is not plan(FIRST, ledger(bare("Q")), NO_ROLLBACK).source


def test_who_shares_more_than_the_bare_prefix_is_moved_aside() -> None:
    """Otherwise the server takes that slot and overwrites the conversation there."""
    told = plan(FIRST, ledger(talk("ax"), bare()), NO_ROLLBACK)
    assert (Source.HIT, 1) == (told.source, told.slot)
    assert Clear(0) in told.steps
    assert not {Copy(1), Clear(1)} & {*told.steps}


# --- 8: a conversation that begins with the prefix -------------------------------------------------------------------


def test_a_dense_model_goes_back_to_the_prefix_in_a_slot_that_was_copied() -> None:
    """Native reuse, and the conversation that stood there can be resumed."""
    told = plan(FIRST, ledger(Nothing(), talk("xy")), ABLE, SAVED)
    assert (Source.HIT, (Copy(1),), PREFIX_TOKENS, 1) == (told.source, told.steps, told.expected_cache_n, told.slot)


def test_a_hybrid_model_goes_back_to_a_mark_where_nothing_better_can_be_had() -> None:
    """Reuse up to the last in-memory checkpoint before the prefix's end; a restore gives all of it."""
    long = replace(FIRST, prefix_tokens=5000)
    marked = replace(talk("xy", is_marked=True), n_prompt=6000, n_tokens=6000, prefix_tokens=5000)
    told = plan(long, ledger(marked), NO_ROLLBACK)
    assert (Source.HIT, 5000 - CHECKPOINT_SLACK) == (told.source, told.expected_cache_n)
    assert Source.RESTORE is plan(long, ledger(marked), NO_ROLLBACK, SAVED).source


KEEPING = replace(NO_ROLLBACK, mark_distance=0)


@pytest.mark.parametrize(
    ("held", "able", "is_better"),
    [
        (talk("abcdefg", is_marked=True), KEEPING, True),
        (talk("abcdefg", is_marked=True), replace(KEEPING, mark_distance=516), False),
        (talk("abcdefg"), KEEPING, False),
        (talk("axcdefg", is_marked=True), KEEPING, False),
    ],
    ids=["kept", "one of all is kept", "never at the prefix's end", "edited at once"],
)
def test_an_early_message_is_edited_where_checkpoints_are_kept(held: Talk, able: Capabilities, is_better: bool) -> None:
    """The server can go back to the turn before it, which is more than a restore gives."""
    told = plan(replace(need("abz"), has_past=True), ledger(held), able, SAVED)
    assert (Source.HIT if is_better else Source.RESTORE) is told.source


BEGINS_ALIKE = "host_memory_begins_with_prefix"


@pytest.mark.parametrize("goes_back", [None, False])
def test_no_claim_on_copies_that_can_not_be_gone_back_in(goes_back: bool | None) -> None:
    """Of a sliding window only the window is copied, with `--swa-full` too: then the prefix is prefilled."""
    told = plan(FIRST, with_copy("xyz", Nothing()), replace(ABLE, copies_roll_back=goes_back))
    assert ((Source.WARM_UP, "no_checkpoint") if goes_back is False else (Source.HIT, BEGINS_ALIKE)) == (
        told.source,
        told.reason,
    )


@pytest.mark.parametrize("goes_back", [None, False])
def test_no_edited_copy_is_resumed_that_can_not_be_gone_back_in(goes_back: bool | None) -> None:
    """The same where its end was edited."""
    edited = replace(need("abcz"), has_past=True)
    told = plan(edited, with_copy("abcd", Nothing()), replace(ABLE, copies_roll_back=goes_back))
    assert (goes_back is None) == (told.source is Source.RESUME)


LATER = replace(talk("xyz", is_marked=True), prefix_tokens=PREFIX_TOKENS)
FIRST_TURN = replace(talk("w", is_marked=True), is_first=True)
"""Of two sessions with the same prefix: one that went on, and one that has just begun."""


def with_copies(*copies: Talk, held: Holding = LATER) -> Ledger:
    made = ledger(held)
    for copy in copies:
        made.copied(copy)
    return made


def test_a_first_turn_in_host_memory_is_better_than_a_later_one_in_the_slot() -> None:
    """The server can go back to the prefix's end in it; so it is made to load it."""
    told = plan(FIRST, with_copies(FIRST_TURN), NO_ROLLBACK)
    assert (Source.HIT, "host_memory_begins_with_prefix") == (told.source, told.reason)
    assert (Copy(0), Clear(0)) == told.steps


@pytest.mark.parametrize(
    "at",
    [
        with_copies(),
        with_copies(replace(FIRST_TURN, is_first=False)),
        with_copies(FIRST_TURN, held=replace(FIRST_TURN, chain=talk("v").chain)),
        with_copies(replace(LATER, chain=talk("uv").chain), FIRST_TURN),
    ],
    ids=["none", "a later turn", "one in the slot", "not what the server would load"],
)
def test_a_first_turn_in_host_memory_stays_there(at: Ledger) -> None:
    """Where it is not better, or would not be taken."""
    told = plan(FIRST, at, NO_ROLLBACK)
    assert (Source.HIT, "conversation_begins_with_prefix") == (told.source, told.reason)


@pytest.mark.parametrize(("more", "is_taken"), [(-1, True), (0, False)])
def test_a_first_turn_is_not_lost_for_less_than_it_is_worth(more: int, is_taken: bool) -> None:
    """What followed the prefix in it has to be prefilled again, should it go on."""
    long, held = replace(FIRST, prefix_tokens=2000), replace(LATER, prefix_tokens=2000, n_prompt=2200, n_tokens=2220)
    copy = replace(FIRST_TURN, prefix_tokens=2000, n_prompt=2100, n_tokens=2000 + CHECKPOINT_DISTANCE + more)
    told = plan(long, with_copies(copy, held=held), NO_ROLLBACK)
    assert is_taken == (told.reason == "host_memory_begins_with_prefix")


def test_a_first_turn_with_another_prefix_is_not_taken() -> None:
    """However much it has in common."""
    akin = replace(FIRST, common=(("Q", PREFIX_TOKENS - 1),))
    told = plan(akin, with_copies(replace(FIRST_TURN, prefix_key="Q")), NO_ROLLBACK)
    assert "conversation_begins_with_prefix" == told.reason


@pytest.mark.parametrize("held", [talk("xy"), talk("xy", is_whole=False)], ids=["unmarked", "cut off"])
def test_no_claim_on_what_a_hybrid_model_can_not_go_back_to(held: Holding) -> None:
    """No mark, or an answer cut off."""
    assert Source.HIT is not plan(FIRST, ledger(held), NO_ROLLBACK).source


def test_no_claim_on_an_answer_that_was_cut_off() -> None:
    """How far its prompt came is not known, on any kind of model."""
    assert Source.WARM_UP is plan(FIRST, ledger(talk("xy", is_whole=False)), ABLE).source


# --- 9: restore ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_restored_into_an_empty_slot() -> None:
    """Of several, the lowest; conversations elsewhere stay where they are."""
    told = plan(FIRST, ledger(talk("xy", "Q"), Nothing(), Nothing()), ABLE, SAVED)
    assert Plan(Source.RESTORE, "checkpoint_on_disk", (Restore(1, "P"),), PREFIX_TOKENS, 1) == told


def test_a_restore_comes_last_and_what_it_destroys_was_copied() -> None:
    """It empties the slot without a copy of its own, and any completion after it may empty it again."""
    told = plan(FIRST, ledger(talk("xy", "Q"), talk("vw", "Q")), NO_ROLLBACK, SAVED)
    assert Restore(0, "P") == told.steps[-1]
    assert Copy(0) in told.steps


def test_a_restore_makes_way_for_itself() -> None:
    """A conversation that shares the prefix would be taken instead."""
    told = plan(FIRST, ledger(Nothing(), talk("ax")), NO_ROLLBACK, SAVED)
    assert (Source.RESTORE, 0) == (told.source, told.slot)
    assert Clear(1) in told.steps


@pytest.mark.parametrize("able", [replace(ABLE, restores=False), replace(ABLE, acts_on_slots=False)], ids=repr)
def test_nothing_is_restored_where_that_is_known_to_be_useless(able: Capabilities) -> None:
    """A sliding window without --swa-full, a server without --slot-save-path."""
    told = plan(FIRST, ledger(Nothing()), able, replace(SAVED, may_save=True))
    assert Source.WARM_UP is told.source


# --- 10 and on: build it, or not ------------------------------------------------------------------------------------


def test_a_prefix_that_a_busy_slot_holds_is_not_built_again_beside_it() -> None:
    """Unless it is to be saved, for all that come after; in mid-conversation it may be the wrong thing to do."""
    made = ledger(talk("ax"), Nothing(), busy=(0,))
    told = plan(FIRST, made, NO_ROLLBACK)
    assert (Source.NONE, "prefix_in_busy_slot") == (told.source, told.reason)
    assert Source.WARM_UP is plan(FIRST, made, NO_ROLLBACK, Disk(may_save=True)).source
    told = plan(need("abc", has_past=True), made, NO_ROLLBACK, Disk(may_save=True))
    assert (Source.NONE, "prefix_in_busy_slot") == (told.source, told.reason)


def test_a_busy_slot_counts_for_what_it_will_hold() -> None:
    """What it held before the request that runs in it is gone."""
    empty, other = ledger(Nothing(), Nothing()), ledger(talk("ax"), Nothing())
    empty.lease(0, 1, will_hold=talk("ax"))
    other.lease(0, 1, will_hold=talk("z", "Q"))
    reasons = [plan(FIRST, made, NO_ROLLBACK).reason for made in (empty, other)]
    assert ["prefix_in_busy_slot", "no_checkpoint"] == reasons


def test_no_first_turn_is_made_to_be_taken_where_no_slot_would_be_gone_back_in() -> None:
    """It would lose what followed, and its client is still there: beside a busy slot nothing is prepared."""
    begun = replace(talk("ay", is_marked=True), is_first=True)
    for able in (ABLE, NO_ROLLBACK):
        made = ledger(talk("ax"), Nothing(), talk("z", "Q"), busy=(0,))
        made.copied(begun)
        told = plan(FIRST, made, able)
        assert ("prefix_in_busy_slot", False) == (told.reason, any(isinstance(step, Clear) for step in told.steps))


def test_a_prefix_nobody_has_is_prefilled_and_saved() -> None:
    """The request would have prefilled it anyway."""
    told = plan(FIRST, ledger(Nothing(), Nothing()), ABLE, Disk(may_save=True))
    assert (Source.WARM_UP, PREFIX_TOKENS) == (told.source, told.expected_cache_n)
    assert (Warm("P"), Save("P")) == told.steps[-2:]


@pytest.mark.parametrize(
    ("able", "disk"), [(ABLE, Disk()), (replace(ABLE, acts_on_slots=False), Disk(may_save=True))], ids=["off", "501"]
)
def test_without_a_place_to_save_to_it_is_only_prefilled(able: Capabilities, disk: Disk) -> None:
    assert not any(isinstance(step, Save) for step in plan(FIRST, ledger(Nothing()), able, disk).steps)


BATCH = 516
MARKS = replace(NO_ROLLBACK, mark_distance=BATCH)
"""A model whose slots keep no in-memory checkpoint but that of the first prompt, a batch before its end."""


@pytest.mark.parametrize("rest", [0, 1, BATCH, BATCH + 1])
@pytest.mark.parametrize("held", [Nothing(), talk("xy"), talk("z", "Q")], ids=["cold", "a session", "another install"])
def test_where_there_can_be_no_anchor_a_session_is_left_alone(held: Holding, rest: int) -> None:
    """A warm-up's checkpoint would take the place of one that lies farther on."""
    for able in (replace(MARKS, keeps_copies=False), replace(MARKS, has_room=False)):
        told = plan(replace(FIRST, rest_tokens=rest), ledger(held, Unknown(5)), able)
        assert (Source.NONE, "own_checkpoint_serves") == (told.source, told.reason)


@pytest.mark.parametrize("rest", [1, BATCH])
def test_beside_others_a_first_session_leaves_the_better_checkpoint_itself(rest: int) -> None:
    """Its own lies within the prefix; there is no anchor beside others."""
    asked = replace(FIRST, rest_tokens=rest)
    assert is_untouched(plan(asked, ledger(Nothing(), Nothing(), busy=(1,)), MARKS), "own_checkpoint_serves")


@pytest.mark.parametrize(
    ("able", "asked", "held", "disk"),
    [
        (MARKS, replace(FIRST, rest_tokens=BATCH + 1), Nothing(), Disk()),
        (MARKS, replace(FIRST, rest_tokens=0), Nothing(), Disk()),
        (MARKS, replace(FIRST, rest_tokens=9), talk("xy"), Disk()),
        (MARKS, replace(FIRST, rest_tokens=9), Nothing(), Disk(may_save=True)),
        (replace(MARKS, mark_distance=0), replace(FIRST, rest_tokens=9), Nothing(), Disk()),
        (replace(MARKS, mark_distance=None), replace(FIRST, rest_tokens=9), Nothing(), Disk()),
        (replace(MARKS, rolls_back=True), replace(FIRST, rest_tokens=9), Nothing(), Disk()),
    ],
    ids=["too long", "not known", "the second one", "saved", "kept", "not probed", "rolls back"],
)
def test_else_the_prefix_is_warmed(able: Capabilities, asked: Need, held: Holding, disk: Disk) -> None:
    """Where the request's own checkpoint would lie behind the prefix, is there already, or is not needed."""
    assert Source.WARM_UP is plan(asked, ledger(held, Nothing(), busy=(1,)), able, disk).source


def test_a_prefix_is_not_put_over_another_install_s_conversation() -> None:
    """Of the shorter prompt what both share is more than a tenth: the server would take that slot, and nothing else."""
    asked = replace(need("abcd"), common=(("Q", 20),))
    others = ledger(talk("z", "Q"), Nothing())
    assert is_untouched(plan(asked, others, NO_COPIES), "prefix_would_overwrite")
    assert Source.WARM_UP is plan(replace(asked, common=(("Q", 5),)), others, NO_COPIES).source
    assert Source.WARM_UP is plan(asked, others, ABLE).source  # a copy of it is kept


QUESTION = replace(talk("ab"), keeps_question=True)
OF_PREFIX = replace(talk("a", answer=0), chain=of_prefix("P"), n_prompt=81, n_tokens=81, is_anchor=True)
STANDS = replace(NO_ROLLBACK, mark_distance=BATCH, is_windowed=False)


@pytest.mark.parametrize("able", [STANDS, replace(STANDS, keeps_copies=False)], ids=["copies", "none"])
def test_a_session_begins_where_the_question_of_another_in_its_folder_does(able: Capabilities) -> None:
    """There the server left a checkpoint, behind all that both share: nothing is prefilled, or anchored, before it."""
    told = plan(replace(need("az"), rest_tokens=9), ledger(QUESTION), able)
    assert (Source.HIT, "conversation_begins_with_prefix", 1) == (told.source, told.reason, told.expected_cache_n)
    assert {Copy} >= {type(step) for step in told.steps}


def test_where_nobody_has_tried_what_a_slot_can_be_gone_back_in_the_server_is_left_to_show_it() -> None:
    """Also where a checkpoint would serve: in the slot, and in host memory, which nobody has tried either."""
    in_slot = plan(need("xb"), ledger(talk("ab")), UNPROBED, SAVED)
    assert (Source.HIT, "conversation_begins_with_prefix", (), 0) == (
        in_slot.source,
        in_slot.reason,
        in_slot.steps,
        in_slot.expected_cache_n,
    )
    assert Source.RESTORE is plan(need("xb"), ledger(talk("ab", is_marked=True)), UNPROBED, SAVED).source
    assert Source.RESTORE is plan(need("xb"), ledger(talk("ab", "Q")), UNPROBED, SAVED).source
    for able, copy, letters in (
        (UNPROBED, talk("xy"), "ab"),
        (UNPROBED, talk("ab", "Q"), "abc"),
        (replace(UNPROBED, rolls_back=False, keeps_copies=True), replace(talk("ax"), keeps_question=True), "ab"),
    ):
        assert "may_come_back" == plan(need(letters), with_copies(copy), able, SAVED).reason
    seen_not_to = replace(UNPROBED, rolls_back=False)
    assert Source.RESTORE is plan(need("ab"), with_copies(talk("xy"), held=Nothing()), seen_not_to, SAVED).source
    assert "own_checkpoint_serves" == plan(need("ab"), with_copies(talk("xy"), held=Nothing()), seen_not_to).reason
    truncating = replace(UNPROBED, restores=True, window=512)
    assert "may_come_back" != plan(need("abc"), with_copies(talk("ab", "Q")), truncating, SAVED).reason


HEAD_TOKENS = 900
OF_FOLDER = replace(talk("axb", is_marked=True), head_key="H", head_tokens=HEAD_TOKENS)
"""A later turn: where its first question begins there is no in-memory checkpoint any more."""
IN_FOLDER = replace(need("az"), head_key="H", head_tokens=HEAD_TOKENS)
MET_IN_USE = replace(UNPROBED, total_slots=1, window=0, restores=True)


@pytest.mark.parametrize("rolls_back", [None, False])
def test_where_nobody_has_tried_it_a_session_of_the_same_folder_may_serve_better_than_a_prefix(
    rolls_back: bool | None,
) -> None:
    """An in-memory checkpoint may lie within the head: no prefix is restored, or prefilled, before it is seen not to.

    In the slot and in host memory; a head on disk is more than that.
    """
    able = replace(MET_IN_USE, rolls_back=rolls_back)
    in_slot, in_host_memory = ledger(OF_FOLDER), with_copies(OF_FOLDER, held=talk("uv", "Q"))
    for disk in (SAVED, Disk(may_save=True, may_save_head=True)):
        for made, reason in ((in_slot, "conversation_begins_with_prefix"), (in_host_memory, BEGINS_ALIKE)):
            assert (Source.HIT, reason, ()) == outline(plan(IN_FOLDER, made, able, disk))
    for made in (in_slot, in_host_memory):
        assert Source.RESTORE is plan(IN_FOLDER, made, able, replace(SAVED, has_head=True)).source
        for seen in (replace(able, keeps_heads=False), replace(able, window=None), replace(able, is_windowed=False)):
            assert Source.RESTORE is plan(IN_FOLDER, made, replace(seen, keeps_copies=True), SAVED).source
        assert Source.RESTORE is plan(replace(IN_FOLDER, head_key="other"), made, able, SAVED).source
    assert Source.RESTORE is plan(IN_FOLDER, in_host_memory, replace(able, keeps_copies=False), SAVED).source


def outline(made: Plan) -> tuple[Source, str, tuple[object, ...]]:
    return made.source, made.reason, made.steps


@pytest.mark.parametrize(
    ("copy", "is_left"), [(QUESTION, True), (talk("ab"), False), (replace(QUESTION, chain=chain("xb")), False)]
)
def test_nothing_is_saved_that_host_memory_has_with_the_head_behind_it(copy: Talk, is_left: bool) -> None:
    """The server goes back to where the other's first question begins, for nothing; a warm-up would spend the copy."""
    told = plan(need("az"), with_copies(copy, held=Nothing()), STANDS, Disk(may_save=True))
    assert ((Source.HIT, BEGINS_ALIKE) if is_left else (Source.WARM_UP, "no_checkpoint")) == (told.source, told.reason)
    saved = plan(need("az"), with_copies(copy, held=Nothing()), STANDS, SAVED)
    assert Source.RESTORE is saved.source


def test_no_checkpoint_is_tried_where_a_sliding_window_may_reuse_nothing_of_it() -> None:
    """Until it is seen that the slot has more than the window."""
    windowed = replace(UNPROBED, window=512)
    assert Source.NONE is plan(FIRST, ledger(Nothing()), windowed, SAVED).source
    assert Source.RESTORE is plan(FIRST, ledger(Nothing()), replace(windowed, rolls_back=True), SAVED).source


def test_a_question_in_a_slot_that_the_server_does_not_choose_serves_nobody() -> None:
    """What would be overwritten in the other one is kept, and the anchor asked for."""
    made = ledger(talk("axde"), QUESTION)
    made.copied(OF_PREFIX)
    told = plan(replace(need("az"), rest_tokens=9), made, STANDS)
    assert Keep("P") in told.steps
    assert {Copy(0), Clear(0)} <= {*told.steps}


@pytest.mark.parametrize("has_past", [False, True])
def test_a_copy_that_is_not_whole_is_not_gone_back_in(has_past: bool) -> None:
    """Nor on a server that was not probed: a restored prefix and the model's file tell what it is."""
    unprobed = replace(UNPROBED, restores=True, window=512)
    made = ledger(Nothing())
    made.copied(talk("ax"))
    told = plan(need("ab", has_past=has_past), made, unprobed, Disk(may_save=True))
    assert Source.WARM_UP is told.source


@pytest.mark.parametrize(
    ("able", "held", "letters"),
    [
        (STANDS, talk("ab"), "az"),
        (STANDS, replace(QUESTION, is_whole=False), "az"),
        (replace(STANDS, is_windowed=True, window_reach=0), QUESTION, "az"),
        (STANDS, QUESTION, "yz"),
        (replace(STANDS, mark_distance=None), QUESTION, "az"),
        (replace(STANDS, keeps_questions=False), QUESTION, "az"),
    ],
    ids=["later turn", "cut off", "window", "other folder", "no checkpoints", "seen not to be there"],
)
def test_else_it_does_not(able: Capabilities, held: Holding, letters: str) -> None:
    """After a later turn, in another folder, or where nobody knows what the server leaves."""
    told = plan(replace(need(letters), rest_tokens=9), ledger(held), able)
    assert "conversation_begins_with_prefix" != told.reason


@pytest.mark.parametrize("able", [replace(ABLE, reuses=False), replace(ABLE, finds_alike=False)])
@pytest.mark.parametrize("held", [bare(), talk("ab"), Nothing()], ids=repr)
def test_where_the_server_makes_nothing_of_its_slots_nothing_is_done(able: Capabilities, held: Holding) -> None:
    """Whatever there is."""
    made = ledger(held, talk("abx"))
    made.copied(talk("ab"))
    assert is_untouched(plan(need("abc"), made, able, SAVED), "reuse_useless")


def test_a_prompt_rewritten_in_mid_conversation_is_never_warmed() -> None:
    """Tools switched, system text changed each turn: it may never come again."""
    told = plan(need("xyz", has_past=True), ledger(Nothing(), talk("ab", "Q")), ABLE, Disk(may_save=True))
    assert (Source.NONE, ()) == (told.source, told.steps)


def test_a_warm_up_that_would_take_too_long_is_put_off() -> None:
    told = plan(replace(FIRST, is_slow=True), ledger(Nothing()), ABLE, Disk(may_save=True))
    assert (Source.NONE, 0) == (told.source, told.expected_cache_n)


def test_a_conversation_in_host_memory_would_be_taken_for_the_prefix() -> None:
    """A warm-up would take it just as the request does: nothing is built where nothing can be saved."""
    made = with_copy("xy", Nothing())
    told = plan(FIRST, made, ABLE)
    assert (Source.HIT, (), PREFIX_TOKENS) == (told.source, told.steps, told.expected_cache_n)
    assert 0 == plan(FIRST, made, NO_ROLLBACK).expected_cache_n
    assert Source.WARM_UP is plan(FIRST, made, ABLE, Disk(may_save=True)).source


@pytest.mark.parametrize(("copy_tokens", "is_copied"), [(0, True), (120, True), (121, False)])
def test_what_is_prefilled_sooner_than_it_is_copied_is_let_go(copy_tokens: int, is_copied: bool) -> None:
    """A title's request, say; whether the slot is overwritten or emptied."""
    able = replace(NO_ROLLBACK, copy_tokens=copy_tokens)
    assert is_copied == (Copy(0) in plan(FIRST, ledger(talk("x", "Q")), able).steps)
    resumed = plan(need("abc", has_past=True), with_copy("ab", replace(talk("a"), chain=chain("ax"))), able).steps
    assert (is_copied, Clear(0)) == (Copy(0) in resumed, resumed[-1])


def test_what_rolls_back_or_was_not_seen_is_always_copied() -> None:
    assert Copy(0) in plan(FIRST, ledger(talk("x", "Q")), replace(ABLE, copy_tokens=500)).steps
    assert Copy(0) in plan(FIRST, ledger(Unknown(5)), replace(NO_ROLLBACK, copy_tokens=500)).steps


@pytest.mark.parametrize(
    ("letters", "held", "is_copied"),
    [("abcdex", "abcdefgh", False), ("abx", "abc", True), ("abcx", "abcdefgh", True)],
    ids=["edit", "asked the same", "far back"],
)
def test_what_its_client_has_given_up_is_let_go(letters: str, held: str, is_copied: bool) -> None:
    """After an edit: a copy would be loaded when its client goes back again. Two that were asked the same both go on.

    What is gone back in by more than half the server copies by itself.
    """
    made = ledger(talk(held, is_marked=True))
    assert is_copied == (Copy(0) in plan(need(letters, has_past=True), made, NO_ROLLBACK).steps)
    assert Copy(0) in plan(need(letters, has_past=True), made, ABLE).steps


def test_it_is_emptied_without_a_copy_where_host_memory_has_the_rest() -> None:
    """The server would have overwritten it."""
    asked, made = need("abcdex", has_past=True), with_copy("ab", talk("abcdefgh"))
    assert (Source.RESUME, (Clear(0),)) == (plan(asked, made, NO_ROLLBACK).source, plan(asked, made, NO_ROLLBACK).steps)


# --- a server that empties idle slots ------------------------------------------------------------------------------

CLEARING = replace(ABLE, clears_idle=True)


def test_there_a_resume_needs_one_task_in_an_empty_slot() -> None:
    """Any task moves all idle slots to host memory, but for its own."""
    told = plan(need("abc"), with_copy("ab", bare(), talk("az"), Nothing()), CLEARING)
    assert (Source.RESUME, (Copy(2),)) == (told.source, told.steps)


def test_there_a_full_server_is_emptied_by_one_task_and_one_clear() -> None:
    told = plan(need("abc"), with_copy("ab", bare(), talk("az")), CLEARING)
    assert (Copy(0), Clear(0)) == told.steps


def test_there_a_bare_prefix_is_kept_by_aiming_the_copy_at_it() -> None:
    """A copy of another slot would empty it."""
    assert (Copy(1),) == plan(FIRST, ledger(talk("ax"), bare()), replace(CLEARING, rolls_back=False)).steps


def test_there_the_slot_that_gives_the_prefix_is_the_one_to_copy() -> None:
    """A copy of another slot would empty it, and host memory would be looked into instead."""
    assert (Copy(1),) == plan(FIRST, ledger(talk("xy", "Q"), talk("ax"), talk("vw")), CLEARING).steps


def test_there_a_restore_still_comes_last() -> None:
    """A task after it would empty the slot again."""
    told = plan(FIRST, ledger(talk("xy", "Q"), Nothing()), CLEARING, SAVED)
    assert (Copy(1), Restore(1, "P")) == told.steps


# --- what is not known ---------------------------------------------------------------------------------------------


def test_an_unprobed_server_is_given_the_prefix_but_nothing_that_is_not_known_to_work() -> None:
    """No copies, no clearing; prefilling works everywhere, but may leave a worse checkpoint than the request would."""
    held = ledger(Unknown(10), talk("xy", "Q"))
    told = plan(FIRST, held, UNPROBED, Disk(may_save=True))
    assert (Source.WARM_UP, (Warm("P"), Save("P"))) == (told.source, told.steps)
    assert is_untouched(plan(FIRST, held, UNPROBED), "own_checkpoint_serves")


# --- SLOT=N --------------------------------------------------------------------------------------------------------


def test_a_conversation_goes_on_in_whatever_slot_it_is() -> None:
    """SLOT=0 confines preparation, not use."""
    told = plan(need("abc"), ledger(Nothing(), talk("ab")), ABLE, SAVED, only_slot=0)
    assert (Source.CONTINUE, 1, ()) == (told.source, told.slot, told.steps)


@pytest.mark.parametrize("only", [0, 1, 2])
@pytest.mark.parametrize("disk", [Disk(), SAVED])
def test_preparation_is_confined_to_the_slot_that_was_named(only: int, disk: Disk) -> None:
    """No step that changes anything is aimed at another: a copy leaves a slot as it is."""
    for asked in (FIRST, need("abc"), need("abcx", "")):
        made = with_copy("ab", talk("az"), talk("xy", "Q"), Unknown(5))
        steps = plan(asked, made, ABLE, disk, only_slot=only).steps
        assert {step.slot for step in steps if isinstance(step, Clear | Restore)} <= {only}


def test_a_named_slot_that_is_busy_is_not_prepared() -> None:
    told = plan(FIRST, ledger(bare(), Nothing(), busy=(1,)), ABLE, SAVED, only_slot=1)
    assert (Source.NONE, ()) == (told.source, told.steps)


# --- all of it -----------------------------------------------------------------------------------------------------

HELD: list[Holding] = [Nothing(), Unknown(900), bare(), bare("Q"), talk("ab"), talk("xy"), talk("xy", "Q"), talk("abz")]
ASKED = [FIRST, need("abc", has_past=True), need("abq", ""), need("xyzv", "Q"), Need(chain("a"), sizes("a"))]


@pytest.mark.parametrize(
    "able", [ABLE, NO_COPIES, NO_ROLLBACK, UNPROBED], ids=["all", "no copies", "hybrid", "unprobed"]
)
@pytest.mark.parametrize("disk", [Disk(), Disk(may_save=True), SAVED], ids=["off", "save", "saved"])
@pytest.mark.parametrize("busy", [(), (0,), (1,)], ids=["idle", "first busy", "second busy"])
def test_no_plan_ever_destroys_what_can_be_kept(able: Capabilities, disk: Disk, busy: tuple[int, ...]) -> None:
    """For all pairs of holdings: no step at a busy slot, no clearing without host memory, a copy before each loss."""
    for first in HELD:
        for second in HELD:
            for asked in ASKED:
                made = with_copy("xyz", first, second, busy=busy)
                before = repr(made)
                told = plan(asked, made, able, disk)
                assert before == repr(made)
                check(told, made, able)


def check(told: Plan, made: Ledger, able: Capabilities) -> None:
    idle = {belief.slot for belief in made.idle()}
    copied: set[int] = set()
    for step in told.steps:
        if isinstance(step, Copy | Clear | Restore):
            assert step.slot in idle
        if isinstance(step, Copy):
            assert able.keeps_copies
            copied.add(step.slot)
        if isinstance(step, Clear):
            assert able.keeps_copies
        if isinstance(step, Clear | Restore) and able.keeps_copies:
            held = made.slots[step.slot].holds
            assert step.slot in copied or held.n_tokens <= max(PREFIX_TOKENS, 0) or able.clears_idle
    assert told.slot is None or told.slot in idle
    assert MESSAGE_TOKENS > told.expected_cache_n >= 0


@pytest.mark.parametrize(
    "able",
    [ABLE, NO_COPIES, NO_ROLLBACK, CLEARING, replace(NO_COPIES, rolls_back=False)],
    ids=["all", "no copies", "hybrid", "clears", "neither"],
)
@pytest.mark.parametrize("disk", [Disk(), SAVED], ids=["off", "saved"])
def test_the_slot_that_is_claimed_is_the_one_that_the_server_takes(able: Capabilities, disk: Disk) -> None:
    """For all triples of holdings: once the steps are done, the server's own rule leads there."""
    for held in product(HELD, repeat=3):
        for asked in (FIRST, need("abc", has_past=True), need("abq", "")):
            made = ledger(*held)
            told = plan(asked, made, able, disk)
            if told.slot is None or any(isinstance(b, Unknown) for b in held):
                continue
            carry_out(told, made, able)
            choice = choose(asked, made.idle())
            assert choice is not None
            assert told.slot == choice.slot, f"{held} {told}"


def carry_out(told: Plan, made: Ledger, able: Capabilities) -> None:
    """What the steps do to the slots."""
    for step in told.steps:
        match step:
            case Copy(slot) if able.clears_idle:
                for other in range(len(made.slots)):
                    if other != slot:
                        made.hold(other, Nothing())
            case Clear(slot):
                made.hold(slot, Nothing())
            case Restore(slot, key):
                made.hold(slot, bare(key), has_run=False)
            case _:
                pass
