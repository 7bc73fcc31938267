"""Stems: parts of an exact prefix that others will likely begin with, for the day on which the prefix is a new one."""

from dataclasses import replace

import pytest

from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Holding, Need, Nothing, Prefix, Talk, Whole, of_prefix, only_prefix, share
from proxy.slots.plan import Anchor, Clear, Copy, Keep, Restore, Save, Source, Step, Warm
from proxy.slots.planner import plan
from proxy.slots.restoring import Disk
from tests.slots.beliefs import PREFIX_TOKENS, ledger, need, talk

NO_ROLLBACK = Capabilities(rolls_back=False, keeps_copies=True, restores=True, acts_on_slots=True, window=0)
SWA_FULL = replace(NO_ROLLBACK, rolls_back=True, window=512)
STEM_TOKENS = 60
TODAY = replace(need("ab"), stems=(("S", STEM_TOKENS),), common=(("Y", STEM_TOKENS + 2),))
"""Yesterday's prefix is Y, and has the line of the date in common, too, up to the day."""
TWO = replace(TODAY, stems=(("T", 40), ("S", STEM_TOKENS)))
"""T ends where the system text begins."""
STEM = Prefix("S", STEM_TOKENS)
CAME_BACK = replace(talk("xy", "Y"), whole=Whole(PREFIX_TOKENS))
"""With its window only."""
NEW = Disk(may_save=True, new_stems=frozenset("TS"))
THERE = Disk(may_save=True, stems=frozenset("TS"))
kinds = pytest.mark.parametrize("able", [NO_ROLLBACK, SWA_FULL], ids=["no rollback", "swa-full"])


@kinds
def test_a_new_prefix_is_saved_at_the_end_of_its_stem_too(able: Capabilities) -> None:
    """On the way: no token is prefilled for it."""
    told = plan(TODAY, ledger(Nothing()), able, NEW)
    assert (Warm("S"), Save("S"), Warm("P"), Save("P")) == told.steps
    assert (Source.WARM_UP, PREFIX_TOKENS) == (told.source, told.expected_cache_n)


@kinds
def test_on_another_day_the_prefix_goes_on_from_its_stem(able: Capabilities) -> None:
    """And is saved itself."""
    told = plan(TODAY, ledger(Nothing()), able, THERE)
    assert (Restore(0, "S"), Warm("P"), Save("P")) == told.steps
    assert (Source.WARM_UP, "stem_on_disk", PREFIX_TOKENS) == (told.source, told.reason, told.expected_cache_n)


@kinds
def test_another_text_with_the_same_tools_goes_on_from_them(able: Capabilities) -> None:
    """And what precedes its own date is saved on the way."""
    told = plan(TWO, ledger(Nothing()), able, Disk(may_save=True, stems=frozenset("T"), new_stems=frozenset("S")))
    assert (Restore(0, "T"), Warm("S"), Save("S"), Warm("P"), Save("P")) == told.steps
    told = plan(TWO, ledger(Nothing()), able, NEW)
    assert (Warm("T"), Save("T"), Warm("S"), Save("S"), Warm("P"), Save("P")) == told.steps
    assert (Restore(0, "S"), Warm("P"), Save("P")) == plan(TWO, ledger(Nothing()), able, THERE).steps


@kinds
def test_the_prefix_itself_is_better_than_its_stem(able: Capabilities) -> None:
    """Where it has a checkpoint nothing is prefilled."""
    told = plan(TODAY, ledger(Nothing()), able, replace(THERE, has_checkpoint=True, may_save=False))
    assert (Restore(0, "P"),) == told.steps


@pytest.mark.parametrize(
    ("holds", "able", "is_restored"),
    [
        (talk("xy", "Y"), NO_ROLLBACK, True),
        (talk("xy", "Y"), SWA_FULL, False),
        (CAME_BACK, SWA_FULL, True),
        (STEM, NO_ROLLBACK, False),
        (STEM, SWA_FULL, False),
    ],
    ids=["can't go back", "goes back", "came back with its window only", "the stem itself", "the stem, swa-full"],
)
def test_a_stem_is_restored_where_the_server_finds_less_by_itself(
    holds: Holding, able: Capabilities, is_restored: bool
) -> None:
    """Yesterday's conversation in the slot: what the server can go back to in it is as good; it is kept in any case."""
    told = plan(TODAY, ledger(holds), able, THERE)
    assert is_restored == (Restore(0, "S") in told.steps), told
    assert Warm("P") in told.steps
    assert (holds is not STEM) == (Copy(0) in told.steps)


def test_in_mid_conversation_the_stem_is_all_that_can_be_had() -> None:
    """The conversation goes on under another date: the rest is prefilled by the request itself."""
    asked = replace(TODAY, has_past=True)
    told = plan(asked, ledger(Nothing()), NO_ROLLBACK, replace(THERE, new_stems=frozenset("T")))
    assert ((Restore(0, "S"),), Source.RESTORE, STEM_TOKENS) == (told.steps, told.source, told.expected_cache_n)
    assert "mid_conversation" == plan(asked, ledger(Nothing()), NO_ROLLBACK, NEW).reason


@pytest.mark.parametrize(
    ("asked", "able", "disk"),
    [
        (replace(TODAY, stems=(("S", 20),), sizes=(100_000,)), NO_ROLLBACK, THERE),
        (TODAY, replace(NO_ROLLBACK, restores=False), replace(THERE, new_stems=frozenset("T"))),
        (TODAY, NO_ROLLBACK, replace(NEW, may_save=False)),
    ],
    ids=["too small a part for the server to see", "nothing is ever restored", "nothing may be saved"],
)
def test_no_stem_where_it_would_be_of_no_use(asked: Need, able: Capabilities, disk: Disk) -> None:
    """Neither restored nor saved."""
    told = plan(asked, ledger(Nothing()), able, disk)
    assert not {Restore(0, "S"), Save("S"), Clear(0)} & set(told.steps), told


