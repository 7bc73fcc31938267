"""Anchors: where one is dropped, which one is gone back to, and what the ledger makes of it."""

from dataclasses import replace

import pytest

from proxy.slots.anchoring import SMALLEST_REACH, WINDOW, anchors
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Holding, Need, Nothing, Talk, continues_talk, goes_beyond, of_prefix, share
from proxy.slots.ledger import Ledger
from proxy.slots.plan import Anchor, Clear, Copy, Keep, Requeue, Source, Warm
from proxy.slots.planner import plan
from proxy.slots.prediction import CHECKPOINT_STEP
from proxy.slots.restoring import Disk
from tests.slots.beliefs import MESSAGE_TOKENS, PREFIX_TOKENS, bare, ledger, need, talk

ABLE = Capabilities(total_slots=4, rolls_back=False, keeps_copies=True, mark_distance=516)
FIRST = replace(need("ab"), rest_tokens=20)
"""The first request of a new session."""


OF_PREFIX = replace(
    talk("a", answer=0, is_marked=True), chain=of_prefix("P"), n_prompt=81, n_tokens=81, is_anchor=True, is_first=True
)
KEPT = (Keep("P"), Anchor())


def anchor(letters: str = "ab", prefix: str = "P") -> Talk:
    return replace(talk(letters, prefix, answer=0, is_marked=True), is_anchor=True)


def remembering(*copies: Talk, slots: tuple[Holding, ...] = (Nothing(),)) -> Ledger:
    """Copies in host memory, oldest first."""
    made = ledger(*slots)
    for copy in copies:
        made.copied(copy)
    return made


# --- dropping one ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [Nothing(), bare(), talk("az", is_marked=True)], ids=["cold", "bare", "native"])
def test_a_first_turn_leaves_an_anchor_when_its_prefix_is_there(held: Holding) -> None:
    """As the last step: warmed, or found in a slot."""
    told = plan(FIRST, ledger(held), ABLE)
    assert (KEPT, True) == (told.steps[-2:], told.source in (Source.WARM_UP, Source.HIT))
    assert [1, 1] == [told.steps.count(step) for step in KEPT]


@pytest.mark.parametrize(
    ("able", "asked"),
    [
        (replace(ABLE, rolls_back=True), FIRST),
        (replace(ABLE, rolls_back=None), FIRST),
        (replace(ABLE, keeps_copies=False), FIRST),
        (replace(ABLE, has_room=False), FIRST),
        (replace(ABLE, mark_distance=0), FIRST),
        (replace(ABLE, mark_distance=None, is_windowed=True), FIRST),
        (ABLE, replace(FIRST, has_past=True)),
        (ABLE, replace(FIRST, rest_tokens=0)),
        (ABLE, replace(FIRST, is_slow=True)),
    ],
    ids=[
        "rolls back",
        "not probed",
        "no host memory",
        "too little of it",
        "keeps checkpoints",
        "has none",
        "later turn",
        "not counted",
        "slow",
    ],
)
def test_none_is_left_where_none_is_needed_or_can_be(able: Capabilities, asked: Need) -> None:
    """On servers that go back anywhere, or have no host memory; for requests that it would not serve."""
    assert KEPT == anchors(FIRST, ledger(Nothing()), ABLE)
    assert KEPT == anchors(FIRST, ledger(Nothing()), replace(ABLE, mark_distance=0, is_windowed=True))
    assert () == anchors(asked, ledger(Nothing()), able)
    assert not {*KEPT} & {*plan(asked, ledger(Nothing()), able).steps}


def test_none_is_left_beside_a_neighbour() -> None:
    """What that one leaves meanwhile would get in between."""
    assert Anchor() not in plan(FIRST, ledger(Nothing(), talk("xy", "Q"), busy=(1,)), ABLE).steps


@pytest.mark.parametrize("disk", [Disk(may_save=True), Disk(has_checkpoint=True)], ids=["saving", "saved"])
def test_files_make_it_needless_unless_they_are_not_reused(disk: Disk) -> None:
    """A sliding window can't be restored."""
    files = replace(ABLE, restores=True, acts_on_slots=True)
    assert Anchor() not in plan(FIRST, ledger(Nothing()), files, disk).steps
    assert Anchor() in plan(FIRST, ledger(Nothing()), replace(files, restores=False), disk).steps


def test_the_only_slot_is_the_only_one_to_be_changed() -> None:
    """A prompt of ours goes into the slot that the server chooses: where nobody knows which, nothing is done."""
    made = remembering(OF_PREFIX, slots=(talk("xy", "Q"), talk("zy", "Q")))
    assert "other_slot" == plan(FIRST, made, ABLE, only_slot=0).reason
    native = ledger(replace(talk("az", is_marked=True), is_first=True), Nothing())
    assert (KEPT, "other_slot") == (
        plan(FIRST, native, ABLE, only_slot=0).steps[-2:],
        plan(FIRST, native, ABLE, only_slot=1).reason,
    )


