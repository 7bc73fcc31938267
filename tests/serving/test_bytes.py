"""Nothing is altered: what leaves the client reaches the upstream, and what leaves the upstream reaches the client."""

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.random_http import BODY, CUTS, HEADERS, METHODS, SPECIAL, TARGET, Bench, chunked, framed, lines
from tests.serving.route import HOST, Route, answer, route
from tests.wire import Message, Peer, client


@pytest.fixture(scope="module", params=[None, 1 << 28], ids=["streamed", "whole"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench[Route]]:
    with asyncio.Runner() as runner:
        bench = Bench[Route](runner)
        runner.run(bench.open(partial(route, limit=request.param)))
        yield bench
        runner.run(bench.stack.aclose())


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    method=METHODS, target=TARGET, headers=HEADERS, body=BODY, cuts=CUTS, in_chunks=st.booleans(),
    reply=BODY, reply_headers=HEADERS, reply_cuts=CUTS, reply_in_chunks=st.booleans(),
    status=st.sampled_from([b"200 OK", b"201 Made Just So", b"404 Not Found", b"503 Loading", b"299 "]),
)  # fmt: skip
def test_any_request_and_any_answer_pass_unaltered(
    bench: Bench[Route],
    *,
    method: bytes,
    target: bytes,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    cuts: list[int],
    in_chunks: bool,
    reply: bytes,
    reply_headers: list[tuple[bytes, bytes]],
    reply_cuts: list[int],
    reply_in_chunks: bool,
    status: bytes,
) -> None:
    """Method, target, headers and body, in any pieces, streamed through or read whole."""

    async def example() -> None:
        reply_framing, reply_pieces = framed(reply, reply_cuts, reply_in_chunks)
        head = b"\r\n".join([b"HTTP/1.1 " + status, *lines(reply_headers), *reply_framing, b"", b""])
        bench.pieces = [head, *reply_pieces]
        framing, pieces = framed(body, cuts, in_chunks)
        start = b"%b %b HTTP/1.1" % (method, target)
        async with client(bench.path.port) as visitor:
            for piece in [b"\r\n".join([start, HOST.strip(), *lines(headers), *framing, b"", b""]), *pieces]:
                await visitor.send(piece)
                await asyncio.sleep(0)
            got = await visitor.answer()
        asked = bench.path.upstream.requests.pop()
        assert start == asked.start
        assert headers == [pair for pair in asked.headers if pair[0].decode().lower() not in SPECIAL]
        assert (body, in_chunks) == (asked.body, asked.chunked)
        assert b"HTTP/1.1 " + status == got.start
        assert reply_headers == [pair for pair in got.headers if pair[0].decode().lower() not in SPECIAL]
        assert (reply, reply_in_chunks) == (got.body, got.chunked)

    bench.runner.run(example())


@pytest.mark.parametrize("limit", [None, 1 << 28, 1_000_000])
async def test_a_large_body_both_ways(limit: int | None) -> None:
    """Streamed, read whole, or found too long to be read whole: the same bytes, and their echo."""
    size = 1_100_000
    body = hashlib.shake_256(b"seed").digest(size)

    async def echo(peer: Peer, message: Message) -> None:
        await peer.send(answer(message.body))

    async with route(echo, limit=limit) as path, client(path.port) as visitor:
        for framing in (framed(body, [size], False), framed(body, [70_000], True)):
            head = b"\r\n".join([b"POST /big HTTP/1.1", HOST.strip(), *framing[0], b"", b""])
            got = await visitor.ask(head + b"".join(framing[1]))
            assert hashlib.sha256(body).digest() == hashlib.sha256(got.body).digest()


async def test_ten_thousand_chunks_each_at_once() -> None:
    """The next chunk is made only after the client has seen the one before: one held back would stop it all."""
    count = 10_000
    seen = asyncio.Semaphore(0)

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(count):
            await peer.send(b"".join(chunked([b"data: %d\n\n" % number])[:1]))
            await seen.acquire()
        await peer.send(b"0\r\n\r\n")

    async with route(script) as path, client(path.port) as visitor:
        await visitor.send(b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n")
        await visitor.head()
        for number in range(count):
            assert b"data: %d\n\n" % number == await visitor.chunk()
            seen.release()
        assert b"" == await visitor.chunk()
        await path.seen[0].over.wait()
        assert b"data: 9999\n\n" == path.seen[0].data[-12:]
        assert [True] == path.seen[0].ends


async def test_each_piece_of_an_upload_at_once() -> None:
    """The client sends the next piece only after the upstream has the one before."""
    taken = asyncio.Semaphore(0)

    async def script(peer: Peer, _: Message) -> None:
        for number in range(100):
            assert b"%02d" % number == (await peer.reader.readuntil(b"\r\n") and await peer.reader.readexactly(2))
            await peer.reader.readexactly(2)
            taken.release()
        assert b"0\r\n\r\n" == await peer.reader.readexactly(5)
        await peer.send(answer(b"got it"))

    async with route(script, whole=False) as path, client(path.port) as visitor:
        await visitor.send(b"PUT /up HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
        for number in range(100):
            await visitor.send(b"2\r\n%02d\r\n" % number)
            await taken.acquire()
        await visitor.send(b"0\r\n\r\n")
        assert b"got it" == (await visitor.answer()).body


async def test_a_slow_reader_holds_the_upstream_back() -> None:
    """What a client does not read stays with the upstream, but for some buffers."""
    sent = 0
    stalled = asyncio.Event()
    piece = b"x" * (1 << 16)

    async def script(peer: Peer, _: Message) -> None:
        nonlocal sent
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        with contextlib.suppress(TimeoutError):
            while sent < 1_000_000_000:
                async with asyncio.timeout(0.5):
                    await peer.send(piece)
                sent += len(piece)
        stalled.set()
        await peer.gone()

    async with route(script) as path, client(path.port, receive_buffer=4096, limit=1024) as visitor:
        await visitor.send(b"GET /endless HTTP/1.1\r\n" + HOST + b"\r\n")
        await stalled.wait()
        assert 20_000_000 > sent


async def test_an_upload_is_held_back_by_a_slow_upstream() -> None:
    """What the upstream does not read stays with the client, but for some buffers."""
    piece = b"x" * (1 << 16)
    sent = 0

    async def script(peer: Peer, _: Message) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await peer.closed.wait()

    async with route(script, whole=False) as path, client(path.port) as visitor:
        await visitor.send(b"POST /up HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000000\r\n\r\n")
        with contextlib.suppress(TimeoutError):
            while sent < 1_000_000_000:
                async with asyncio.timeout(0.5):
                    await visitor.send(piece)
                sent += len(piece)
        assert 20_000_000 > sent
        visitor.reset()
