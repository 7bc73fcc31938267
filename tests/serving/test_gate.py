"""Admission and the turn: first come first served, and no place is lost or doubled whoever leaves, whenever."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.serving.gate import Gate, Turn


async def settle() -> None:
    """Let everything that can go on go on."""
    for _ in range(5):
        await asyncio.sleep(0)


async def waiting(gate: Gate, places: int = 1) -> "asyncio.Task[int]":
    task = asyncio.create_task(gate.enter(places))
    await settle()
    return task


async def test_a_gate_of_unknown_size_lets_everybody_in() -> None:
    """Before the server was met nobody waits for it."""
    gate = Gate()
    assert [1, 7, 2] == [await gate.enter(places) for places in (1, 7, 2)]
    assert (10, 0) == (gate.inside, gate.waiting)


async def test_as_many_go_in_as_there_are_slots_and_the_rest_in_order_of_arrival() -> None:
    gate = Gate()
    gate.resize(2)
    tasks = [await waiting(gate) for _ in range(4)]
    assert [True, True, False, False] == [task.done() for task in tasks]
    gate.leave(1)
    await settle()
    assert [True, True, True, False] == [task.done() for task in tasks]
    gate.leave(1)
    assert 1 == await tasks[3]


async def test_nobody_overtakes_one_who_needs_more_places() -> None:
    """Two answers at once wait for two places; a later request for one does not slip past."""
    gate = Gate()
    gate.resize(2)
    await gate.enter()
    two, one = await waiting(gate, 2), await waiting(gate)
    assert (False, False, 2) == (two.done(), one.done(), gate.waiting)
    gate.leave(1)
    assert 2 == await two
    assert not one.done()
    gate.leave(2)
    assert 1 == await one


async def test_more_places_than_there_are_count_as_all() -> None:
    """Otherwise it would wait for ever; the server itself refuses such a request."""
    gate = Gate()
    gate.resize(2)
    assert 2 == await gate.enter(9)
    gate.leave(2)
    assert 0 == gate.inside


async def test_who_asked_for_more_than_a_shrunken_gate_has_gets_in_when_it_is_empty() -> None:
    gate = Gate()
    gate.resize(4)
    await gate.enter()
    big = await waiting(gate, 4)
    gate.resize(2)
    gate.leave(1)
    assert 4 == await big


async def test_a_gate_that_grows_lets_the_waiting_in() -> None:
    gate = Gate()
    gate.resize(1)
    await gate.enter()
    later = await waiting(gate)
    gate.resize(2)
    assert 1 == await later


async def test_one_who_leaves_the_head_of_the_queue_lets_the_next_in() -> None:
    """The place that was too small for the one who left is enough for the next."""
    gate = Gate()
    gate.resize(2)
    await gate.enter()
    two, one = await waiting(gate, 2), await waiting(gate)
    two.cancel()
    assert 1 == await one


async def test_one_who_is_cancelled_in_the_moment_of_admission_gives_the_place_on() -> None:
    """The place was already his, though he never learned of it."""
    gate = Gate()
    gate.resize(1)
    await gate.enter()
    first, second = await waiting(gate), await waiting(gate)
    gate.leave(1)
    first.cancel()
    assert 1 == await second
    assert first.cancelled()
    assert 1 == gate.inside


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(1, 4)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.just("resize"), st.integers(1, 4)),
        st.tuples(st.just("settle"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_any_life_of_a_gate(steps: list[tuple[str, int]]) -> None:
    """Whatever order of arrivals, departures and cancellations, also between a permit and its being taken up."""
    asyncio.run(live(steps))


async def live(steps: list[tuple[str, int]]) -> None:
    gate, size = Gate(), 2
    gate.resize(size)
    tasks: list[asyncio.Task[int]] = []
    gone: set[asyncio.Task[int]] = set()

    def inside() -> "list[asyncio.Task[int]]":
        return [task for task in tasks if task.done() and not task.cancelled() and task not in gone]

    for what, number in steps:
        match what:
            case "enter":
                tasks.append(asyncio.create_task(gate.enter(number)))
            case "cancel" if tasks:
                tasks[number % len(tasks)].cancel()
            case "leave" if inside():
                leaver = inside()[number % len(inside())]
                gone.add(leaver)
                gate.leave(leaver.result())
            case "resize":
                size = number
                gate.resize(size)
            case "settle":
                await settle()
                check(gate, tasks, inside())
    await settle()
    check(gate, tasks, inside())
    while entered := inside():  # everybody gets in, one after the other
        gone.add(entered[0])
        gate.leave(entered[0].result())
        await settle()
    assert all(task.done() for task in tasks)
    assert (0, 0) == (gate.inside, gate.waiting)


def check(gate: Gate, tasks: "list[asyncio.Task[int]]", inside: "list[asyncio.Task[int]]") -> None:
    outside = [task for task in tasks if not task.done()]
    assert sum(task.result() for task in inside) == gate.inside
    assert len(outside) == gate.waiting
    assert not outside or inside, "somebody waits for an empty server"
    if outside and inside:
        assert max(map(tasks.index, inside)) < min(map(tasks.index, outside)), "somebody was overtaken"


# --- the turn ------------------------------------------------------------------------------------------------------


async def test_one_at_a_time_in_order_of_arrival() -> None:
    turn, order = Turn(), list[str]()

    async def go(name: str) -> None:
        await turn.take(name)
        order.append(name)

    tasks = [asyncio.create_task(go(name)) for name in "abc"]
    for expected in ("a", "ab", "abc"):
        await settle()
        assert expected == "".join(order)
        turn.give_back(expected[-1])
    await asyncio.gather(*tasks)
    assert turn.is_free


async def test_only_the_holder_can_give_it_back_and_only_once() -> None:
    """A ticket that is settled twice, or that never had the turn, frees nobody else's."""
    turn = Turn()
    await turn.take("a")
    turn.give_back("b")
    assert not turn.is_free
    turn.give_back("a")
    await turn.take("b")
    turn.give_back("a")
    assert not turn.is_free


async def test_a_turn_handed_over_ends_with_the_new_holder() -> None:
    """A warm-up goes on for others after its client has left."""
    turn, flight = Turn(), object()
    await turn.take("a")
    later = asyncio.create_task(turn.take("b"))
    turn.hand_over("a", flight)
    turn.give_back("a")
    await settle()
    assert not later.done()
    turn.give_back(flight)
    await later


async def test_who_does_not_have_the_turn_hands_over_nothing() -> None:
    turn = Turn()
    await turn.take("a")
    turn.hand_over("b", "c")
    turn.give_back("c")
    assert not turn.is_free
    turn.give_back("a")
    assert turn.is_free


async def before_it_started(task: "asyncio.Task[None]", turn: Turn) -> None:
    task.cancel()


async def while_it_waits(task: "asyncio.Task[None]", turn: Turn) -> None:
    await settle()
    task.cancel()


async def as_it_is_granted(task: "asyncio.Task[None]", turn: Turn) -> None:
    await settle()
    turn.give_back("a")
    task.cancel()


@pytest.mark.parametrize("leaves", [before_it_started, while_it_waits, as_it_is_granted])
async def test_a_waiter_that_is_cancelled_never_holds_the_turn(
    leaves: Callable[["asyncio.Task[None]", Turn], Awaitable[None]],
) -> None:
    """At every point of its wait."""
    turn = Turn()
    await turn.take("a")
    task = asyncio.create_task(turn.take("b"))
    later = asyncio.create_task(turn.take("c"))
    await leaves(task, turn)
    await settle()
    assert task.cancelled()
    turn.give_back("a")
    await later
    turn.give_back("c")
    assert turn.is_free
