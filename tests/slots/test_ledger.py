"""The ledger: what looks may take away, what they may not add, and what no sequence of events can break."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.slots.holding import Holding, Nothing, Prefix, Talk, Unknown
from proxy.slots.ledger import MAX_COPIES, Ledger, Look
from tests.slots.beliefs import PREFIX_TOKENS, bare, ledger, look, need, talk


def holdings(of: Ledger) -> list[Holding]:
    return [belief.holds for belief in of.slots]


# --- looks ----------------------------------------------------------------------------------------------------------


def test_a_first_look_at_a_fresh_server_finds_nothing_in_its_slots() -> None:
    """Slots that never ran anything are empty, and all that will happen will have been seen."""
    made = Ledger(2)
    made.first_look([look(0, None), look(1, None)])
    assert ([Nothing(), Nothing()], True) == (holdings(made), made.saw_start)


def test_a_first_look_at_a_server_in_use_claims_nothing() -> None:
    """What ran before we came may be anything."""
    made = Ledger(3)
    made.first_look([look(0, None), look(1, 7, 500), look(2, 9, 5, is_busy=True)])
    assert ([Nothing(), Unknown(500), Unknown(5)], False) == (holdings(made), made.saw_start)
    assert [0, 1] == [belief.slot for belief in made.idle()]


def test_slots_used_before_we_came_are_as_old_as_their_tasks() -> None:
    """The server's order of use starts with slots never used, then goes by what ended first."""
    made = Ledger(3)
    made.first_look([look(0, 9, 1), look(1, None), look(2, 4, 1)])
    assert [1, 2, 0] == [belief.slot for belief in sorted(made.slots, key=lambda belief: belief.last_used)]


def seen_holding(holding: Holding, task: int | None = 5, at: float = 0.0) -> Ledger:
    """One slot that was seen holding what it is believed to hold, and another, empty one; its clock stands still."""
    made = ledger(holding, Nothing(), clock=lambda: at)
    made.observe([look(0, task, holding.n_tokens), look(1, None)], ours=[0])
    assert holding == made.slots[0].holds
    return made


@pytest.mark.parametrize("holding", [talk("ab"), bare(), Nothing(), Unknown(7)], ids=repr)
def test_a_foreign_task_makes_a_slot_unknown(holding: Holding) -> None:
    """Another task number than ours left: somebody else used the slot, even if its length is the same."""
    made = seen_holding(holding)
    assert [0] == made.observe([look(0, 6, 240)])
    assert Unknown(240) == made.slots[0].holds


@pytest.mark.parametrize("holding", [talk("ab"), bare()], ids=repr)
def test_a_foreign_task_seen_at_work_makes_the_slot_unknown_when_it_has_ended(holding: Holding) -> None:
    """That it was busy when first seen does not make the new task number an old one."""
    made = seen_holding(holding)
    assert [] == made.observe([look(0, 6, holding.n_tokens, is_busy=True)])
    assert [] == [belief.slot for belief in made.idle() if belief.slot == 0]
    assert [] == made.observe([look(0, 6, holding.n_tokens, is_busy=True)])
    assert [0] == made.observe([look(0, 6, holding.n_tokens)])
    assert Unknown(holding.n_tokens) == made.slots[0].holds


def test_another_ones_look_does_not_hide_that_a_task_is_new() -> None:
    """A request of ours that has just begun is still recognised by its task number after somebody else's look."""
    made = seen_holding(bare())
    made.observe([look(0, 6, 10, is_busy=True)])
    seen = made.slots[0].seen
    assert seen is not None
    assert (5, True) == (seen.task, seen.is_busy)


def test_our_own_task_is_no_surprise() -> None:
    """What the caller did itself only moves the task number on."""
    made = seen_holding(bare())
    assert [] == made.observe([look(0, 6, PREFIX_TOKENS)], ours=[0])
    assert [] == made.observe([look(0, 6, PREFIX_TOKENS)])
    assert bare() == made.slots[0].holds


def test_the_task_number_that_a_prompt_of_ours_leaves_is_no_surprise_to_another_ones_look() -> None:
    """It is known that there will be a new one before it is seen; the one after that is a stranger's."""
    made = seen_holding(bare())
    made.prompted(0, talk("ab"))
    assert [] == made.observe([look(0, 6, 220)])
    assert talk("ab") == made.slots[0].holds
    assert [0] == made.observe([look(0, 7, 220)])


