"""Listening and ending: requests in progress get the time they are given, and not more."""

import asyncio

import orjson
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from proxy.serving.inbound import listen, read_whole
from tests.serving.route import HOST, both_loops, route, run
from tests.wire import Message, Peer, client

GET = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@both_loops
def test_closing_waits_for_the_answer_in_progress(loop: str) -> None:
    """The stream goes on to its end while no new connection is taken, and idle ones are closed at once."""
    finish = asyncio.Event()

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(CHUNKED + b"2\r\nab\r\n")
        await finish.wait()
        await peer.send(b"2\r\ncd\r\n0\r\n\r\n")

    async def scenario() -> None:
        async with route(script) as path, client(path.port) as visitor, client(path.port) as idle:
            await visitor.send(GET)
            await visitor.head()
            closing = asyncio.create_task(path.listener.close(10))
            assert b"" == await idle.rest()
            with pytest.raises(ConnectionRefusedError):
                async with client(path.port):
                    pass
            finish.set()
            assert b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n" == await visitor.rest()
            await closing
            assert [True] == path.seen[0].ends

    run(loop, scenario())


@both_loops
def test_closing_waits_for_an_upload_in_progress(loop: str) -> None:
    """A request that has begun may be finished by its client."""

    async def script(peer: Peer, message: Message) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n" + message.body)

    async def scenario() -> None:
        async with route(script) as path, client(path.port) as visitor:
            await visitor.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\na")
            while not path.seen:
                await asyncio.sleep(0)
            closing = asyncio.create_task(path.listener.close(10))
            await asyncio.sleep(0)
            assert b"abc" == (await visitor.ask(b"bc")).body
            await closing

    run(loop, scenario())


@both_loops
def test_closing_cuts_what_is_not_over_in_time(loop: str) -> None:
    """After the limit the client's connection is reset, without a last chunk, and the upstream's is closed."""

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(CHUNKED + b"2\r\nab\r\n")
        await peer.gone()

    async def scenario() -> None:
        async with route(script) as path, client(path.port) as visitor:
            await visitor.send(GET)
            await visitor.head()
            async with asyncio.timeout(1):
                await path.listener.close(0.05)
                await path.upstream.peers[0].closed.wait()
            with pytest.raises(ConnectionResetError):
                await visitor.rest()
            assert [False] == path.seen[0].ends

    run(loop, scenario())


async def test_an_error_of_ours_is_answered_as_one() -> None:
    """500 in the shape of our errors, logged once, without the request's words."""

    async def broken(_: web.BaseRequest) -> web.StreamResponse:
        raise LookupError("whatever")

    listener = await listen(broken, "127.0.0.1", 0)
    with capture_logs() as lines:
        async with client(listener.port) as visitor:
            message = await visitor.ask(GET)
        assert (500, "proxy_error") == (message.status, orjson.loads(message.body)["error"]["type"])
        assert [] == message.values(b"server") + message.values(b"date")
    await listener.close()
    assert [("request_failed", "LookupError")] == [(line["event"], line["error"]) for line in lines]


async def test_a_malformed_request_leaves_no_words_in_the_log() -> None:
    """What a client sends is nobody's business."""

    async def never(_: web.BaseRequest) -> web.StreamResponse:
        raise AssertionError

    listener = await listen(never, "127.0.0.1", 0)
    with capture_logs() as lines:
        async with client(listener.port) as visitor:
            await visitor.send(b"GET / HTTP/1.1\r\nHost: x\r\nsecret\r\n\r\n")
            await visitor.rest()
    await listener.close()
    assert [] == lines


@pytest.mark.parametrize(("limit", "whole"), [(4, False), (5, True), (6, True)])
@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"],
)
async def test_a_body_is_read_whole_up_to_the_limit(limit: int, whole: bool, framing: bytes) -> None:
    """Exactly the limit is still whole."""
    read: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        read.set_result(await read_whole(request, limit))
        return web.Response()

    listener = await listen(handle, "127.0.0.1", 0)
    async with client(listener.port) as visitor:
        await visitor.ask(b"POST / HTTP/1.1\r\n" + HOST + framing)
        assert whole == (b"hello" == read.result())
    await listener.close()