def test_with_one_slot_to_prepare_stems_change_no_other() -> None:
    """Restored into that one, what it held is copied before; nothing is emptied elsewhere."""
    told = plan(TODAY, ledger(talk("z", "Q"), talk("y", "Q")), NO_ROLLBACK, THERE, only_slot=1)
    assert (Copy(1), Restore(1, "S"), Warm("P"), Save("P")) == told.steps
    shares = ledger(talk("xy", "Y"), talk("y", "Q"))
    assert "other_slot" == plan(TODAY, shares, NO_ROLLBACK, THERE, only_slot=1).reason
    made = ledger(CAME_BACK, Nothing())
    made.copied(anchored("S")[0])
    assert "other_slot" == plan(FIRST_TURN, made, replace(SWA_FULL, total_slots=2), only_slot=0).reason
    alone = ledger(CAME_BACK)
    alone.copied(anchored("S")[0])
    assert Keep("S") in plan(FIRST_TURN, alone, SWA_FULL, only_slot=0).steps


def test_what_a_prompt_of_the_stem_alone_shares() -> None:
    """With the prefix that it is of all of it, with another no more than that shares with the prefix."""
    asked = only_prefix(replace(TWO, common=(("Y", 70), ("Q", 5))), "S", STEM_TOKENS)
    held = (STEM, Prefix("T", 40), Prefix("P", PREFIX_TOKENS), Prefix("Y", 90), Prefix("Q", 90), talk("ab"))
    assert [60, 40, 60, 60, 5, 60] == [share(asked, holding) for holding in held]
    assert STEM_TOKENS == share(only_prefix(TODAY, "P", PREFIX_TOKENS), STEM)


FIRST_TURN = replace(TWO, rest_tokens=20)
LEFT = (Keep("P"), Anchor())


def anchored(*keys: str) -> tuple[Talk, ...]:
    """Anchors of stems in host memory."""
    sizes = dict(TWO.stems)
    return tuple(
        Talk(of_prefix(key), (200,), sizes[key] + 1, sizes[key] + 1, key, sizes[key], is_anchor=True) for key in keys
    )


def test_without_files_a_window_leaves_anchors_of_its_stems() -> None:
    """On the way to the prefix, whose own follow; where the server can't roll back they would be of no use."""
    told = plan(FIRST_TURN, ledger(Nothing()), SWA_FULL)
    assert (Keep("T"), Keep("S"), Warm("P"), *LEFT) == told.steps
    assert not {Keep("T"), Keep("S")} & set(plan(FIRST_TURN, ledger(Nothing()), NO_ROLLBACK).steps)
    assert not {Keep("T"), Keep("S")} & set(plan(replace(FIRST_TURN, has_past=True), ledger(Nothing()), SWA_FULL).steps)


@pytest.mark.parametrize(
    ("holds", "left", "expected"),
    [
        (Nothing(), "TS", (Keep("S"), Warm("P"), *LEFT)),
        (Nothing(), "T", (Keep("T"), Keep("S"), Warm("P"), *LEFT)),
        (CAME_BACK, "TS", (Copy(0), Clear(0), Keep("S"), Warm("P"), *LEFT)),
        (talk("xy", "Y"), "TS", (Copy(0), Warm("P"), *LEFT)),
    ],
    ids=["both are there", "one is there", "in the place of a window", "a slot serves as well"],
)
def test_a_new_prefix_goes_on_from_the_longest_anchor_of_a_stem(
    holds: Holding, left: str, expected: tuple[Step, ...]
) -> None:
    """Loaded by a prompt of its own; a longer one is left on the way."""
    made = ledger(holds)
    for anchor in anchored(*left):
        made.copied(anchor)
    assert expected == plan(FIRST_TURN, made, SWA_FULL).steps
    assert [STEM_TOKENS] == [share(TWO, anchor) for anchor in anchored("S")]


FARTHER = (("Y", PREFIX_TOKENS - 1),)
"""The slot's prefix has all but the end in common."""


@pytest.mark.parametrize("disk", [NEW, Disk()], ids=["files", "anchors"])
def test_no_stem_is_made_of_what_a_slot_has_and_more(disk: Disk) -> None:
    """Its end would have to be gone back to, and what the slot has beyond prefilled again."""
    asked = replace(FIRST_TURN, common=FARTHER)
    steps = plan(asked, ledger(replace(talk("xy", "Y"), prefix_tokens=90)), SWA_FULL, disk).steps
    assert Warm("P") in steps
    assert not {Warm("T"), Warm("S"), Keep("T"), Keep("S")} & set(steps), steps


@pytest.mark.parametrize("able", [replace(NO_ROLLBACK, keeps_copies=False, total_slots=2), SWA_FULL], ids=repr)
def test_no_stem_is_put_over_somebody_else_s_conversation(able: Capabilities) -> None:
    """Of a long prompt the tools are less than a tenth, of the stem that ends with them all."""
    asked = replace(FIRST_TURN, prefix_tokens=1000, common=(("Q", 40),))
    made = ledger(talk("z", "Q"), Nothing())
    for disk, only in ((NEW, None), (Disk(), None), (NEW, 1), (Disk(), 1)):
        steps = plan(asked, made, able, disk, only).steps
        assert not {Warm("T"), Warm("S"), Keep("T"), Keep("S")} & set(steps), steps
    beside = plan(asked, ledger(Nothing(), Nothing()), able, NEW).steps
    assert {Warm("T"), Warm("S")} <= set(beside)