def test_a_stranger_right_behind_a_prompt_of_ours_is_told_by_the_length() -> None:
    """The number that is seen first may be its task's."""
    made = seen_holding(bare())
    made.prompted(0, talk("ab"))
    assert [0] == made.observe([look(0, 7, 90)])
    assert Unknown(90) == made.slots[0].holds


@pytest.mark.parametrize("task", [5, 6])
def test_a_look_asked_for_before_a_change_tells_nothing_of_it(task: int) -> None:
    """It shows what was there before; of the other slots it tells what it shows."""
    made = seen_holding(talk("ab"), at=2.0)
    made.hold(0, Nothing())
    made.slots[1].changed_at = 0.0
    shown = [replace(look(slot, number, 220), asked_at=1.0) for slot, number in ((0, task), (1, 7))]
    assert [1] == made.observe(shown)
    assert Nothing() == made.slots[0].holds
    assert [0] == made.observe(shown, ours=[0])


def test_of_a_slot_that_may_be_a_request_s_own_nothing_is_concluded() -> None:
    """It is over, and its account will tell which slot it was in; of the others the look tells what it shows."""
    made = seen_holding(talk("ab"))
    made.hold(1, talk("x"))
    assert [1] == made.observe([look(0, 6, 240), look(1, None, 7)], ours=[0], pending=[0])
    assert talk("ab") == made.slots[0].holds
    assert [0] == made.observe([look(0, 6, 240)])


def test_a_look_that_was_overtaken_tells_nothing() -> None:
    """Of two that were asked for one after the other, the second may come first."""
    made = seen_holding(talk("ab"))
    made.observe([replace(look(0, 6, 220), asked_at=2.0)], ours=[0])
    assert [] == made.observe([replace(look(0, 5, 220), asked_at=1.0)])
    assert talk("ab") == made.slots[0].holds


@pytest.mark.parametrize(
    ("holding", "n_tokens", "stays"),
    [
        (talk("ab"), 220, True),
        (talk("ab"), 219, True),
        (talk("ab"), 217, False),
        (talk("ab", is_whole=False), 90, True),
        (bare(), PREFIX_TOKENS, True),
        (bare(), PREFIX_TOKENS + 1, False),
        (Nothing(), 3, False),
        (Unknown(3), 900, True),
    ],
)
def test_a_length_that_does_not_fit_ends_a_belief(holding: Holding, n_tokens: int, stays: bool) -> None:
    """A slot that grew or shrank without a task of its own holds something else now."""
    made = seen_holding(holding)
    assert ([] if stays else [0]) == made.observe([look(0, 5, n_tokens)])
    assert (holding if stays else Unknown(n_tokens)) == made.slots[0].holds


@pytest.mark.parametrize("holding", [talk("ab"), bare()], ids=repr)
def test_an_erased_slot_holds_nothing(holding: Holding) -> None:
    """No tokens, no task anywhere: somebody erased it, and no copy was made."""
    made = seen_holding(holding)
    assert [0] == made.observe([look(0, 5, 0), look(1, None)])
    assert (Nothing(), 0) == (made.slots[0].holds, len(made.copies))


def test_a_slot_emptied_as_a_task_began_elsewhere_was_moved_to_host_memory() -> None:
    """With default flags the server empties its idle slots whenever a task begins, after copying them."""
    made = seen_holding(talk("ab"))
    assert [] == made.observe([look(0, 5, 0), look(1, 6, 50, is_busy=True)])
    assert Nothing() == made.slots[0].holds
    assert talk("ab") == made.longest_copy(need("abc"))


def test_a_slot_that_ran_a_foreign_task_and_was_emptied_left_no_copy_of_ours() -> None:
    """What was moved then is what the stranger left there."""
    made = seen_holding(talk("ab"))
    made.hold(1, Unknown(50))
    assert [0] == made.observe([look(0, 6, 0), look(1, 7, 50)], ours=[1])
    assert (Nothing(), 0) == (made.slots[0].holds, len(made.copies))


def test_a_restored_slot_that_never_ran_anything_shows_no_length() -> None:
    """Right after a restore it looks fresh; the belief stays until a task begins elsewhere, which may empty it."""
    made = Ledger(2)
    made.first_look([look(0, None), look(1, None)])
    made.hold(0, bare(), has_run=False)
    assert [] == made.observe([look(0, None), look(1, None)])
    assert bare() == made.slots[0].holds
    made.observe([look(0, None), look(1, 4, 9)], ours=[1])
    assert [Nothing()] == holdings(made)[:1]


def test_a_leased_slot_is_not_judged() -> None:
    """While our request runs there, task and length are its own."""
    made = seen_holding(talk("ab"))
    made.lease(0, 1)
    assert [] == made.observe([look(0, 6, 3, is_busy=True)])
    assert [] == made.observe([look(0, 6, 0)])
    assert talk("ab") == made.slots[0].holds


