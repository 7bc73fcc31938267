"""Answers of every shape come back as they were."""

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from tests.serving.route import HOST, Route, answer, route
from tests.wire import Message, Peer, Script, client

GET = b"GET /x HTTP/1.1\r\n" + HOST + b"\r\n"


def saying(*words: bytes, close: bool = False) -> Script:
    async def script(peer: Peer, _: Message) -> None:
        for word in words:
            await peer.send(word)
        if close:
            peer.close()

    return script


def through(*words: bytes, close: bool = False) -> AbstractAsyncContextManager[Route]:
    """A route whose upstream answers each request with these words."""
    return route(saying(*words, close=close))


async def test_headers_come_back_as_they_were() -> None:
    """Order, spelling, repetitions and bytes beyond UTF-8 are kept, none is added, the connection's own go."""
    head = (
        b"HTTP/1.1 200 Very  OK\r\ncontent-TYPE: text/x\r\nX-A: 1\r\nSet-Cookie: a=1\r\n"
        b"Connection: close, X-Mine\r\nX-Mine: 1\r\n"
        b"Keep-Alive: timeout=5, max=100\r\nset-cookie: b=2\r\nx-a: \xe9\r\n"
        b"X-Accel-Buffering: no\r\nContent-Length: 2\r\n\r\n"
    )
    async with through(head, b"ok", close=True) as path, client(path.port) as visitor:
        message = await visitor.ask(GET)
        expected = [
            (b"content-TYPE", b"text/x"),
            (b"X-A", b"1"),
            (b"Set-Cookie", b"a=1"),
            (b"set-cookie", b"b=2"),
            (b"x-a", b"\xe9"),
            (b"X-Accel-Buffering", b"no"),
            (b"Content-Length", b"2"),
        ]
        assert (b"HTTP/1.1 200 Very  OK", expected) == (message.start, message.headers)
        assert b"ok" == (await visitor.ask(GET)).body
        assert [] == path.upstream.requests[1].values(b"cookie")


@pytest.mark.parametrize(
    ("method", "head"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"),
        (b"HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (b"HEAD", b"HTTP/1.1 200 OK\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\nETag: x\r\n\r\n"),
        (b"OPTIONS", b"HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Origin: *\r\n\r\n"),
        (b"DELETE", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ],
)
async def test_an_answer_without_a_body(method: bytes, head: bytes) -> None:
    """The head is all there is, byte for byte, and the connection takes the next request."""
    async with through(head) as path, client(path.port) as visitor:
        for _ in range(2):
            await visitor.send(method + b" / HTTP/1.1\r\n" + HOST + b"\r\n")
            assert head == await visitor.reader.readexactly(len(head))
            async with asyncio.timeout(1):
                await path.seen[-1].over.wait()
        assert [[True], [True]] == [seen.ends for seen in path.seen]


async def test_a_redirect_is_passed_and_not_followed() -> None:
    """307 with its place; one request upstream."""
    words = answer(b"there", b"Location: http://127.0.0.1:9/there", status=b"307 Temporary Redirect")
    async with through(words) as path, client(path.port) as visitor:
        message = await visitor.ask(GET)
        assert (307, [b"http://127.0.0.1:9/there"], b"there") == (
            message.status,
            message.values(b"location"),
            message.body,
        )
        assert 1 == len(path.upstream.requests)


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
async def test_an_answer_that_ends_with_the_connection(version: bytes) -> None:
    """It has no length, and is given none: it ends with the client's connection too."""
    async with through(version + b" 200 OK\r\n\r\n", b"all of it", close=True) as path, client(path.port) as visitor:
        message = await visitor.ask(GET)
        assert (b"HTTP/1.1 200 OK", [(b"Connection", b"close")]) == (message.start, message.headers)
        assert b"all of it" == message.body
        assert [True] == path.seen[0].ends


async def test_an_answer_with_both_length_and_chunks_is_refused() -> None:
    """Two ways of telling the end in one answer is how one answer is read as two."""
    words = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    async with through(words) as path, client(path.port) as visitor:
        assert 502 == (await visitor.ask(GET)).status


async def test_informational_answers_before_the_real_one() -> None:
    """They are not carried, and don't disturb."""
    words = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    async with through(words, answer(b"real")) as path, client(path.port) as visitor:
        assert b"real" == (await visitor.ask(GET)).body


async def test_event_streams_pass_byte_for_byte() -> None:
    """Comments, CRLF, events cut anywhere, several lines of data, an end mark: nothing is read into them."""
    pieces = [b": ping\n\n", b'data: {"a"', b":1}\r\n\r\ndata: x\ndata: y\n\n", b"data: [DONE]\n\n"]
    words = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with through(head, *words, b"0\r\n\r\n") as path, client(path.port) as visitor:
        assert b"".join(pieces) == (await visitor.ask(GET)).body
        assert b"".join(pieces) == path.seen[0].data


async def test_headers_come_before_the_first_piece_of_the_body() -> None:
    """A stream's head is passed while the server still thinks."""
    headed = asyncio.Event()

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await headed.wait()
        await peer.send(b"2\r\nok\r\n0\r\n\r\n")

    async with route(script) as path, client(path.port) as visitor:
        await visitor.send(GET)
        assert 200 == (await visitor.head()).status
        headed.set()
        assert b"ok" == await visitor.chunk()


async def test_errors_of_the_upstream_are_not_ours() -> None:
    """Status, headers and body of its refusals pass unaltered."""
    for status in (b"400 Bad Request", b"401 Unauthorized", b"404 Not Found", b"500 Oops", b"503 Service Unavailable"):
        body = b'{"error":{"message":"its own","type":"x"}}'
        words = answer(body, b"Content-Type: application/json", status=status)
        async with through(words) as path, client(path.port) as visitor:
            message = await visitor.ask(GET)
            assert (b"HTTP/1.1 " + status, body) == (message.start, message.body)


async def test_the_watcher_sees_each_answer_once() -> None:
    """Status, the whole body, one end."""
    async with through(answer(b"seen")) as path, client(path.port) as visitor:
        await visitor.ask(GET)
        await path.seen[0].over.wait()
        assert (200, b"seen", [True]) == (path.seen[0].status, path.seen[0].data, path.seen[0].ends)
