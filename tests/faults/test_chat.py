"""The server fails in the midst of a chat: the client learns it at once, and the proxy is as good as new.

In front of the whole proxy, with a prepared slot: whatever becomes of the answer, nothing stays held for it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import orjson
import pytest

from tests.faults.pretender import CHAT, TEXT, Fault, Pretender
from tests.load.quiet import at_rest
from tests.serving.running import running, sessions
from tests.wire import Message, Peer, RawClient, client, recording

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
BEGUN = {
    "before-headers": b"",
    "in-headers": HEAD,
    "after-headers": CHUNKED,
    "between-chunks": CHUNKED + CHUNK,
    "in-a-chunk": CHUNKED + CHUNK[:20],
    "in-an-event": CHUNKED + CHUNK + b"5\r\ndata:\r\n",
    "in-a-body": HEAD + b"Content-Length: 1000\r\n\r\n" + EVENT,
}
How = Literal["resets", "closes", "hangs"]
SOON_S = 2.0


def stops(begun: bytes, how: How) -> Fault:
    """The answer goes so far and no further."""

    async def fault(peer: Peer, _: bytes) -> None:
        await peer.send(begun)
        if how == "hangs":
            await peer.gone()
        elif how == "resets":
            await asyncio.sleep(0.05)  # or the reset would take what was sent with it
            peer.reset()
        else:
            peer.close()

    return fault


def request(stream: bool = True) -> bytes:
    body = orjson.dumps({**sessions("/a", tokens=400)[0], "stream": stream})
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def through(fault: Fault, visit: Callable[[RawClient, Pretender], Awaitable[None]]) -> None:
    """One visit while the fault is there; then a session, served as if nothing had been."""
    server = Pretender()
    met: list[Peer] = []

    async def noted(peer: Peer, data: bytes) -> None:
        met.append(peer)
        await fault(peer, data)

    async with (
        recording(server.script) as upstream,
        running(f"http://127.0.0.1:{upstream.port}/v1") as proxied,
    ):
        server.faults[CHAT] = noted
        async with client(proxied.proxy.port) as visitor:
            await visit(visitor, server)
        await at_rest(proxied)
        assert met
        async with asyncio.timeout(SOON_S):
            for peer in met:
                await peer.closed.wait()
        server.faults.clear()
        answers = [await proxied.ask(body) for body in sessions("/b", "/c", tokens=400)]
        expected = proxied.prefix.n_tokens
        await at_rest(proxied)
    assert [(200, TEXT)] * 2 == [(answer.status, answer.text) for answer in answers]
    assert expected <= answers[1].reused
    assert [] == [reason for reason in proxied.heard.troubles if reason.startswith("claim:")]


@pytest.mark.parametrize("how", ["resets", "closes", "hangs"])
@pytest.mark.parametrize("begun", BEGUN.values(), ids=BEGUN.keys())
async def test_the_answer_stops(begun: bytes, how: How) -> None:
    """502 where nothing had come yet, a reset after that; one who leaves a server that hangs takes everything along."""

    async def visit(visitor: RawClient, server: Pretender) -> None:
        await visitor.send(request())
        if how == "hangs":
            while CHAT not in server.calls:
                await asyncio.sleep(0)
            if begun.startswith(CHUNKED):
                await visitor.head()
            visitor.close()
        elif b"\r\n\r\n" not in begun:
            assert 502 == (await visitor.answer()).status
        else:
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await visitor.answer()

    await through(stops(begun, how), visit)


ODD = {
    "nonsense": (b"\x00\x01\x02 nonsense\r\n\r\n", 502),
    "no-such-version": (b"HTTP/9.9 200 OK\r\n\r\n", 502),
    "two-lengths": (HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 502),
    "length-and-chunks": (HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 502),
    "a-huge-header": (HEAD + b"X: " + b"x" * 2_000_000 + b"\r\nContent-Length: 0\r\n\r\n", 502),
    "a-large-header": (HEAD + b"X: " + b"x" * 500_000 + b"\r\nContent-Length: 0\r\n\r\n", 200),
    "http-1.0": (b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + EVENT, 200),
    "informational": (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"0\r\n\r\n", 200),
    "a-status-of-its-own": (b"HTTP/1.1 599 Very Odd\r\nContent-Length: 2\r\n\r\nok", 599),
    "an-event-stream-that-is-none": (HEAD + b"Content-Length: 4\r\n\r\n\xff\xfe\x00{", 200),
    "json-that-is-none": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n{", 200),
}


@pytest.mark.parametrize(("words", "status"), ODD.values(), ids=ODD.keys())
async def test_an_odd_answer(words: bytes, status: int) -> None:
    """What can be read is passed, what can't is 502; the next request is none the worse for it."""

    async def fault(peer: Peer, _: bytes) -> None:
        await peer.send(words)
        peer.close()

    async def visit(visitor: RawClient, _: Pretender) -> None:
        assert status == (await visitor.ask(request())).status

    await through(fault, visit)


async def test_an_endless_answer() -> None:
    """It passes for as long as its reader likes; the server learns at once that he has gone."""

    async def fault(peer: Peer, _: bytes) -> None:
        await peer.send(CHUNKED)
        while True:
            await peer.send(CHUNK)
            await asyncio.sleep(0)

    async def visit(visitor: RawClient, _: Pretender) -> None:
        await visitor.send(request())
        await visitor.head()
        for _number in range(1000):
            await visitor.chunk()

    await through(fault, visit)


async def test_a_refusal_while_the_body_still_comes() -> None:
    """A body too long to be read before it is forwarded meets a 413: the client has it before it has sent all."""
    server = Pretender()
    refusal = b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 4\r\n\r\nmuch"

    async def script(peer: Peer, message: Message) -> None:
        if message.target != b"/v1/chat/completions":
            await server.script(peer, message)
            return
        await peer.send(refusal)
        peer.close()

    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 300000000\r\n\r\n"
    async with (
        recording(script, whole=False) as upstream,
        running(f"http://127.0.0.1:{upstream.port}/v1", observe_only=True) as proxied,
        client(proxied.proxy.port) as visitor,
    ):
        answer = await visitor.ask(head + b"x" * 100_000)
    assert (413, b"much") == (answer.status, answer.body)