@pytest.mark.parametrize("holding", [talk("ab"), bare()], ids=repr)
def test_a_build_that_tells_no_lengths_disproves_nothing_by_them(holding: Holding) -> None:
    """A missing length is no empty slot: only a foreign task ends a belief there."""
    made = seen_holding(holding)
    assert [] == made.observe([Look(0, 5, 0, is_busy=False, tells_length=False)])
    assert holding == made.slots[0].holds
    assert [0] == made.observe([Look(0, 6, 0, is_busy=False, tells_length=False)])
    assert Unknown() == made.slots[0].holds


def test_slots_that_we_do_not_know_are_passed_over() -> None:
    """A look at more slots than there were breaks nothing."""
    made = ledger(Nothing())
    assert [] == made.observe([look(1, 4, 9), look(-1, 4, 9)])


# --- leases, copies, order of use ----------------------------------------------------------------------------------


def test_two_leases_on_a_slot_are_refused_and_change_nothing() -> None:
    """An illegal event raises; the first lease stands."""
    made = ledger(Nothing())
    made.lease(0, 1)
    with pytest.raises(ValueError, match="leased to 1"):
        made.lease(0, 2)
    assert 1 == made.slots[0].lease


def test_of_another_process_no_request_has_lost_its_slot() -> None:
    """What one had left there when it was given to another prompt has gone with the process."""
    made = ledger(talk("ab"), busy=(0,))
    made.pass_on(0, None)
    made.forget()
    assert {} == made.displaced


def test_forgetting_keeps_the_leases() -> None:
    """Requests that are running go on running; everything else is gone."""
    made = ledger(talk("ab"), bare(), busy=(1,))
    made.copied(talk("x"))
    made.forget(3)
    assert ([Unknown()] * 3, [0, 101, 0], 0, False) == (
        holdings(made),
        [belief.lease for belief in made.slots],
        len(made.copies),
        made.saw_start,
    )


@pytest.mark.parametrize("turns", [("ab", "abcd"), ("abcd", "ab")], ids=["in order", "the later one first"])
def test_of_several_turns_the_latest_is_the_one_to_resume(turns: tuple[str, ...]) -> None:
    """The server keeps no prompt that another one contains, whichever came first."""
    made = ledger(Nothing())
    for letters in (*turns, "xy"):
        made.copied(talk(letters))
    assert talk("abcd") == made.longest_copy(need("abcdx"))
    made.taken(talk("abcd"))
    assert made.longest_copy(need("abcdx")) is None


def test_a_copy_takes_the_place_of_those_that_it_contains() -> None:
    """The server removes a prompt that another begins with; one with other tools stays, and so does a longer one."""
    made = ledger(Nothing())
    other_tools = replace(talk("abc", "Q"), inputs=b"others")
    for held in (talk("ab"), other_tools, talk("abx"), talk("abcd")):
        made.copied(held)
    assert [other_tools, talk("abcd")] == [c for c in made.copies.values() if c != talk("abx")]
    assert talk("abx") in made.copies.values()


def test_a_copy_that_is_there_already_keeps_its_place() -> None:
    """The server skips it; which one it loads goes by their order."""
    made = ledger(Nothing())
    for letters in ("ab", "xy", "ab"):
        made.copied(talk(letters))
    assert [talk("ab"), talk("xy")] == [*made.copies.values()]
    made.copied(talk("ab", answer=30))
    assert [talk("xy"), talk("ab", answer=30)] == [*made.copies.values()]


def test_which_copies_are_older() -> None:
    """In the order in which they came; of one that is not there, none are."""
    made = ledger(Nothing())
    for letters in ("ab", "xy", "uv"):
        made.copied(talk(letters))
    assert [(talk("ab"), talk("xy")), (), ()] == [made.older(talk(one)) for one in ("uv", "ab", "cd")]


@pytest.mark.parametrize("is_contested", [False, True])
def test_what_may_have_been_overwritten_was_not_moved(is_contested: bool) -> None:
    """A slot is found empty after a later task elsewhere: it was copied, unless another task stood in it before."""
    made = ledger(Nothing(), Nothing())
    made.observe([look(0, 5, 220), look(1, 4)])
    made.hold(0, talk("ab"), is_contested=is_contested)
    made.observe([look(0, 5, 0), look(1, 7, 900)], ours=[1])
    assert ([] if is_contested else [talk("ab")]) == [*made.copies.values()]
    assert Nothing() == made.slots[0].holds


