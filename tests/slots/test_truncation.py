"""What came back with its window only: where it can be gone back to, and what becomes of who would farther."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import pytest

from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import NOWHERE_CUT, Holding, Need, Nothing, Prefix, Talk, Whole, of_prefix
from proxy.slots.host_memory import LEAST_WON
from proxy.slots.ledger import Ledger
from proxy.slots.plan import Clear, Copy, Keep, Restore, Source, Warm
from proxy.slots.planner import plan
from proxy.slots.restoring import Disk
from proxy.slots.truncation import is_resumable, is_spoilt, whole_after
from tests.slots.beliefs import PREFIX_TOKENS, bare, ledger, need, talk

FULL = Capabilities(total_slots=2, rolls_back=True, keeps_copies=True, copies_roll_back=False, window=512)
"""`--swa-full`."""
SMALL = replace(FULL, rolls_back=False, is_windowed=True, mark_distance=0, copies_roll_back=None)
"""A sliding window with the server's default cache."""
DENSE = replace(FULL, window=0, copies_roll_back=None)
ANCHOR = replace(talk("ab", answer=0), is_anchor=True)
OF_PREFIX = replace(ANCHOR, chain=of_prefix("P"), n_prompt=81, n_tokens=81, is_first=True)
FIRST = replace(need("ax"), rest_tokens=20)


def came_back(text: str, at: str) -> Talk:
    """A conversation that came back at the end of an earlier turn."""
    return replace(talk(text), whole=Whole(talk(at).n_tokens, len(at) + 1))


def with_copies(copies: Sequence[Talk], *holdings: Holding) -> Ledger:
    made = ledger(*holdings)
    for copy in copies:
        made.copied(copy)
    return made


@pytest.mark.parametrize(
    ("before", "copy", "cache_n", "whole"),
    [
        (Nothing(), talk("ab"), 220, Whole(220, 3)),
        (Nothing(), talk("ab"), 219, Whole(219, 3)),
        (Nothing(), talk("ab"), 200, Whole(220, 3)),
        (Nothing(), talk("ab"), 0, NOWHERE_CUT),
        (Nothing(), ANCHOR, 199, Whole(199, 2)),
        (Nothing(), OF_PREFIX, 80, Whole(80)),
        (came_back("abcd", "ab"), None, 420, Whole(220, 3)),
        (replace(bare(), whole=Whole(PREFIX_TOKENS)), None, PREFIX_TOKENS, Whole(PREFIX_TOKENS)),
        (talk("ab"), None, 220, NOWHERE_CUT),
        (Nothing(), None, 0, NOWHERE_CUT),
    ],
    ids=["end", "one less", "farther", "anew", "anchor", "prefix's", "went on", "restored", "all of it", "nothing"],
)
def test_where_a_slot_can_be_gone_back_to(before: Holding, copy: Talk | None, cache_n: int, whole: Whole) -> None:
    """To the end of what came back, less the one token whose window is there; of a dense model anywhere."""
    assert whole == whole_after(before, copy, cache_n, FULL)
    assert NOWHERE_CUT == whole_after(before, copy, cache_n, DENSE)


def test_the_smaller_cache_knows_what_it_has() -> None:
    """It goes back to a checkpoint, with all that is attended to there."""
    assert Whole(200, 3) == whole_after(Nothing(), talk("ab"), 200, SMALL)


@pytest.mark.parametrize("able", [FULL, replace(FULL, clears_idle=True)], ids=["stays", "cleared"])
def test_such_a_slot_is_moved_out_of_the_way_of_a_new_session(able: Capabilities) -> None:
    """And the prefix's anchor is loaded into an empty one; one that has everything is gone back in."""
    told = plan(FIRST, with_copies([OF_PREFIX], came_back("abcd", "ab"), Nothing()), able)
    copied = (Copy(1),) if able.clears_idle else (Copy(0), Clear(0))
    assert (*copied, Keep("P")) == told.steps[: len(copied) + 1]
    assert "host_memory_begins_with_prefix" == told.reason
    assert "conversation_begins_with_prefix" == plan(FIRST, with_copies([OF_PREFIX], talk("abcd")), able).reason


def test_without_host_memory_it_is_only_emptied() -> None:
    able = replace(FULL, keeps_copies=False, restores=True, acts_on_slots=True)
    told = plan(FIRST, ledger(came_back("abcd", "ab")), able, Disk(has_checkpoint=True))
    assert (Clear(0), Restore(0, "P")) == told.steps
    unknown = replace(able, keeps_copies=None)
    told = plan(FIRST, ledger(came_back("abcd", "ab")), unknown, Disk(has_checkpoint=True))
    assert (Copy(0), Clear(0), Restore(0, "P")) == told.steps


def test_an_edit_behind_its_end_stays_in_it() -> None:
    """There it has everything; an edit before goes elsewhere."""
    behind, before = need("abcx", has_past=True), need("abx", has_past=True)
    made = with_copies([OF_PREFIX], came_back("abcdef", "ab"))
    assert () == tuple(step for step in plan(behind, made, FULL).steps if isinstance(step, Clear))
    assert Clear(0) in plan(before, made, FULL).steps


