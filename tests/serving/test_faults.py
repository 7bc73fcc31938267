"""The upstream fails: the client is told what is known, and never that half an answer is a whole one."""

import asyncio
import gc
import socket
import ssl
from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

from proxy.llama.upstream import Upstream
from proxy.serving.inbound import listen
from proxy.serving.outbound import Outbound
from tests.serving.route import HOST, answer, proxied, route
from tests.wire import Message, Peer, client, recording, reset

GET = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 12\r\n\r\nsecret words"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def told(message: Message) -> dict[str, object]:
    """The error of our own that an answer carries."""
    assert [b"application/json"] == message.values(b"content-type")
    error = orjson.loads(message.body)["error"]
    assert error["type"] == "proxy_error"
    assert error["code"] == message.status
    assert isinstance(error, dict)
    return error


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        assert isinstance(port, int)
        return port


@pytest.mark.parametrize("request_bytes", [GET, POST])
async def test_nobody_listens_at_the_upstreams_address(request_bytes: bytes) -> None:
    """502, marked as ours; it names the address and the setting, and nothing of the request."""
    port = free_port()
    async with proxied(f"127.0.0.1:{port}/v1") as (listener, _, seen), client(listener.port) as visitor:
        error = told(await visitor.ask(request_bytes))
        assert 502 == error["code"]
        assert f"http://127.0.0.1:{port}" in str(error["message"])
        assert "PI_PREFIX_CACHE_BASE_URL" in str(error["message"])
        assert "secret" not in str(error["message"])
        assert [[False]] == [watcher.ends for watcher in seen]


async def test_an_unknown_host_name_is_unreachable_too() -> None:
    """A name that cannot be resolved is told like a refused connection."""
    async with proxied("http://no-such-host.invalid:9/v1") as (listener, _, _seen), client(listener.port) as visitor:
        assert "no-such-host.invalid" in str(told(await visitor.ask(GET))["message"])


async def test_the_upstream_does_not_accept_in_time() -> None:
    """504 after the connect limit, which is the only limit there is."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        async with (
            proxied(f"127.0.0.1:{port}", connect_s=0.3) as (listener, _, _seen),
            client(listener.port) as visitor,
        ):
            assert 504 == told(await visitor.ask(POST))["code"]
        for sock in waiting:
            sock.close()


@pytest.mark.parametrize("request_bytes", [GET, POST])
@pytest.mark.parametrize(
    "last_words", [b"", b"HTTP/1.1 20", b"\x00\x01nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]
)
async def test_the_upstream_closes_without_an_answer(request_bytes: bytes, last_words: bytes) -> None:
    """502: an end or nonsense in place of an answer's head."""

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(last_words)
        peer.close()

    async with route(script) as path, client(path.port) as visitor:
        assert 502 == told(await visitor.ask(request_bytes))["code"]
        if request_bytes is POST:
            assert 1 == len(path.upstream.requests)


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize(
    "begun",
    [
        CHUNKED,
        CHUNKED + b"3\r\nabc\r\n",
        CHUNKED + b"5\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
    ],
)
async def test_the_upstream_dies_in_mid_answer(begun: bytes, how: str) -> None:
    """The client's connection is reset, so that no reader can take it for the end."""
    let_go = asyncio.Event()

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(begun)
        await let_go.wait()
        getattr(peer, how)()

    async with route(script) as path, client(path.port) as visitor:
        await visitor.send(POST)
        await visitor.head()
        let_go.set()
        with pytest.raises(ConnectionResetError):
            assert b"0\r\n\r\n" not in await visitor.rest()
        assert [False] == path.seen[0].ends


@pytest.mark.parametrize("nonsense", [b"zz\r\n", b"3\r\nabcXX\r\n"])
async def test_the_upstream_breaks_the_framing_in_mid_answer(nonsense: bytes) -> None:
    """What is no chunk ends the answer at once, as a reset: waiting for more would be for ever."""
    let_go = asyncio.Event()

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(CHUNKED + b"3\r\nabc\r\n")
        await let_go.wait()
        await peer.send(nonsense)
        await peer.gone()

    async with route(script) as path, client(path.port) as visitor:
        await visitor.send(POST)
        await visitor.head()
        let_go.set()
        with pytest.raises(ConnectionResetError):
            await visitor.rest()
        assert [False] == path.seen[0].ends