def test_copies_are_bounded_and_only_conversations_are_remembered() -> None:
    """The oldest go first; a bare prefix can be had again."""
    made = ledger(Nothing())
    made.copied(bare())
    for number in range(MAX_COPIES + 1):
        made.copied(talk(chr(1000 + number)))
    assert MAX_COPIES == len(made.copies)
    assert made.longest_copy(need(chr(1000) + "b")) is None


def test_a_restore_does_not_make_a_slot_recently_used() -> None:
    """The server's order of use knows completions only."""
    made = ledger(talk("ab"), talk("xy"))
    before = made.slots[0].last_used
    made.hold(0, bare(), has_run=False)
    assert before == made.slots[0].last_used


def test_a_copy_makes_a_slot_recently_used() -> None:
    """It is a completion in that slot, seen by its task number."""
    made = seen_holding(talk("ab"))
    made.hold(1, talk("xy"))
    made.observe([look(0, 8, 220)], ours=[0])
    assert made.slots[0].last_used > made.slots[1].last_used


# --- any sequence --------------------------------------------------------------------------------------------------

SLOTS = 3
TALKS = [talk(letters) for letters in ("a", "ab", "abc", "xy")]
HOLDINGS = st.sampled_from([*TALKS, bare("P"), bare("Q"), Nothing(), Unknown(9)])
SLOT = st.integers(0, SLOTS - 1)
NUMBER = st.integers(1, 5)
LOOK = st.builds(
    look, SLOT, st.none() | st.integers(0, 6), st.sampled_from([0, 9, 80, 120, 220, 320]), is_busy=st.booleans()
)


class AnyLife(RuleBasedStateMachine):
    """Events in any order, beside a plain record of who was promised which slot."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(SLOTS)
        self.leases: dict[int, int] = {}

    @rule(slot=SLOT, holding=HOLDINGS, has_run=st.booleans())
    def hold(self, slot: int, holding: Holding, has_run: bool) -> None:
        self.ledger.hold(slot, holding, has_run=has_run)
        assert holding == self.ledger.slots[slot].holds

    @rule(slot=SLOT, number=NUMBER)
    def lease(self, slot: int, number: int) -> None:
        if self.leases.get(slot, number) != number:
            with pytest.raises(ValueError, match="leased"):
                self.ledger.lease(slot, number)
        else:
            self.ledger.lease(slot, number)
            self.leases[slot] = number

    @precondition(lambda self: self.leases)
    @rule(number=NUMBER, twice=st.booleans())
    def release(self, number: int, twice: bool) -> None:
        for _ in range(1 + twice):
            self.ledger.release(number)
        self.leases = {slot: held for slot, held in self.leases.items() if held != number}

    @rule()
    def forget(self) -> None:
        self.ledger.forget()
        assert {Unknown()} == {belief.holds for belief in self.ledger.slots}

    @rule(one=st.sampled_from(TALKS), is_gone=st.booleans())
    def copy(self, one: Talk, is_gone: bool) -> None:
        self.ledger.copied(one)
        if is_gone:
            self.ledger.taken(one)

    @rule(looks=st.lists(LOOK, max_size=SLOTS, unique_by=lambda one: one.slot), ours=st.sets(SLOT))
    def observe(self, looks: list[Look], ours: set[int]) -> None:
        before, copies = holdings(self.ledger), dict(self.ledger.copies)
        seen = {belief.slot: belief.seen for belief in self.ledger.slots}
        surprised = self.ledger.observe(looks, ours)
        for belief, held in zip(self.ledger.slots, before, strict=True):
            # A look never adds a belief: what was held stays, or less is known.
            assert belief.holds == held or isinstance(belief.holds, Unknown | Nothing)
            assert not belief.lease or belief.holds == held
        for one in looks:
            earlier = seen[one.slot]
            is_foreign = earlier is not None and earlier.task != one.task and one.slot not in ours
            if is_foreign and not one.is_busy and not self.ledger.slots[one.slot].lease:
                assert not isinstance(self.ledger.slots[one.slot].holds, Prefix | Talk)
                assert one.slot in surprised
        assert {*self.ledger.copies.values()} - {*copies.values()} <= {
            held for held in before if isinstance(held, Talk)
        }

    @invariant()
    def leases_are_as_promised(self) -> None:
        held = {belief.slot: belief.lease for belief in self.ledger.slots if belief.lease}
        assert self.leases == held
        assert not {belief.slot for belief in self.ledger.idle()} & held.keys()


AnyLife.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestAnyLife = AnyLife.TestCase
