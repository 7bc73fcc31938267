"""Requests of every shape: what is passed on, what is answered here, what is refused."""

import asyncio

import orjson
import pytest

from tests.serving.route import HOST, answer, route
from tests.wire import Message, Peer, client

TARGETS = [
    b"/%41",
    b"/a%2Fb",
    b"/%7Euser",
    b"/%zz",
    b"/./x",
    b"/v1/../slots",
    b"/a|b",
    b"/a?",
    b"/a?b=%20+c&d",
    b"//a//",
    b"/slots/0?action=erase",
    b"/" + b"long" * 5000,
]


async def ok(peer: Peer, _: Message) -> None:
    await peer.send(answer(b"ok"))


async def silent(peer: Peer, _: Message) -> None:
    raise AssertionError("this must not reach the upstream")


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target[:20].decode())
@pytest.mark.parametrize(("path", "prefix"), [("", b""), ("/v1", b""), ("/llm/v1/", b"/llm")])
async def test_the_target_arrives_byte_for_byte(target: bytes, path: str, prefix: bytes) -> None:
    """No dot is resolved, no escape changed, no question mark dropped; the prefix of BASE_URL stands before it."""
    async with route(ok, path=path) as way, client(way.port) as visitor:
        await visitor.ask(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        assert prefix + target == way.upstream.requests[0].target


async def test_an_absolute_target_never_leads_to_another_host() -> None:
    """Only path and query are used, and `Host` is the upstream's."""
    async with route(ok) as path, client(path.port) as visitor:
        await visitor.ask(b"GET http://elsewhere.test:99/a?b HTTP/1.1\r\nHost: elsewhere.test:99\r\n\r\n")
        (asked,) = path.upstream.requests
        assert (b"/a?b", [b"127.0.0.1:%d" % path.upstream.port]) == (asked.target, asked.values(b"host"))


@pytest.mark.parametrize("line", [b"CONNECT elsewhere.test:443 HTTP/1.1", b"OPTIONS * HTTP/1.1"])
async def test_what_no_reverse_proxy_does_is_refused(line: bytes) -> None:
    """A clean 501 and the end of the connection."""
    async with route(silent) as path, client(path.port) as visitor:
        await visitor.send(line + b"\r\n" + HOST + b"\r\n")
        head, _, body = (await visitor.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 501 ")
        assert "proxy_error" == orjson.loads(body)["error"]["type"]


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
async def test_an_upgrade_is_forwarded_as_the_plain_request_it_also_is(protocol: bytes) -> None:
    """`Upgrade` belongs to one connection; the answer is the upstream's, and the connection takes another request."""
    async with route(ok) as path, client(path.port) as visitor:
        asked = b"GET /ws HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n\r\n"
        assert b"ok" == (await visitor.ask(asked)).body
        assert b"ok" == (await visitor.ask(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")).body
        assert [] == [header for header in path.upstream.requests[0].headers if b"pgrade" in b"".join(header)]


async def test_headers_of_one_connection_are_dropped_and_all_others_kept() -> None:
    """What `Connection` names goes, except framing; order, spelling and repetitions of the rest stay; none is added."""
    async with route(ok) as path, client(path.port) as visitor:
        await visitor.ask(
            b"GET / HTTP/1.1\r\nx-a: 1\r\nhost: me\r\nConnection: keep-alive, X-Private, host\r\nKeep-Alive: 5\r\n"
            b"TE: trailers\r\nX-Private: mine\r\nX-A: 2\r\ncookie: a=b; c\r\nX-a:\r\nAuthorization: bearer k\r\n\r\n"
        )
        expected = [
            (b"x-a", b"1"),
            (b"host", b"127.0.0.1:%d" % path.upstream.port),
            (b"X-A", b"2"),
            (b"cookie", b"a=b; c"),
            (b"X-a", b""),
            (b"Authorization", b"bearer k"),
        ]
        assert expected == path.upstream.requests[0].headers


@pytest.mark.parametrize("body", [b"", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_an_empty_body_is_framed_as_it_came(body: bytes) -> None:
    """No length is invented for a POST without one, and an empty chunked body stays chunked."""
    async with route(ok) as path, client(path.port) as visitor:
        end = b"0\r\n\r\n" if b"chunked" in body else b""
        assert b"ok" == (await visitor.ask(b"POST / HTTP/1.1\r\n" + HOST + body + b"\r\n" + end)).body
        host = b"Host: 127.0.0.1:%d\r\n" % path.upstream.port
        sent = b"".join(b"%b: %b\r\n" % header for header in path.upstream.requests[0].headers)
        assert host + body == sent


@pytest.mark.parametrize("limit", [None, 1 << 20, 3])
async def test_expect_is_answered_here_and_not_passed_on(limit: int | None) -> None:
    """The client waits for 100 before it sends the body."""
    async with route(ok, limit=limit) as path, client(path.port) as visitor:
        await visitor.send(b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert b"HTTP/1.1 100 Continue" == (await visitor.head()).start
        assert b"ok" == (await visitor.ask(b"hello")).body
        (asked,) = path.upstream.requests
        assert (b"hello", []) == (asked.body, asked.values(b"expect"))


async def test_expect_is_not_answered_when_nobody_will_read_the_body() -> None:
    """With the upstream down the error comes instead of the invitation."""
    async with route(ok) as path, client(path.port) as visitor:
        path.forwarder.refuse_self("127.0.0.1", path.upstream.port)
        await visitor.send(b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert 508 == (await visitor.head()).status


@pytest.mark.parametrize("keep", [b"", b"Connection: keep-alive\r\n"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_client_of_http_1_0(keep: bytes, chunked: bool) -> None:
    """It gets no chunks: a body without a length ends with the connection."""

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" if chunked else answer(b"ok")
        )

    async with route(script) as path, client(path.port) as visitor:
        message = await visitor.ask(b"GET / HTTP/1.0\r\n" + keep + b"\r\n")
        stays = bool(keep) and not chunked
        assert (b"HTTP/1.0 200 OK", b"ok", False) == (message.start, message.body, message.chunked)
        assert [b"keep-alive" if stays else b"close"] == message.values(b"connection")
        if stays:
            assert b"ok" == (await visitor.ask(b"GET / HTTP/1.0\r\n\r\n")).body
        assert b"" == await visitor.rest()


MALFORMED = {
    "not http": b"GARBAGE\r\n\r\n",
    "length and chunks": (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "negative length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\nabc",
    "bad chunk size": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "chunked not last": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
    "NUL in a header": b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
    "space before colon": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length : 3\r\n\r\nabc",
    "bare line feeds": b"GET / HTTP/1.1\nHost: x\n\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "path that is no UTF-8": b"GET /\xe9 HTTP/1.1\r\nHost: x\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "no version, with headers": b"GET /\r\nHost: x\r\n\r\n",
    "key that is no UTF-8": b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xffkey\r\n\r\n",
    "header name that is no ASCII": b"GET / HTTP/1.1\r\nHost: x\r\nX-Api-\xffKey: key\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_request_is_refused(request_bytes: bytes) -> None:
    """400 as JSON marked as ours, the connection closed, and nothing reaches the upstream whole."""
    async with route(silent) as path, client(path.port) as visitor:
        await visitor.send(request_bytes)
        head, _, body = (await visitor.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert ("proxy_error", 400) == (orjson.loads(body)["error"]["type"], orjson.loads(body)["error"]["code"])
        assert [] == path.upstream.requests


@pytest.mark.parametrize("version", [b"2.0", b"1.2", b"3.0", b"0.9"])
async def test_another_version_of_http_is_refused(version: bytes) -> None:
    """With an error of ours and the end of the connection; nothing reaches the upstream."""
    async with route(silent) as path, client(path.port) as visitor:
        await visitor.send(b"GET / HTTP/" + version + b"\r\nHost: x\r\n\r\n")
        head, _, body = (await visitor.rest()).partition(b"\r\n\r\n")
        assert head.partition(b"\r\n")[0] in {b"HTTP/1.1 505 HTTP Version Not Supported", b"HTTP/1.1 400 Bad Request"}
        assert "proxy_error" == orjson.loads(body)["error"]["type"]
        assert [] == path.upstream.requests


@pytest.mark.parametrize("limit", [None, 1 << 20])
async def test_an_upload_that_turns_malformed_is_refused(limit: int | None) -> None:
    """The first chunk is fine, the second is none: 400, and the upstream never sees the end of a body."""
    begun = asyncio.Event()

    async def script(peer: Peer, _: Message) -> None:
        begun.set()
        await peer.reader.read(-1)

    async with route(script, whole=False, limit=limit) as path, client(path.port) as visitor:
        await visitor.send(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        if limit is None:
            await begun.wait()
        else:
            while not [c for c in path.listener.connections if c.is_serving]:
                await asyncio.sleep(0)
        await visitor.send(b"zz\r\n")
        assert 400 == (await visitor.answer()).status
        assert (0 if limit else 1) == len(path.upstream.requests)


async def test_pipelined_requests_are_answered_in_order() -> None:
    """Two requests in one write, two answers."""

    async def script(peer: Peer, message: Message) -> None:
        await peer.send(answer(message.target))

    async with route(script) as path, client(path.port) as visitor:
        await visitor.send(b"".join(b"GET /%d HTTP/1.1\r\n" % n + HOST + b"\r\n" for n in range(2)))
        assert [b"/0", b"/1"] == [(await visitor.answer()).body, (await visitor.answer()).body]


@pytest.mark.parametrize("encoding", [b"gzip", b"zstd", b"br", b"deflate"])
async def test_a_compressed_body_is_not_unpacked(encoding: bytes) -> None:
    """Neither on the way in nor on the way out, whatever it holds."""

    async def script(peer: Peer, message: Message) -> None:
        await peer.send(answer(message.body, b"Content-Encoding: " + encoding))

    async with route(script) as path, client(path.port) as visitor:
        framing = b"Content-Encoding: " + encoding + b"\r\nContent-Length: 7\r\n\r\n"
        message = await visitor.ask(b"POST / HTTP/1.1\r\n" + HOST + framing + b"not it!")
        assert (b"not it!", [encoding]) == (message.body, message.values(b"content-encoding"))


async def test_generous_limits() -> None:
    """Two hundred headers and one of 100 kB are the upstream's to judge."""
    extra = b"".join(b"X-%d: y\r\n" % n for n in range(200)) + b"X-Long: " + b"z" * 100_000 + b"\r\n"
    async with route(ok) as path, client(path.port) as visitor:
        assert b"ok" == (await visitor.ask(b"GET / HTTP/1.1\r\n" + HOST + extra + b"\r\n")).body
        assert 202 == len(path.upstream.requests[0].headers)
