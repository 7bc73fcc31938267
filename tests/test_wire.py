"""The test's own ends of the wire tell the truth: client and upstream without anything between."""

import asyncio

import pytest

from tests.wire import Message, Peer, client, recording


async def test_bytes_are_recorded_as_they_were_sent() -> None:
    """Start line, headers with their order and spelling, and a body by length or by chunks."""

    async def script(peer: Peer, message: Message) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n")

    async with recording(script) as upstream, client(upstream.port) as visitor:
        for body in (
            b"Content-Length: 2\r\n\r\nhi",
            b"Transfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n",
        ):
            answer = await visitor.ask(b"PUT /a?%zz HTTP/1.1\r\nx-B: 1\r\nX-b:2 \r\n" + body)
            assert (200, b"abc", [b"a", b"bc"]) == (answer.status, answer.body, answer.chunks)
    for request in upstream.requests:
        assert (b"PUT /a?%zz HTTP/1.1", b"hi") == (request.start, request.body)
        assert [(b"x-B", b"1"), (b"X-b", b"2")] == request.headers[:2]


async def test_a_failing_script_fails_the_block() -> None:
    """A claim made inside a script is not lost."""

    async def script(peer: Peer, _: Message) -> None:
        raise AssertionError("claim")

    async def scenario() -> None:
        async with recording(script) as upstream, client(upstream.port) as visitor:
            await visitor.send(b"GET / HTTP/1.1\r\n\r\n")
            await visitor.rest()

    with pytest.raises(AssertionError, match="claim"):
        await scenario()


async def test_a_reset_is_seen_as_one_and_a_close_as_an_end() -> None:
    """Both ends can tell the two apart."""

    async def script(peer: Peer, message: Message) -> None:
        (peer.reset if message.target == b"/reset" else peer.close)()

    async with recording(script) as upstream:
        async with client(upstream.port) as visitor:
            await visitor.send(b"GET /reset HTTP/1.1\r\n\r\n")
            with pytest.raises(ConnectionResetError):
                await visitor.rest()
        async with client(upstream.port) as visitor:
            await visitor.send(b"GET /close HTTP/1.1\r\n\r\n")
            assert b"" == await visitor.rest()


@pytest.mark.parametrize("way", ["reset", "close", "half_close"])
async def test_the_upstream_notices_that_its_client_has_gone(way: str) -> None:
    """In each way of going."""
    asked = asyncio.Event()

    async def script(peer: Peer, _: Message) -> None:
        asked.set()
        await peer.gone()

    async with recording(script) as upstream, client(upstream.port) as visitor:
        await visitor.send(b"GET / HTTP/1.1\r\n\r\n")
        await asked.wait()
        getattr(visitor, way)()
        await upstream.peers[0].closed.wait()
        assert 0 == upstream.open


async def test_what_is_no_chunk_is_no_answer() -> None:
    """A chunk of the wrong length is an error of the sender, not read over."""

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n")

    async with recording(script) as upstream, client(upstream.port) as visitor:
        with pytest.raises(ValueError, match="2 bytes"):
            await visitor.ask(b"GET / HTTP/1.1\r\n\r\n")
