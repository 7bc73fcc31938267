"""The one who asked leaves at each single place where the engine waits for something: nothing stays of it.

The places are not listed but counted: a request's way through the engine is driven step by step and cancelled at its
first wait, then, in front of another proxy, at its second, and so on until it gets through.
"""

import asyncio
import itertools
import math
import types
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from multidict import CIMultiDict

from proxy.demo.sessions import USER_AGENTS, Body, next_turn
from proxy.serving.ticket import Ticket
from proxy.serving.visit import understand
from tests.faults.pretender import TEXT, Pretender
from tests.load.quiet import at_rest
from tests.serving.running import Running, running, sessions
from tests.wire import recording

(ONE, ANOTHER), (OTHER,) = sessions("/a", "/b", tokens=400), sessions("/c", tokens=400, seed=5)
WAYS: dict[str, tuple[list[Body], Body, str]] = {
    "warm-up": ([], ONE, "warm-up"),
    "continue": ([ONE], next_turn(ONE, TEXT, "go on"), "continue"),
    "restore": ([ONE, OTHER], ANOTHER, "restore"),
    "resume": ([ONE, OTHER], next_turn(ONE, TEXT, "go on"), "resume"),
}
"""What was asked before, what is asked then, and what the engine does for it."""
FEWEST_WAITS = {"warm-up": 12, "continue": 1, "restore": 8, "resume": 5, "behind others": 2}
"""With fewer it would not be driven through what it does."""


@types.coroutine
def stepped(work: Coroutine[Any, Any, Any], at: int) -> Generator[Any, Any, Any]:
    """Do the work, and cancel whoever does it at that wait."""
    sent: Any = None
    error: BaseException | None = None
    for count in itertools.count(1):
        try:
            waited = work.send(sent) if error is None else work.throw(error)
        except StopIteration as done:
            return done.value
        if count == at and (task := asyncio.current_task()) is not None:
            task.cancel()
        sent, error = None, None
        try:
            sent = yield waited
        except BaseException as thrown:
            error = thrown
    return None


NEVER = 0


def entering(proxied: Running, body: Body, at: int) -> "asyncio.Task[Ticket]":
    """Enter the engine as far as that wait; cancelled where it is one."""
    headers = CIMultiDict({"User-Agent": USER_AGENTS["1.6"]})
    visit = understand(orjson.dumps(body), headers, proxied.proxy.settings)
    work = proxied.proxy.engines.enter(visit)

    async def driven() -> Ticket:
        _, ticket = await stepped(work, at)
        assert isinstance(ticket, Ticket)
        return ticket

    return asyncio.create_task(driven())


async def enter(proxied: Running, body: Body, at: int) -> Ticket | None:
    """Enter the engine as far as that wait; None where it was one."""
    task = entering(proxied, body, at)
    await asyncio.wait({task})
    return None if task.cancelled() else task.result()


async def check(proxied: Running, before: set[str], slots: Path) -> None:
    """As it was before: nothing held, no file but whole ones that the index knows; and what is believed comes true."""
    await at_rest(proxied)
    index = proxied.proxy.engine.store.index
    assert index is not None
    names = {path.name for path in slots.iterdir()}
    assert before <= names
    assert {f"pi-prefix-{key}.bin" for key in index.records} == names
    answers = [await proxied.ask(body) for body in (ONE, OTHER, ANOTHER, next_turn(ONE, TEXT, "and on"))]
    assert [TEXT] * 4 == [answer.text for answer in answers]
    assert "none" not in proxied.sources[-4:]
    assert [] == [reason for reason in proxied.heard.troubles if reason.startswith("claim:")]


@asynccontextmanager
async def with_files(home: Path) -> AsyncIterator[tuple[Running, Path]]:
    """A proxy with checkpoints in front of a pretended server, and where these are."""
    (slots := home / "slots").mkdir(parents=True)
    async with (
        recording(Pretender(directory=slots).script) as upstream,
        running(f"http://127.0.0.1:{upstream.port}/v1", persist=True, slot_dir=slots, dir=home / "index") as proxied,
    ):
        yield proxied, slots


@pytest.mark.parametrize("way", WAYS)
async def test_leaving_at_every_wait(tmp_path: Path, way: str) -> None:
    """Ledger, index, leases and files are as before, however far it got."""
    asked_before, body, source = WAYS[way]
    for at in itertools.count(1):
        async with with_files(tmp_path / str(at)) as (proxied, slots):
            for earlier in asked_before:
                await proxied.ask(earlier)
            before = {path.name for path in slots.iterdir()}
            # Of long ago, so that it has to look first whether the server is still the same.
            proxied.proxy.engine.model.last_answer = -math.inf
            ticket = await enter(proxied, body, at)
            if ticket is not None:
                ticket.settle()
            await check(proxied, before, slots)
        if ticket is not None:
            break
    assert ticket is not None
    assert source == str(ticket.plan.source)
    assert FEWEST_WAITS[way] < at


async def test_leaving_at_every_wait_behind_others(tmp_path: Path) -> None:
    """In the queue, too: whoever stands behind the one who leaves gets in, and nothing is held for him."""
    for at in itertools.count(1):
        async with with_files(tmp_path / str(at)) as (proxied, slots):
            await proxied.ask(OTHER)
            inside = await enter(proxied, ONE, NEVER)
            assert inside is not None
            proxied.proxy.engine.model.last_answer = -math.inf
            leaving = entering(proxied, ANOTHER, at)
            gate = proxied.proxy.engine.model.gate
            while not leaving.done() and not gate.waiting:
                await asyncio.sleep(0)
            behind = entering(proxied, OTHER, NEVER)
            while gate.waiting < 1 + (not leaving.done()):
                await asyncio.sleep(0)
            inside.settle()
            if not leaving.done():
                await asyncio.wait({leaving})
            if not leaving.cancelled():
                leaving.result().settle()
            (await behind).settle()
            before = {path.name for path in slots.iterdir()}
            await check(proxied, before, slots)
        if not leaving.cancelled():
            break
    assert FEWEST_WAITS["behind others"] < at


async def test_leaving_in_the_moment_of_getting_in(tmp_path: Path) -> None:
    """Whichever turn of the event loop that is: the place that it was just given is free again."""
    async with with_files(tmp_path) as (proxied, slots):
        await proxied.ask(OTHER)
        gate = proxied.proxy.engine.model.gate
        for turns in range(8):
            inside = await enter(proxied, ONE, NEVER)
            leaving = entering(proxied, ANOTHER, NEVER)
            while not gate.waiting:
                await asyncio.sleep(0)
            assert inside is not None
            inside.settle()
            for _ in range(turns):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait({leaving})
            assert leaving.cancelled()
            await at_rest(proxied)
        await check(proxied, set(), slots)