async def test_an_answer_that_ends_with_the_connection_is_reset_when_the_upstream_is() -> None:
    """Where only the close tells the end, a reset is the one way to say that this was not it."""

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await asked.wait()
        peer.reset()

    asked = asyncio.Event()
    async with route(script) as path, client(path.port) as visitor:
        await visitor.send(GET)
        await visitor.head()
        assert b"half" == await visitor.reader.readexactly(4)
        asked.set()
        with pytest.raises(ConnectionResetError):
            await visitor.rest()


async def test_an_early_answer_reaches_a_client_that_still_uploads() -> None:
    """413 is passed on at once, though the upload has not ended and never will."""

    async def script(peer: Peer, _: Message) -> None:
        await peer.reader.readexactly(5)
        await peer.send(answer(b"too large", status=b"413 Payload Too Large"))
        peer.close()

    async with route(script, whole=False) as path, client(path.port) as visitor:
        message = await visitor.ask(b"POST /up HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000\r\n\r\n12345")
        assert (413, b"too large") == (message.status, message.body)
        async with asyncio.timeout(1):
            await path.upstream.peers[0].closed.wait()
        assert [True] == path.seen[0].ends


@pytest.mark.parametrize("words", [b"", answer(b"too large", status=b"413 Payload Too Large")], ids=["death", "413"])
async def test_after_an_early_end_the_rest_of_an_upload_is_read_off(words: bytes) -> None:
    """The client gets the answer, may send the rest of its body, and then another request on the same connection."""

    async def script(peer: Peer, message: Message) -> None:
        if message.target == b"/again":
            await peer.send(answer(b"fine"))
            return
        await peer.reader.readexactly(5)
        await peer.send(words)
        peer.reset() if not words else peer.close()

    async with route(script, whole=False) as path, client(path.port) as visitor:
        with capture_logs() as lines:
            first = await visitor.ask(b"POST /up HTTP/1.1\r\n" + HOST + b"Content-Length: 200000\r\n\r\n12345")
            assert (413 if words else 502) == first.status
            await visitor.send(b"x" * 199_995)
            assert b"fine" == (await visitor.ask(b"GET /again HTTP/1.1\r\n" + HOST + b"\r\n")).body
        assert [] == lines


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_a_pooled_connection_closed_just_as_it_is_reused(method: bytes, how: str) -> None:
    """What changes nothing is sent once more on a fresh connection, and the client sees nothing of it."""

    async def script(peer: Peer, message: Message) -> None:
        if message.target == b"/second" and peer is path.upstream.peers[0]:
            getattr(peer, how)()
        else:
            await peer.send(answer(message.target)[: None if method == b"GET" else -len(message.target)])

    async with route(script) as path, client(path.port) as visitor:
        for target in (b"/first", b"/second"):
            asked = method + b" " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n"
            message = await visitor.ask(asked, bodiless=method == b"HEAD")
            assert (200, target if method == b"GET" else b"") == (message.status, message.body)
        assert 2 == len(path.upstream.peers)


@pytest.mark.parametrize("more", [answer(b"not asked for"), b"HTTP/1.1 200 OK\r\nContent-Le", b"nonsense\r\n\r\n"])
async def test_a_pooled_connection_that_says_more_than_it_was_asked(more: bytes) -> None:
    """What comes after an answer is nobody's: the next request has a connection of its own, and its own answer."""
    said = asyncio.Event()

    async def script(peer: Peer, message: Message) -> None:
        await peer.send(answer(message.target))
        if message.target == b"/0":
            await answered.wait()
            await peer.send(more)
            said.set()

    answered = asyncio.Event()
    async with route(script) as path, client(path.port) as visitor:
        for number in range(3):
            asked = await visitor.ask(b"GET /%d HTTP/1.1\r\n" % number + HOST + b"\r\n")
            assert (200, b"/%d" % number) == (asked.status, asked.body)
            answered.set()
            await said.wait()
            for _ in range(10):  # until our side has read it
                await asyncio.sleep(0)


