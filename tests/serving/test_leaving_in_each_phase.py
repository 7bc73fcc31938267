"""A client of a real server leaves in each phase of its request: nothing is held for it any more within a second."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest

from proxy.demo.servers import LlamaServer
from proxy.demo.sessions import Body, session
from proxy.serving import outbound
from tests.conftest import StartLlama
from tests.load.quiet import at_rest
from tests.load.test_stuck import talkative
from tests.serving.route import HOST
from tests.serving.running import Running, ask_server, running, sessions
from tests.wire import RawClient, client

SOON_S = 1.0
PATIENCE_S = 15.0
SLOW = ("-np", "1", "-b", "64", "-ub", "64")
HIGH_WATER = 1 << 16
OPEN_HERE = {"01", "08"}
"""Established, and ended by the other side only."""


@pytest.fixture(autouse=True)
def none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that waits for the next request would be taken for one of the client's that has left."""
    monkeypatch.setattr(outbound, "REUSE_S", 0.001)


def connections(port: int) -> set[str]:
    """Our ends of the connections to this port that we hold open."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[2].endswith(f":{port:04X}") and row[3] in OPEN_HERE}


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.005)


def post(body: Body) -> bytes:
    data = orjson.dumps(body)
    return b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(data) + data


class Scene:
    """A proxy, its server, and the client that will leave."""

    def __init__(self, proxied: Running, server: LlamaServer, visitor: RawClient) -> None:
        self.proxied, self.server, self.visitor = proxied, server, visitor

    async def in_warm_up(self) -> None:
        """We prefill its prefix."""
        await self.visitor.send(post(session("/a", prefix_tokens=6000, max_tokens=8)))
        await until(lambda: self.proxied.heard.begun_warm_ups > 0 and bool(connections(self.server.port)))

    async def before_headers(self) -> None:
        """An answer that is not streamed is being made."""
        await self.visitor.send(post({**long_answer(), "stream": False, "stream_options": None}))
        await until(lambda: any(ticket.was_sent for ticket in self.proxied.proxy.engine._inside.values()))
        await self._at_work()

    async def in_prefill(self) -> None:
        """The headers are there, and thousands of tokens before the first one of the answer."""
        await self.visitor.send(post(session("/a", prefix_tokens=400, max_tokens=8, user="look " * 8000)))
        await self.visitor.head()

    async def in_decode(self) -> None:
        """Pieces of the answer come."""
        await self.visitor.send(post(long_answer()))
        await self.visitor.head()
        for _ in range(5):
            await self.visitor.chunk()

    async def not_reading(self) -> None:
        """More has come than it takes."""
        await self.visitor.send(post({**talkative(session("/a", prefix_tokens=400)), "max_completion_tokens": 2000}))
        listener = self.proxied.proxy._listener
        assert listener is not None
        await until(lambda: any(unsent(connection.transport) > HIGH_WATER for connection in listener.connections))

    async def _at_work(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not (await ask_server(self.server, "/slots"))[0]["is_processing"]:
                await asyncio.sleep(0.05)


def unsent(transport: asyncio.Transport | None) -> int:
    return transport.get_write_buffer_size() if transport is not None else 0


def long_answer() -> Body:
    return session("/a", prefix_tokens=400, max_tokens=8000)


PHASES: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "warm-up": Scene.in_warm_up,
    "before-headers": Scene.before_headers,
    "prefill": Scene.in_prefill,
    "decode": Scene.in_decode,
    "not-reading": Scene.not_reading,
}


@pytest.mark.parametrize("way", ["reset", "half_close"])
@pytest.mark.parametrize("phase", PHASES)
async def test_the_client_leaves(start_llama: StartLlama, phase: str, way: str) -> None:
    """Within a second its connections to the server are closed and its place is free; then nothing is held at all."""
    server = start_llama("dense", *SLOW)
    async with running(server) as proxied:
        async with client(proxied.proxy.port, receive_buffer=4096, limit=1024) as visitor:
            await PHASES[phase](Scene(proxied, server, visitor))
            its_own = connections(server.port)
            assert its_own
            getattr(visitor, way)()
            async with asyncio.timeout(SOON_S):
                while its_own & connections(server.port) or proxied.proxy.engine.model.gate.inside:
                    await asyncio.sleep(0.005)
        await at_rest(proxied)
        await until(lambda: not connections(server.port))
        assert 200 == (await proxied.ask(sessions("/b", tokens=400)[0])).status


@pytest.mark.parametrize("way", ["reset", "half_close"])
async def test_the_client_leaves_while_it_waits_for_a_slot(start_llama: StartLlama, way: str) -> None:
    """Its request never reaches the server, and the one that works there goes on."""
    server = start_llama("dense", *SLOW)
    async with running(server) as proxied, client(proxied.proxy.port) as first:
        await first.send(post(long_answer()))
        await first.head()
        busy, tasks = connections(server.port), (await ask_server(server, "/slots"))[0]["id_task"]
        model = proxied.proxy.engine.model
        async with client(proxied.proxy.port) as visitor:
            await visitor.send(post(sessions("/b")[0]))
            await until(lambda: 1 == model.gate.waiting)
            getattr(visitor, way)()
            async with asyncio.timeout(SOON_S):
                while model.gate.waiting or len(model.interest) > 0:
                    await asyncio.sleep(0.005)
        assert await first.chunk()
        assert (busy, 1) == (connections(server.port), model.gate.inside)
        first.reset()
        await proxied.heard.until(lambda: bool(proxied.heard.requests))
    assert tasks == (await ask_server(server, "/slots"))[0]["id_task"]