HEADED = replace(FIRST, head_key="H", head_tokens=95)
OF_HEAD = replace(OF_PREFIX, chain=of_prefix("H"), n_prompt=96, n_tokens=96, head_key="H", head_tokens=95, sizes=(336,))


def test_a_folder_s_first_turn_leaves_its_head_too() -> None:
    """Behind the exact prefix, and before the whole prompt: each goes on from the one before it."""
    assert (Keep("P"), Keep("H"), Anchor()) == plan(HEADED, ledger(Nothing()), ABLE).steps[-3:]
    told = plan(HEADED, remembering(OF_PREFIX, slots=(talk("xyz", "Q"),)), ABLE)
    assert (Keep("P"), Keep("H"), Anchor()) == told.steps


def test_the_next_session_in_that_folder_begins_with_the_head() -> None:
    """What lies before it is left where it is; a slot with the exact prefix alone serves less."""
    held = replace(talk("xz", is_marked=True), is_first=True)
    told = plan(replace(HEADED, chain=need("xy").chain), remembering(OF_PREFIX, OF_HEAD, slots=(held,)), ABLE)
    assert ("host_memory_begins_with_prefix", (Keep("H"), Anchor())) == (told.reason, told.steps[-2:])
    assert Keep("P") not in told.steps


def test_a_session_in_another_folder_begins_with_the_prefix() -> None:
    asked = replace(HEADED, head_key="I")
    assert (Keep("P"), Keep("I"), Anchor()) == plan(asked, remembering(OF_PREFIX, OF_HEAD), ABLE).steps


# --- what is believed of it -----------------------------------------------------------------------------------------


def test_no_later_turn_contains_it() -> None:
    """It stays in host memory when its conversation is copied there, before or after it."""
    made = remembering(anchor(), talk("ab"), talk("abcd"))
    assert [anchor(), talk("abcd")] == [*made.copies.values()]
    assert not goes_beyond(talk("abcd"), anchor())
    made = remembering(talk("abcd"), anchor())
    assert [talk("abcd"), anchor()] == [*made.copies.values()]


def test_the_same_again_is_one() -> None:
    assert 1 == len(remembering(anchor(), anchor()).copies)


def test_its_last_token_is_nobody_s() -> None:
    """So the conversation itself shares one token more."""
    asked = need("abc", has_past=True)
    assert continues_talk(asked, anchor())
    assert 2 * MESSAGE_TOKENS - 1 == share(asked, anchor())


def test_of_conversation_and_anchor_the_conversation_is_resumed() -> None:
    for copies in ((anchor(), talk("ab")), (talk("ab"), anchor())):
        assert talk("ab") == remembering(*copies).longest_copy(need("abc"))


# --- going back to it -----------------------------------------------------------------------------------------------


def test_an_early_edit_goes_back_to_it() -> None:
    """The slot with the later turns is copied and emptied, so that the server loads the anchor."""
    made = remembering(anchor(), slots=(talk("abcdefgh"),))
    told = plan(need("abcx", has_past=True), made, ABLE)
    assert (Source.RESUME, (Copy(0), Clear(0))) == (told.source, told.steps)


@pytest.mark.parametrize(
    ("letters", "copies"),
    [("abcdex", ()), ("abcx", (talk("abcdefgh"),))],
    ids=["last turn", "the conversation is older"],
)
def test_not_where_the_server_goes_back_farther_or_loads_another(letters: str, copies: tuple[Talk, ...]) -> None:
    """Its checkpoint at the end of the turn before; and it goes through host memory oldest first."""
    held = Nothing() if copies else talk("abcdef")
    told = plan(need(letters, has_past=True), remembering(*copies, anchor(), slots=(held,)), ABLE)
    assert "host_memory_holds_conversation" != told.reason