@pytest.mark.parametrize("in_pieces", [False, True], ids=["at-once", "in-pieces"])
@pytest.mark.parametrize("request_bytes", [GET, POST], ids=["GET", "POST"])
async def test_informational_answers_are_left_out(request_bytes: bytes, in_pieces: bool) -> None:
    """The one that follows them is the answer, whole and as it came; the connection takes another request."""
    before = [b"100 Continue\r\n", b"102 Processing\r\nX-A: 1\r\n", b"103 Early Hints\r\nLink: </a>\r\nLink: </b>\r\n"]
    words = b"".join(b"HTTP/1.1 %b\r\n" % told for told in before) + answer(b"fine", b"X-Last: 1")

    async def script(peer: Peer, _: Message) -> None:
        for at in range(0, len(words), 7 if in_pieces else len(words)):
            await peer.send(words[at : at + (7 if in_pieces else len(words))])
            await asyncio.sleep(0)

    async with route(script) as path, client(path.port) as visitor:
        for _ in range(2):
            await visitor.send(request_bytes)
            expected = answer(b"fine", b"X-Last: 1")
            assert expected == await visitor.reader.readexactly(len(expected))
        assert [True, True] == [end for seen in path.seen for end in seen.ends]


@pytest.mark.parametrize(
    "request_bytes",
    [b"PUT /x HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc", b"DELETE /x HTTP/1.1\r\n" + HOST + b"\r\n"],
    ids=["PUT", "DELETE"],
)
async def test_what_changes_something_is_not_sent_twice(request_bytes: bytes) -> None:
    """aiohttp would send these once more, because they are idempotent by their nature; not here."""

    async def script(peer: Peer, _: Message) -> None:
        peer.close()

    async with route(script) as path, client(path.port) as visitor:
        told(await visitor.ask(request_bytes))
        assert 1 == len(path.upstream.requests)


@pytest.mark.parametrize("request_bytes", [GET, POST])
async def test_the_upstream_is_this_proxy(request_bytes: bytes) -> None:
    """508 after the first turn, not a loop."""
    port = free_port()
    async with proxied(f"127.0.0.1:{port}") as (_, forwarder, _seen):
        again = await listen(lambda request: forwarder.forward(request, None), "127.0.0.1", port)
        forwarder.refuse_self(again.host, again.port)
        async with client(port) as visitor:
            assert 508 == told(await visitor.ask(request_bytes))["code"]
        await again.close(0)


async def test_an_upstream_that_switches_protocols_unasked() -> None:
    """A 101 nobody asked for is no answer."""

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")

    async with route(script) as path, client(path.port) as visitor:
        assert 502 == told(await visitor.ask(POST))["code"]


async def test_an_https_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its certificate is checked against the system's, and against what SSL_CERT_FILE adds."""
    certificate = Path(__file__).with_name("localhost.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(answer(b"sealed"))

    async with recording(script, tls=context) as upstream:
        async with (
            proxied(f"https://localhost:{upstream.port}/v1") as (listener, _, _seen),
            client(listener.port) as visitor,
        ):
            assert "certificate" in str(told(await visitor.ask(POST))["message"]).lower()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with (
            proxied(f"https://localhost:{upstream.port}/v1") as (listener, _, _seen),
            client(listener.port) as visitor,
        ):
            assert b"sealed" == (await visitor.ask(POST)).body
            assert b"sealed" == (await visitor.ask(GET)).body


@pytest.mark.parametrize(
    ("contained", "host", "hinted"), [(True, "localhost", True), (False, "localhost", False), (True, "llama", False)]
)
async def test_inside_a_container_localhost_is_explained(contained: bool, host: str, hinted: bool) -> None:
    """The commonest mistake of a first deployment is named in the message."""
    outbound = Outbound(Upstream.parse(host), 1.0)
    outbound.contained = contained
    assert hinted == ("container" in outbound.advice("cannot be reached"))


async def test_environment_proxies_and_netrc_are_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither may send the prompts elsewhere, or add a password to them."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(answer(b"direct"))

    async with route(script) as path, client(path.port) as visitor:
        assert b"direct" == (await visitor.ask(POST)).body
        assert [] == path.upstream.requests[0].values(b"authorization")


async def test_many_failures_leave_nothing_behind() -> None:
    """Fifty answers cut short: no connection, no task, no unclosed object."""

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(CHUNKED + b"3\r\nabc\r\n")
        reset(peer.writer)

    async with route(script) as path:
        before = len(asyncio.all_tasks())
        for _ in range(50):
            async with client(path.port) as visitor:
                await visitor.send(POST)
                with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                    await visitor.answer()
        async with asyncio.timeout(1):
            while path.listener.connections or path.upstream.open:
                await asyncio.sleep(0)
        gc.collect()
        assert before >= len(asyncio.all_tasks())
