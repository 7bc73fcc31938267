"""The client leaves: at any moment and in any way, the upstream's connection ends within a second."""

import asyncio
import contextlib
import select

import pytest

from tests.serving.route import HOST, Route, both_loops, route, run
from tests.wire import Message, Peer, RawClient, client

GET = b"GET /slow HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SOON_S = 1.0
STALLED_S = 0.3
PIECE = b"x" * (1 << 16)

every_way = pytest.mark.parametrize("way", ["reset", "close", "half_close"])


def leave(visitor: RawClient, way: str) -> None:
    getattr(visitor, way)()


async def ended_soon(path: Route) -> None:
    """The upstream's side of the connection is over, and so is ours."""
    async with asyncio.timeout(SOON_S):
        for peer in path.upstream.peers:
            await peer.closed.wait()
        await path.seen[-1].over.wait()
    assert path.seen[-1].ends == [False]
    assert path.upstream.open == 0


@both_loops
@every_way
def test_client_leaves_while_the_upstream_thinks(loop: str, way: str) -> None:
    """Before the upstream's headers there is nothing to write, and still the departure is noticed."""
    asked = asyncio.Event()

    async def script(peer: Peer, _: Message) -> None:
        asked.set()
        await peer.gone()

    async def scenario() -> None:
        async with route(script) as path, client(path.port) as visitor:
            await visitor.send(GET)
            await asked.wait()
            leave(visitor, way)
            await ended_soon(path)

    run(loop, scenario())


@both_loops
@every_way
def test_client_leaves_in_mid_answer(loop: str, way: str) -> None:
    """Between two pieces of a stream, with nothing in flight."""

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(CHUNKED + b"3\r\nabc\r\n")
        await peer.gone()

    async def scenario() -> None:
        async with route(script) as path, client(path.port) as visitor:
            await visitor.send(GET)
            await visitor.head()
            assert await visitor.chunk() == b"abc"
            leave(visitor, way)
            await ended_soon(path)

    run(loop, scenario())


@both_loops
@every_way
def test_client_leaves_without_having_read(loop: str, way: str) -> None:
    """All buffers are full: nothing can be flushed, so the end must not wait for a flush."""
    stalled = asyncio.Event()

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(CHUNKED)
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(STALLED_S):
                    await peer.send(b"10000\r\n" + PIECE + b"\r\n")
        stalled.set()
        await peer.gone()

    async def scenario() -> None:
        async with route(script) as path, client(path.port, receive_buffer=4096, limit=1024) as visitor:
            await visitor.send(GET)
            await stalled.wait()
            leave(visitor, way)
            await ended_soon(path)

    run(loop, scenario())


@both_loops
@every_way
@pytest.mark.parametrize("limit", [None, 1 << 20])
def test_client_leaves_in_mid_upload(loop: str, way: str, limit: int | None) -> None:
    """Half a body is never a request: the upstream sees its connection end, or none where bodies are read whole."""
    begun = asyncio.Event()

    async def script(peer: Peer, _: Message) -> None:
        begun.set()
        await peer.reader.readexactly(5)
        await peer.gone()

    async def scenario() -> None:
        async with route(script, whole=False, limit=limit) as path, client(path.port) as visitor:
            await visitor.send(b"POST /up HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\n12345")
            if limit is None:
                await begun.wait()
            leave(visitor, way)
            async with asyncio.timeout(SOON_S):
                while path.listener.connections or path.upstream.open:
                    await asyncio.sleep(0)
            assert (1 if limit is None else 0) == len(path.upstream.requests)

    run(loop, scenario())


@both_loops
@pytest.mark.parametrize("way", ["reset", "half_close"])
def test_client_leaves_while_its_upload_is_not_taken(loop: str, way: str) -> None:
    """Our reading is paused then, and an event loop tells nothing of a connection that it does not read."""
    hung_up = asyncio.Event()

    async def script(peer: Peer, _: Message) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        poll = select.poll()
        poll.register(peer.writer.get_extra_info("socket").fileno(), select.POLLHUP | select.POLLRDHUP)
        await asyncio.to_thread(poll.poll, 10_000)
        hung_up.set()

    async def scenario() -> None:
        async with route(script, whole=False) as path, client(path.port) as visitor:
            await visitor.send(b"POST /up HTTP/1.1\r\n" + HOST + b"Content-Length: 100000000\r\n\r\n")
            while not path.upstream.peers:
                await asyncio.sleep(0)
            (connection,) = path.listener.connections
            while connection.transport is not None and connection.transport.is_reading():
                await visitor.send(PIECE[:4096])
                await asyncio.sleep(0)
            leave(visitor, way)
            async with asyncio.timeout(SOON_S):
                await hung_up.wait()
                await path.seen[-1].over.wait()
            assert path.seen[-1].ends == [False]

    run(loop, scenario())