def test_not_where_the_edit_lies_far_behind_it() -> None:
    """Every so many tokens the server leaves a checkpoint that stays."""
    letters = "ab" + "c" * (2 * CHECKPOINT_STEP // MESSAGE_TOKENS)
    made = remembering(anchor(), slots=(talk(letters + "defgh"),))
    told = plan(need(letters + "x", has_past=True), made, ABLE)
    assert "host_memory_holds_conversation" != told.reason


# --- a new session begins with it -----------------------------------------------------------------------------------


def test_a_later_turn_makes_room_for_it() -> None:
    """The server can't go back to the prefix's end in the slot, but in the anchor it can."""
    made = remembering(OF_PREFIX, slots=(talk("abcd", is_marked=True),))
    told = plan(replace(need("xy"), rest_tokens=20), made, ABLE)
    assert (Source.HIT, (Copy(0), Clear(0), *KEPT)) == (told.source, told.steps)


def test_another_install_s_slot_makes_room_for_it() -> None:
    """Of which half is the same text: the server would overwrite it and look no farther."""
    asked = replace(need("xy"), rest_tokens=20, common=(("Q", 70),))
    made = remembering(OF_PREFIX, slots=(replace(talk("z", "Q", answer=0), n_prompt=90, n_tokens=90),))
    told = plan(asked, made, ABLE)
    assert ("host_memory_begins_with_prefix", (Copy(0), Clear(0), *KEPT)) == (told.reason, told.steps)


@pytest.mark.parametrize("asked", [replace(need("xy", has_past=True), rest_tokens=9), replace(FIRST, is_slow=True)])
def test_whoever_needs_the_prefix_keeps_it_there(asked: Need) -> None:
    """In mid-conversation, or where prefilling it would take too long: it is only loaded, and copied again."""
    made = remembering(talk("xz"), OF_PREFIX)
    assert ((Keep("P"),), Source.HIT) == (plan(asked, made, ABLE).steps, plan(asked, made, ABLE).source)


def test_a_first_turn_that_a_slot_holds_serves_as_well() -> None:
    """It went on from the prefix's end, and its checkpoint there is the last: what is in host memory stays there."""
    made = remembering(OF_PREFIX, slots=(replace(talk("az", is_marked=True), is_first=True),))
    assert (Copy(0),) == plan(FIRST, made, ABLE).steps


WINDOWED = replace(ABLE, mark_distance=0, is_windowed=True)


@pytest.mark.parametrize(
    ("able", "n_tokens", "is_near"),
    [
        (WINDOWED, PREFIX_TOKENS + SMALLEST_REACH, True),
        (WINDOWED, PREFIX_TOKENS + SMALLEST_REACH + 1, False),
        (replace(WINDOWED, clears_idle=True), PREFIX_TOKENS + SMALLEST_REACH + 3 * WINDOW, True),
        (replace(WINDOWED, window_reach=9), PREFIX_TOKENS + 10, False),
        (ABLE, PREFIX_TOKENS + 1, False),
    ],
    ids=["a batch", "more", "a window for each slot", "learned", "no window"],
)
def test_a_window_is_gone_back_in_as_far_as_it_reaches(able: Capabilities, n_tokens: int, is_near: bool) -> None:
    """There a later turn in the slot serves, and nothing has to make room."""
    made = remembering(OF_PREFIX, slots=(replace(talk("axyz", is_marked=True), n_tokens=n_tokens),))
    asked = replace(need("bc"), rest_tokens=20)
    assert is_near == (Clear(0) not in plan(asked, made, able).steps)
    made = remembering(anchor(), slots=(replace(talk("abcdefgh"), n_tokens=300 - PREFIX_TOKENS + n_tokens),))
    assert is_near == (Clear(0) not in plan(need("abcx", has_past=True), made, able).steps)


def test_without_one_there_a_warm_up_goes_on_from_what_is_common() -> None:
    """No conversation is taken out of host memory for another install's sake."""
    asked = replace(need("xy"), rest_tokens=20, common=(("Q", 70),))
    made = remembering(slots=(replace(talk("z", "Q", answer=0), n_prompt=90, n_tokens=90),))
    assert Warm("P") in plan(asked, made, ABLE).steps


# --- out of the way of others ---------------------------------------------------------------------------------------


def test_it_makes_way_for_a_conversation_whose_answers_come_back_changed() -> None:
    """More of it is kept than of that, and it is older; of one whose answer came back as it was nothing is lost."""
    asked = need("abcx", has_past=True)
    told = plan(asked, remembering(OF_PREFIX, anchor(), replace(talk("abc"), is_changed=True)), ABLE)
    assert (Source.RESUME, (Requeue(OF_PREFIX), Requeue(anchor()))) == (told.source, told.steps)
    assert () == plan(asked, remembering(OF_PREFIX, anchor(), talk("abc")), ABLE).steps
    assert () == plan(asked, remembering(replace(talk("abc"), is_changed=True), anchor()), ABLE).steps


def test_it_makes_way_for_a_conversation_that_is_gone_back_in() -> None:
    """Its last message was edited: the server has a checkpoint at the end of the turn before."""
    told = plan(need("abcdex", has_past=True), remembering(anchor(), talk("abcdef")), ABLE)
    assert ("host_memory_holds_edited_conversation", (Requeue(anchor()),)) == (told.reason, told.steps)


def test_a_changed_answer_is_not_shared() -> None:
    """Then a conversation shares its prompt with what goes on from it."""
    changed = replace(talk("ab", answer=30), is_changed=True)
    assert [230, 200] == [share(need("abc"), held) for held in (talk("ab", answer=30), changed)]


@pytest.mark.parametrize(("letters", "is_kept"), [("abcd", True), ("abcdefghij", False)], ids=["short", "long"])
def test_it_takes_the_place_of_a_long_last_question(letters: str, is_kept: bool) -> None:
    """Both checkpoints of such a prompt lie behind where the question begins that is edited now."""
    able, asked = replace(ABLE, is_windowed=False), need("abcx", has_past=True)
    held = replace(talk(letters), chain=talk("abcd").chain, sizes=(350, 350, 350, 350 * (len(letters) - 3)))
    made = remembering(OF_PREFIX, anchor(), slots=(held,))
    assert is_kept == (Source.RESUME is not plan(asked, made, able).source)