def test_an_anchor_does_not_take_its_place() -> None:
    """It would be gone back in farther."""
    asked = need("abcx", has_past=True)
    told = [
        plan(asked, with_copies([ANCHOR], held), FULL).steps for held in (talk("abcdef"), came_back("abcdef", "ab"))
    ]
    assert [(Copy(0),), (Copy(0),)] == told


def test_a_warm_up_goes_over_it() -> None:
    """Anew: in an empty slot the server would load what was copied, and go back in that."""
    asked = replace(need("xy", "Q"), common=(("P", 70),))
    told = plan(asked, ledger(came_back("a", "a")), FULL)
    assert (Copy(0), Warm("Q")) == told.steps[:2]


def test_a_prompt_of_ours_would_be_spoilt() -> None:
    """By what it would go back in, in its slot or in what would be loaded there."""
    asked = need("ax")
    held: list[Holding] = [came_back("abcd", "ab"), talk("abcd"), Nothing()]
    assert [True, False, False] == [is_spoilt(asked, one, [], FULL) for one in held]
    assert [True, False] == [is_spoilt(asked, Nothing(), [copy], FULL) for copy in (talk("ab"), OF_PREFIX)]
    assert [False, False] == [is_spoilt(asked, one, [talk("ab")], DENSE) for one in (held[0], Nothing())]


@pytest.mark.parametrize(
    ("copy", "asked"),
    [
        (replace(talk("ab"), is_changed=True), need("abcx", has_past=True)),
        (talk("ab"), need("ab")),
    ],
    ids=["changed answers", "sent again"],
)
def test_a_copy_is_not_gone_back_in(copy: Talk, asked: Need) -> None:
    """An answer that came back changed is not what the copy has; nor is it when the question is asked again."""
    assert not is_resumable(asked, copy, FULL)
    assert is_resumable(asked, copy, DENSE)
    assert Source.RESUME is not plan(asked, with_copies([copy], Nothing()), FULL).source
    assert Source.RESUME is plan(asked, with_copies([copy], Nothing()), DENSE).source


def test_an_anchor_is_gone_back_in_by_its_last_token() -> None:
    assert is_resumable(need("abx", has_past=True), ANCHOR, FULL)


@pytest.mark.parametrize(("more", "source"), [(0, Source.HIT), (1, Source.RESUME)], ids=["less", "enough"])
@pytest.mark.parametrize("able", [FULL, replace(SMALL, clears_idle=True)], ids=["full", "small"])
def test_a_little_is_not_worth_a_slot_that_has_everything(able: Capabilities, more: int, source: Source) -> None:
    """What comes back has its window only, and who begins in it finds less; unless its slot has no more either."""
    least = ceil(LEAST_WON * 2000)
    asked = replace(need("abcx", has_past=True), prefix_tokens=2000)
    one, other = (replace(talk(text), prefix_tokens=2000, n_prompt=2000, n_tokens=2000) for text in ("abc", "xyz"))
    copy = replace(one, n_prompt=2000, n_tokens=2000 + least - 1 + more)
    assert source is plan(asked, with_copies([copy], other), able).source
    made = with_copies([copy], other)
    made.given_up["P"] = 1
    assert Source.RESUME is plan(asked, made, able).source
    no_more = replace(other, whole=Whole(2000, 1))
    assert Source.RESUME is plan(asked, with_copies([copy], no_more), able).source


def test_a_restored_prefix_has_no_more_than_its_window() -> None:
    """Another install that begins alike does not go back in it."""
    asked = replace(need("xy", "Q"), common=(("P", 70),))
    restored = replace(bare(), whole=Whole(PREFIX_TOKENS))
    assert isinstance(restored, Prefix)
    told = plan(asked, ledger(restored), replace(FULL, restores=True, acts_on_slots=True), Disk(has_checkpoint=True))
    assert (Copy(0), Clear(0), Restore(0, "Q")) == told.steps


@pytest.mark.parametrize(("restores", "truncates"), [(True, True), (None, False), (False, False)])
def test_a_server_that_was_not_probed_tells_by_a_restored_prefix(restores: bool | None, truncates: bool) -> None:
    """Of the smaller window cache none is ever reused."""
    able = Capabilities(window=512, restores=restores)
    assert truncates == able.truncates
    assert not replace(able, rolls_back=False).truncates


def test_a_long_slot_is_not_left_to_a_server_that_would_load_a_copy() -> None:
    """Less than half of it would stay, so the server looks into host memory, and goes back in what it finds there."""
    long = talk("bcdefgh")
    asked = replace(FIRST, rest_tokens=8)
    assert "conversation_begins_with_prefix" == plan(asked, with_copies([], long), FULL).reason
    copy = talk("ay")
    told = plan(asked, with_copies([OF_PREFIX, copy], long), FULL)
    assert ("host_memory_begins_with_prefix", True) == (told.reason, Keep("P") in told.steps)
    assert Warm("P") in plan(asked, with_copies([copy], long), FULL).steps
