"""What the history remembers, and what it forgets."""

import asyncio

import pytest

from proxy.serving.events import Left, Proceeded, Settled, Troubled, WarmedUp
from proxy.serving.history import MAX_ADVICE, History
from proxy.slots.plan import Source
from tests.serving.admin.tickets import ticket

NOON = 1_795_953_600.0


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


def test_a_request_that_is_over_is_remembered_with_its_own_figures() -> None:
    """Tokens from the answer, waiting told apart by what it was for."""
    history = History(Clock())
    history(Settled(ticket(), 0.5))
    past = history.latest(9)[0]
    assert (2830, 30, 2800) == (past.prompt_tokens, past.prefilled_tokens, past.reused_tokens)
    assert (4.0, 10.0, 40.0) == (past.queued_ms, past.prepared_ms, past.first_token_ms)
    assert ("hit", "answered", 1) == (past.source, past.outcome, past.number)


@pytest.mark.parametrize(
    ("source", "saved"),
    [
        (Source.HIT, 2800),
        (Source.RESTORE, 2800),
        (Source.RESUME, 2800),
        (Source.CONTINUE, 0),
        (Source.WARM_UP, 0),
        (Source.NONE, 0),
    ],
)
def test_saved_is_only_what_had_been_prepared(source: Source, saved: int) -> None:
    """Not what the server reuses by itself, nor what a warm-up prefilled a moment before."""
    history = History(Clock())
    history(Settled(ticket(source), 0.5))
    assert saved == history.today.saved_tokens
    assert saved * 0.5 / 1000 == pytest.approx(history.today.saved_s)


def test_the_days_sums_begin_anew_at_midnight() -> None:
    """Yesterday's requests stay in the list."""
    clock = Clock()
    history = History(clock)
    history(WarmedUp(2800))
    history(Settled(ticket(), 0.5))
    assert (1, 2800, 2800) == (history.today.requests, history.today.warm_up_tokens, history.today.reused_tokens)
    clock.now += 86_400
    assert (0, 0, 0) == (history.today.requests, history.today.warm_up_tokens, history.today.reused_tokens)
    assert 1 == len(history.latest(9))


def test_a_request_that_nobody_answered_is_remembered_once() -> None:
    """One that was answered is entered when it is accounted for, not when it leaves."""
    history = History(Clock())
    unanswered, answered = ticket(status=0), ticket()
    for one in (unanswered, answered):
        history(Proceeded(one))
        history(Left(one))
    history(Settled(answered, 0.5))
    assert ["answered", "unanswered"] == [past.outcome for past in history.latest(9)]
    assert {} == history.running


def test_it_is_bounded() -> None:
    """The oldest requests and the troubles said longest ago go."""
    history = History(Clock(), limit=10)
    for number in range(25):
        history(Settled(ticket(), 0.5))
        history(Troubled(f"reason:{number}", "words"))
    for number in range(MAX_ADVICE):
        history(Troubled(f"later:{number}", "words"))
    assert [25, 24, 23] == [past.number for past in history.latest(3)]
    assert 10 == len(history.requests)
    assert MAX_ADVICE == len(history.advice)
    assert "reason:24" not in history.advice


def test_a_trouble_that_comes_back_is_counted_and_goes_to_the_end() -> None:
    """Newest last, with how often and since when."""
    clock = Clock()
    history = History(clock)
    for reason in ("a", "b", "a"):
        history(Troubled(reason, "words"))
        clock.now += 1
    assert ["b", "a"] == list(history.advice)
    assert (2, NOON, NOON + 2) == (history.advice["a"].times, history.advice["a"].first_at, history.advice["a"].last_at)


def test_only_what_came_after_a_number_is_told_again() -> None:
    """A page that has seen some gets the rest."""
    history = History(Clock())
    for _ in range(5):
        history(Settled(ticket(), 0.5))
    assert [5, 4] == [past.number for past in history.latest(200, after=3)]


async def test_a_change_wakes_all_who_wait() -> None:
    """Each page waits for itself; none misses a change that came before it waited."""
    history = History(Clock())
    waiting = [asyncio.ensure_future(history.changed(0)) for _ in range(3)]
    await asyncio.sleep(0)
    history.touch()
    assert [1, 1, 1] == await asyncio.gather(*waiting)
    assert 1 == await history.changed(0)
