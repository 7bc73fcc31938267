"""A client that has said all it has to say and ends its sending: what comes soon it is still told, then it has left."""

import asyncio

import pytest

from tests.serving.route import HOST, answer, both_loops, route, run
from tests.wire import Message, Peer, RawClient, client

POST = b"POST / HTTP/1.1\r\n" + HOST
ASKS = {
    "get": (b"GET / HTTP/1.1\r\n" + HOST + b"\r\n", b""),
    "http-1.0": (b"GET / HTTP/1.0\r\n\r\n", b""),
    "length": (POST + b"Content-Length: 3\r\n\r\nabc", b"abc"),
    "chunked": (POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
}


async def echo(peer: Peer, message: Message) -> None:
    await peer.send(answer(b"told " + message.body))


async def all_of(visitor: RawClient) -> bytes:
    """Everything until the connection is closed; a reset raises."""
    async with asyncio.timeout(5):
        return await visitor.rest()


@both_loops
@pytest.mark.parametrize("limit", [None, 1 << 20], ids=["streamed", "whole"])
@pytest.mark.parametrize(("words", "body"), ASKS.values(), ids=ASKS.keys())
def test_one_request_and_no_more(loop: str, limit: int | None, words: bytes, body: bytes) -> None:
    """The answer comes whole, and the connection is closed after it."""

    async def scenario() -> None:
        async with route(echo, limit=limit) as path, client(path.port) as visitor:
            await visitor.send(words)
            visitor.half_close()
            assert (await all_of(visitor)).endswith(b"\r\n\r\ntold " + body)
            assert [True] == path.seen[0].ends

    run(loop, scenario())


@both_loops
def test_several_requests_and_no_more(loop: str) -> None:
    """Each is answered, in their order."""

    async def scenario() -> None:
        async with route(echo) as path, client(path.port) as visitor:
            await visitor.send(b"".join(POST + b"Content-Length: 1\r\n\r\n%d" % number for number in range(3)))
            visitor.half_close()
            said = await all_of(visitor)
            assert [b"told 0", b"told 1", b"told 2"] == [part[:6] for part in said.split(b"\r\n\r\n")[1:]]

    run(loop, scenario())


@both_loops
def test_what_is_no_request_and_no_more(loop: str) -> None:
    """It is told so."""

    async def scenario() -> None:
        async with route(echo) as path, client(path.port) as visitor:
            await visitor.send(b"GARBAGE\r\n\r\n")
            visitor.half_close()
            assert (await all_of(visitor)).startswith(b"HTTP/1.1 400 ")
            assert [] == path.upstream.requests

    run(loop, scenario())


@both_loops
def test_an_answer_that_begins_soon_and_goes_on(loop: str) -> None:
    """Nobody can tell whether it is still read: it ends in a reset, within a second."""

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
        await peer.gone()

    async def scenario() -> None:
        async with route(script) as path, client(path.port) as visitor:
            await visitor.send(ASKS["get"][0])
            visitor.half_close()
            await visitor.head()
            assert b"ab" == await visitor.chunk()
            async with asyncio.timeout(1):
                with pytest.raises(ConnectionResetError):
                    await visitor.rest()
                await path.upstream.peers[0].closed.wait()

    run(loop, scenario())
