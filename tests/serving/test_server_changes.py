"""The server changes behind the proxy's back: it is noticed, nothing false is claimed, nobody gets an error."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from proxy.demo.models import Kind
from proxy.demo.servers import LlamaServer
from proxy.llama.client import ControlFailed
from tests.conftest import StartLlama
from tests.load.relay import Call, relay
from tests.serving.running import Answer, Running, ask_directly, ask_server, running, sessions
from tests.variants import servers

Change = Callable[[LlamaServer], Awaitable[None]]
flags = pytest.mark.parametrize("flags", [("-np", "1"), ()], ids=["one-slot", "default-flags"])


async def restarted(server: LlamaServer) -> None:
    server.restart()


async def slept(server: LlamaServer) -> None:
    async with asyncio.timeout(20):
        while not (await ask_server(server, "/props"))["is_sleeping"]:
            await asyncio.sleep(0.1)


async def used_by_another(server: LlamaServer) -> None:
    for body in sessions("/elsewhere", seed=9):
        await ask_directly(server, body)


async def erased(server: LlamaServer) -> None:
    for slot in range(len(await ask_server(server, "/slots"))):
        await ask_server(server, f"/slots/{slot}?action=erase", {})


changes = pytest.mark.parametrize("change", [restarted, slept, used_by_another, erased])


def time_passes(proxied: Running) -> None:
    """Make the last answer one of long ago."""
    proxied.proxy.engine.model.last_answer = -math.inf


@asynccontextmanager
async def warm(start: StartLlama, kind: Kind, folder: Path, *flags: str) -> AsyncIterator[tuple[LlamaServer, Running]]:
    """A server that was warmed through the proxy and served a session since."""
    server = start(kind, *flags, "--slot-save-path", str(folder), "--sleep-idle-seconds", "1")
    async with running(server) as proxied:
        for body in sessions("/a", "/b"):
            assert 200 == (await proxied.ask(body)).status
        yield server, proxied


async def test_gone_for_one_look_while_another_waits_for_its_answer(start_llama: StartLlama) -> None:
    """The one that waited meets the server again when the answer comes."""
    is_armed, is_asked, is_back = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow_once_then_refused_once(call: Call) -> None:
        if call.path != "/props" or not is_armed.is_set() or is_back.is_set():
            return
        if is_asked.is_set():
            raise web.HTTPServiceUnavailable
        is_asked.set()
        await is_back.wait()

    async with relay(start_llama(), slow_once_then_refused_once) as url, running(url) as proxied:
        await proxied.ask(sessions("/a", tokens=600)[0])
        acquaintance, model = proxied.proxy.engine.acquaintance, proxied.proxy.engine.model
        is_armed.set()
        slow = asyncio.create_task(acquaintance.glance({}, is_needed=True))
        await is_asked.wait()
        with pytest.raises(ControlFailed):
            await acquaintance.glance({}, is_needed=True)
        assert model.process is None
        is_back.set()
        assert await slow
        assert 200 == (await proxied.ask(sessions("/b", tokens=600)[0])).status


async def test_a_restart_is_noticed_where_the_server_answers_slowly(start_llama: StartLlama) -> None:
    """A conversation that goes on, too, is then not sent to it as if it were still there."""

    async def slowly(call: Call) -> None:
        await asyncio.sleep(0.1 if call.path == "/props" else 0)

    server = start_llama()
    (body,) = sessions("/a", tokens=600)
    async with relay(server, slowly) as url, running(url) as proxied:
        await proxied.ask(body)
        server.restart()
        time_passes(proxied)
        again = await proxied.ask(body)
    assert proxied.prefix.n_tokens <= again.reused, proxied.reasons


def false_hits(proxied: Running) -> list[tuple[str, int | None]]:
    """Requests that claimed a warm prefix and reused less than nine tenths of what was claimed."""
    return [
        (ticket.plan.reason, ticket.figures.cache_n)
        for ticket in proxied.heard.requests
        if ticket.plan.source in ("hit", "warm-up")
        and ticket.figures
        and (ticket.figures.cache_n or 0) < 0.9 * ticket.plan.expected_cache_n
    ]


@servers
@changes
async def test_the_change_is_noticed(
    start_llama: StartLlama, kind: Kind, flags: tuple[str, ...], change: Change, tmp_path: Path
) -> None:
    """The next session is served, finds the prefix warm again, and nothing false was claimed."""
    async with warm(start_llama, kind, tmp_path, *flags) as (server, proxied):
        await change(server)
        time_passes(proxied)
        answers = [await proxied.ask(body) for body in sessions("/c", "/d")]
        expected = proxied.prefix.n_tokens
    assert [200, 200] == [answer.status for answer in answers]
    assert [] == false_hits(proxied)
    begins_alone = "own_checkpoint_serves" == proxied.reasons[-2]
    assert not begins_alone or proxied.able_to_do_better_alone
    assert [not begins_alone, True] == [answer.reused >= expected - 517 for answer in answers], (
        expected,
        [(a.reused, a.prefilled) for a in answers],
        proxied.sources,
        proxied.reasons,
        proxied.heard.troubles,
    )


@flags
@pytest.mark.parametrize("change", [restarted, used_by_another, erased])
async def test_within_the_same_second(
    start_llama: StartLlama, flags: tuple[str, ...], change: Change, tmp_path: Path
) -> None:
    """A change so quick that nobody asks whether the server is the same one: at most one claim fails, and is told."""
    async with warm(start_llama, "dense", tmp_path, *flags) as (server, proxied):
        model = proxied.proxy.engine.model
        await change(server)
        model.last_answer = math.inf
        first: Answer = await proxied.ask(sessions("/c")[0])
        second: Answer = await proxied.ask(sessions("/d")[0])
        expected = proxied.prefix.n_tokens
    failed = false_hits(proxied)
    assert [200, 200] == [first.status, second.status]
    assert 1 >= len(failed)
    assert len(failed) == len([reason for reason in proxied.heard.troubles if reason.startswith("claim:")])
    assert second.reused >= expected
