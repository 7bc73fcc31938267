"""Which connection to the server a request gets: one that was in use a moment ago and is still open, or a new one."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from proxy.llama.upstream import Upstream
from proxy.serving import outbound
from proxy.serving.connector import Connector, give_up_streamed
from proxy.serving.headers import Outgoing
from proxy.serving.line import Line
from proxy.serving.outbound import Call, Outbound
from tests.conftest import StartLlama
from tests.serving.route import HOST, answer, route
from tests.wire import Message, Peer, RecordingUpstream, client, recording

Ask = Callable[[], Coroutine[Any, Any, bytes]]
WORDS = b"secret words"
POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 12\r\n\r\n" + WORDS
HEADERS = (("Host", "proxy.test"), ("Content-Length", "12"))


async def fine(peer: Peer, _: Message) -> None:
    await peer.send(answer(b"fine"))


@asynccontextmanager
async def asking(line: Line | None = None) -> AsyncIterator[tuple[RecordingUpstream, Ask]]:
    """An upstream, and what sends it a body when it is awaited: at once, before anything else runs."""
    async with recording(fine) as upstream:
        ours = Outbound(Upstream.parse(f"127.0.0.1:{upstream.port}"), 5.0)
        await ours.start()

        async def body() -> AsyncIterator[bytes]:
            yield WORDS

        async def ask() -> bytes:
            to = ours.upstream.url("/v1/chat/completions")
            told = await ours.ask(Call("POST", to, Outgoing(HEADERS, False, 12, False), body(), line or Line()))
            return await told.read()

        try:
            yield upstream, ask
        finally:
            await ours.close()


def socket_of(peer: Peer) -> socket.socket:
    return socket.socket(fileno=socket.dup(peer.writer.get_extra_info("socket").fileno()))


async def test_bodies_one_after_the_other_share_a_connection() -> None:
    """The connection of the answer before is open still: nobody has to wait for another."""
    async with route(fine) as path, client(path.port) as visitor:
        for _ in range(3):
            assert 200 == (await visitor.ask(POST)).status
        assert (1, 3) == (len(path.upstream.peers), len(path.upstream.requests))


async def test_a_body_never_takes_a_connection_that_has_ended() -> None:
    """The server closes it in the very moment of the next request, and nothing here has heard of that yet."""
    async with asking() as (upstream, ask):
        assert b"fine" == await ask()
        with socket_of(upstream.peers[0]) as sock:
            sock.shutdown(socket.SHUT_WR)
        assert b"fine" == await ask()
        assert (2, 2) == (len(upstream.peers), len(upstream.requests))


async def test_a_body_never_takes_a_connection_with_words_on_it() -> None:
    """What a server said without being asked is not taken for the answer to the next request."""
    async with asking() as (upstream, ask):
        assert b"fine" == await ask()
        with socket_of(upstream.peers[0]) as sock:
            sock.send(answer(b"of nobody"))
        assert b"fine" == await ask()
        assert 2 == len(upstream.peers)


async def test_a_body_never_takes_a_connection_that_was_idle_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is about to give up idle connections must not be met at that."""
    monkeypatch.setattr(outbound, "REUSE_S", 0.0)
    async with asking() as (upstream, ask):
        for _ in range(2):
            assert b"fine" == await ask()
        assert 2 == len(upstream.peers)


async def test_requests_at_once_have_a_connection_each() -> None:
    """None waits for another's answer; and one connection is kept, since each holds a thread of the server's."""
    async with asking() as (upstream, ask):
        assert [b"fine"] * 3 == await asyncio.gather(*(ask() for _ in range(3)))
        assert 3 == len(upstream.peers)
        async with asyncio.timeout(0.5):
            while upstream.open > 1:
                await asyncio.sleep(0.001)
        assert 1 == upstream.open


async def test_the_connection_of_a_streamed_answer_is_given_up() -> None:
    """llama-server closes it a moment later, whatever it promises."""

    async def script(peer: Peer, _: Message) -> None:
        await peer.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n0\r\n\r\n"
        )

    async with route(script) as path, client(path.port) as visitor:
        for _ in range(2):
            assert 200 == (await visitor.ask(POST)).status
        assert 2 == len(path.upstream.peers)


async def test_streamed_and_other_answers_in_turns_from_a_real_server(start_llama: StartLlama) -> None:
    """None meets a connection that the server is closing, however soon it follows."""
    server = start_llama("dense", "-np", "1")
    middlewares = (give_up_streamed,)
    async with (
        Connector(1.0) as connector,
        aiohttp.ClientSession(connector=connector, middlewares=middlewares) as session,
    ):
        for number in range(30):
            body = {"prompt": [5, 6, 7], "n_predict": 1, "stream": number % 2 == 0}
            async with session.post(f"{server.base_url.removesuffix('/v1')}/completion", json=body) as told:
                await told.read()
                assert 200 == told.status


async def test_after_an_early_answer_the_rest_of_an_upload_is_nobodys_request() -> None:
    """A connection that still waits for the end of a body is given up."""

    async def script(peer: Peer, _: Message) -> None:
        await peer.reader.readexactly(5)
        await peer.send(answer(b"too large", status=b"413 Payload Too Large"))

    async with route(script, whole=False) as path:
        for _ in range(2):
            async with client(path.port) as visitor:
                message = await visitor.ask(b"POST /up HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000\r\n\r\n12345")
                assert 413 == message.status
        assert 2 == len(path.upstream.peers)


async def test_only_what_was_asked_on_a_line_is_told_of_it() -> None:
    """A call that follows has a connection of its own, which must not be ended in the place of that one."""
    line = Line()
    async with asking(line) as (upstream, ask):
        await ask()
        transport = line.transport
        async with Connector(1.0) as connector, aiohttp.ClientSession(connector=connector) as session:
            await (await session.get(f"http://127.0.0.1:{upstream.port}/slots")).read()
        assert transport is not None
        assert transport is line.transport
