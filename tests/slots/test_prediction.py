"""Which slot the server takes, by its own rule."""

from dataclasses import replace

import pytest

from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Holding, Need, Nothing, Talk, Unknown
from proxy.slots.prediction import (
    CHECKPOINT_DISTANCE,
    Choice,
    choose,
    is_last_edited,
    is_overwritten,
    is_turn_kept,
    loaded,
)
from tests.slots.beliefs import PREFIX_TOKENS, bare, chain, ledger, need, sizes, talk

MARKED = Capabilities(rolls_back=False, is_windowed=False, mark_distance=516)
LAST = replace(talk("abc"), keeps_last=True)


def test_the_longest_shared_beginning_wins() -> None:
    """Before order of use, and whatever stands in slots that share less."""
    idle = ledger(talk("ax"), talk("ab"), bare(), Nothing()).slots
    assert Choice(1, 220, by_similarity=True, overwrites=False) == choose(need("abc"), idle)


def test_of_two_that_share_alike_the_first_slot_wins() -> None:
    """Whichever was used last, and in whatever order they are given."""
    idle = ledger(bare("Q"), bare(), bare()).slots
    choice = choose(need("ab"), list(reversed(idle)))
    assert choice is not None
    assert 1 == choice.slot


@pytest.mark.parametrize(("letters", "by_similarity"), [("a" * 7, True), ("a" * 8, False), ("a" * 9, False)])
def test_a_tenth_of_the_prompt_or_less_does_not_count(letters: str, by_similarity: bool) -> None:
    """A short prefix and a long conversation: the slot that holds the prefix is no better than another."""
    idle = ledger(bare(), talk("xyz", "")).slots
    choice = choose(need(letters), idle)
    assert choice is not None
    assert by_similarity is choice.by_similarity


def test_without_a_match_the_least_recently_used_slot_is_taken() -> None:
    idle = ledger(talk("xy", ""), talk("zz", ""), talk("vw", "")).slots
    assert Choice(0, 0, by_similarity=False, overwrites=False, copies=True) == choose(need("abc"), idle)


def test_of_slots_never_used_the_last_is_taken() -> None:
    """Whether one is empty plays no part, only whether it ever ran anything."""
    made = ledger(talk("xy", ""), Nothing(), Nothing())
    assert [0, 0] == [belief.last_used for belief in made.slots[1:]]
    choice = choose(need("abc"), made.slots)
    assert choice is not None
    assert 2 == choice.slot


@pytest.mark.parametrize(
    ("held", "overwrites"),
    [("ab", False), ("abcd", True), ("abcdefgh", True), ("abcdefghi", False), ("a" * 9, False)],
)
def test_what_keeps_half_is_overwritten_without_a_copy(held: str, overwrites: bool) -> None:
    """A slot continued loses nothing; one that keeps less than half is copied first; in between the rest is lost."""
    shared = {"ab": "abc", "abcd": "abc", "abcdefgh": "abcdx", "abcdefghi": "abcdx", "a" * 9: "ax"}
    choice = choose(need(shared[held], ""), ledger(talk(held, "", answer=0)).slots)
    assert choice is not None
    assert overwrites is choice.overwrites


def test_unknown_content_counts_as_sharing_nothing() -> None:
    assert Choice(0, 0, by_similarity=False, overwrites=False, copies=True) == choose(
        need("abc"), ledger(Unknown(900)).slots
    )


def test_without_an_idle_slot_there_is_no_choice() -> None:
    assert choose(need("abc"), ()) is None


def test_a_request_of_no_size_is_no_match() -> None:
    """Nothing to divide by."""
    assert choose(Need(), ledger(bare()).slots) == Choice(0, 0, by_similarity=False, overwrites=False, copies=True)
    assert choose(Need(chain("a"), sizes("a"), "P", PREFIX_TOKENS), ledger(bare()).slots) is not None


# --- what the server loads from host memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([talk("ax"), talk("ab")], talk("ab")),
        ([talk("ab"), talk("ax")], talk("ab")),
        ([talk("ax"), talk("ay")], talk("ax")),
        ([talk("axy"), talk("ax")], talk("axy")),
        ([talk("x" * 9), talk("ax")], talk("ax")),
        ([talk("ax" * 9)], None),
        ([], None),
    ],
    ids=["continued", "whatever the order", "the first of equals", "no better", "both", "too little kept", "none"],
)
def test_the_copy_of_which_more_is_kept_and_more_is_used(copies: list[Talk], expected: Talk | None) -> None:
    """Both must be better than in the one found before; of less than a quarter nothing is taken."""
    assert expected == loaded(need("abc"), Nothing(), copies)


def test_of_those_that_share_the_prefix_one_of_the_same_folder_is_better() -> None:
    """How many tokens more is not known, only that it is more: the system message is the same."""
    elsewhere, here = talk("xyz"), Talk(chain("ay"), (10, 9000), 130, 132, "P", PREFIX_TOKENS)
    assert here == loaded(need("abc"), Nothing(), [elsewhere, here])


@pytest.mark.parametrize(
    ("held", "finds"),
    [(Nothing(), True), (bare(), False), (talk("ax"), True), (talk("ax", answer=0), False), (Unknown(9), True)],
    ids=["empty", "the prefix", "less than half", "half of it", "unknown"],
)
def test_a_slot_that_keeps_half_has_the_server_look_no_farther(held: Holding, finds: bool) -> None:
    """It goes on from there, however much better a copy would be."""
    assert finds is not is_overwritten(need("abc"), held)
    assert (talk("ab") if finds else None) == loaded(need("abc"), held, [talk("ab")])


@pytest.mark.parametrize(
    ("asked", "held", "able", "expected"),
    [
        ("abx", LAST, MARKED, True),
        ("abx", LAST, replace(MARKED, keeps_questions=False), False),
        ("abx", LAST, replace(MARKED, is_windowed=True), False),
        ("abx", replace(LAST, keeps_last=False), MARKED, False),
        ("abx", replace(LAST, is_whole=False), MARKED, False),
        ("axy", LAST, MARKED, False),
        ("bx", replace(talk("a"), keeps_last=True), MARKED, False),
    ],
    ids=["the last", "known not to be", "a window", "not a user's", "cut off", "an earlier one", "the first"],
)
def test_a_last_question_that_is_edited(asked: str, held: Talk, able: Capabilities, expected: bool) -> None:
    """The server has an in-memory checkpoint where a user's last message begins, however long it is."""
    assert expected == is_last_edited(need(asked), held, able)
    far = replace(held, n_prompt=100 * CHECKPOINT_DISTANCE)
    assert expected == is_turn_kept(need(asked), far, able)


def test_it_is_no_farther_away_than_its_own_tokens_tell() -> None:
    """Of a short one the in-memory checkpoints near the prompt's end serve, whoever said it."""
    assert is_turn_kept(need("abx"), replace(LAST, keeps_last=False), MARKED)
