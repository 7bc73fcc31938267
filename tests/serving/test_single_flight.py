"""Many sessions at once: one warm-up for all of them, in order, whoever leaves."""

import asyncio
from pathlib import Path

import pytest

from proxy.demo.sessions import Body
from tests.conftest import StartLlama
from tests.serving.running import Answer, Running, ask, ask_directly, running, sessions

flags = pytest.mark.parametrize("flags", [("-np", "1"), ()], ids=["one-slot", "default-flags"])
MANY = 20


async def at_once(proxied: Running, bodies: list[Body]) -> list["asyncio.Task[Answer]"]:
    """Ask all of them, each after the one before has arrived."""
    return [asyncio.create_task(ask(proxied.client, proxied.base_url, body)) for body in bodies]


def first_sessions(count: int) -> list[Body]:
    return sessions(*(f"/projects/{'deep/' * (number % 3)}{number}" for number in range(count)), tokens=2500)


@flags
async def test_twenty_first_sessions_make_one_warm_up(start_llama: StartLlama, flags: tuple[str, ...]) -> None:
    """Twenty sessions that begin together make one warm-up; only who shares the server with it prefills the prefix."""
    bodies = first_sessions(MANY)
    server = start_llama("dense", *flags)
    async with running(server) as proxied:
        answers = await asyncio.gather(*await at_once(proxied, bodies))
        await proxied.heard.until(lambda: MANY == len(proxied.heard.requests))
        expected = proxied.prefix.n_tokens
        slots = len(proxied.proxy.engine.model.ledger.slots)
        assert 0 == proxied.proxy.engine.model.gate.inside
    assert [200] * MANY == [answer.status for answer in answers]
    assert 1 == proxied.heard.begun_warm_ups
    assert slots > len([answer for answer in answers if answer.reused < expected]), proxied.reasons


async def test_everyone_gets_the_answer_to_their_own_question(start_llama: StartLlama) -> None:
    """Of sessions that begin together each gets the very answer it would have got alone, first come first served."""
    bodies = first_sessions(6)
    server = start_llama("dense", "-np", "1", "-fa", "off")
    alone = await ask_directly(server, *bodies)
    server.restart()
    async with running(server) as proxied:
        answers = await asyncio.gather(*await at_once(proxied, bodies))
        await proxied.heard.until(lambda: len(bodies) == len(proxied.heard.requests))
    assert [answer.text for answer in alone] == [answer.text for answer in answers]
    order = [ticket.number for ticket in proxied.heard.requests]
    assert sorted(order) == order


@flags
async def test_the_first_one_leaves_during_the_warm_up(start_llama: StartLlama, flags: tuple[str, ...]) -> None:
    """The warm-up that others wait for goes on without the client that began it, and stays the only one."""
    bodies = first_sessions(5)
    server = start_llama("dense", *flags)
    async with running(server) as proxied:
        first, *others = await at_once(proxied, bodies)
        await proxied.heard.until(lambda: 1 == proxied.heard.begun_warm_ups)
        model = proxied.proxy.engine.model
        async with asyncio.timeout(5):
            while model.interest.total() < len(bodies):
                await asyncio.sleep(0.005)
        assert not proxied.heard.warm_ups
        first.cancel()
        answers = await asyncio.gather(*others)
        await proxied.heard.until(lambda: len(others) == len(proxied.heard.requests))
        expected = proxied.prefix.n_tokens
        assert (0, True) == (model.gate.inside, model.turn.is_free)
    assert [200] * len(others) == [answer.status for answer in answers]
    assert 1 == proxied.heard.begun_warm_ups == len(proxied.heard.warm_ups)
    assert answers[0].reused >= expected


@pytest.mark.parametrize("how_many", [1, 3])
async def test_all_leave_during_the_warm_up(start_llama: StartLlama, how_many: int) -> None:
    """A warm-up that nobody waits for any more is ended, in the server too, and holds nobody up."""
    bodies = sessions("/a", "/b", "/c", tokens=12000)[:how_many]
    server = start_llama("dense", "-np", "1", "-b", "64", "-ub", "64")
    async with running(server) as proxied:
        asked = await at_once(proxied, bodies)
        model = proxied.proxy.engine.model
        await proxied.heard.until(lambda: 1 == proxied.heard.begun_warm_ups)
        while model.interest.total() < how_many:
            await asyncio.sleep(0.005)
        for task in asked:
            task.cancel()
            await asyncio.sleep(0.01)
        async with asyncio.timeout(1):
            while model.gate.inside or not model.turn.is_free or model.flights:
                await asyncio.sleep(0.01)
        answer = await proxied.ask(sessions("/b", tokens=1000, seed=2)[0])
    assert 200 == answer.status
    assert [] == [warm_up for warm_up in proxied.heard.warm_ups if warm_up.prompt_n > 10000]


@pytest.mark.parametrize(("of", "flights"), [("head", 2), ("stem", 1)])
async def test_somebody_else_leaves_during_the_warm_up(
    start_llama: StartLlama, tmp_path: Path, of: str, flights: int
) -> None:
    """A client that wanted something else and leaves ends none: a folder's head, or a stem, is prefilled and saved."""
    slots = tmp_path / "slots"
    slots.mkdir()
    (body,) = sessions("/a", tokens=600, project_context="run the tests before you say that it is done. " * 300)
    if of == "stem":
        (body,) = sessions("/a", tokens=4000)
        system = body["messages"][0]
        body["messages"][0] = {**system, "content": system["content"].replace("</rules>", "today\n</rules>")}
    title = {"messages": [{"role": "user", "content": "a title for this"}], "max_tokens": 1}
    server = start_llama("hybrid", "-np", "1", "-b", "64", "-ub", "64", "--slot-save-path", str(slots))
    async with running(server, persist=True, slot_dir=slots, dir=tmp_path / "index") as proxied:
        asked, *_ = await at_once(proxied, [body])
        model = proxied.proxy.engine.model
        await proxied.heard.until(lambda: flights == proxied.heard.begun_warm_ups)
        (other,) = await at_once(proxied, [title])
        async with asyncio.timeout(5):
            while model.interest.total() < 2:
                await asyncio.sleep(0.005)
            other.cancel()
            while model.interest.total() > 1:
                await asyncio.sleep(0.005)
        assert flights - 1 == len(proxied.heard.warm_ups)
        answer = await asked
        await proxied.heard.until(lambda: 1 == len(proxied.heard.requests))
        need = proxied.last.need
    assert (200, "warm-up") == (answer.status, proxied.sources[0])
    assert 0 < (need.head_tokens if of == "head" else need.prefix_tokens) <= answer.reused
    assert 2 == len(list(slots.glob("pi-prefix-*.bin")))
