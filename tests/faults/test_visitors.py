"""Clients that read or write in odd ways, in front of the whole proxy."""

import asyncio
from contextlib import suppress
from pathlib import Path

import orjson
import pytest

from proxy.demo.proxies import ProxyProcess
from tests.faults.pretender import Pretender
from tests.serving.running import running, sessions
from tests.serving.test_requests import MALFORMED
from tests.wire import Message, Peer, RawClient, client, recording

CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
BODY = orjson.dumps(sessions("/a", tokens=400)[0])
PIECE = b"x" * (1 << 18)


# --- how fast they read and write ---


def peak_kb(pid: int) -> int:
    """The most memory that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


LOOK = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
ASKED = {
    "length": (LOOK, False),
    "chunked": (LOOK, True),
    "chat": (CHAT + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY, True),
}


@pytest.mark.parametrize("size", [60_000_000, pytest.param(1_000_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize(("asked", "chunked"), ASKED.values(), ids=ASKED.keys())
async def test_a_large_answer_and_a_slow_reader(tmp_path: Path, size: int, asked: bytes, chunked: bool) -> None:
    """It rests with the server as long as its reader sleeps, then passes whole; the proxy holds some buffers of it."""
    sent, stalled = 0, asyncio.Event()

    async def script(peer: Peer, message: Message) -> None:
        nonlocal sent
        if message.target not in (b"/large", b"/v1/chat/completions"):
            await peer.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
        # An event that never ends, where a chat is asked for.
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + framing + b"\r\n\r\n")
        piece = b"%x\r\n%b\r\n" % (len(PIECE), PIECE) if chunked else PIECE
        while sent < size:
            sending = asyncio.ensure_future(peer.send(piece[: None if chunked else size - sent]))
            if not (await asyncio.wait({sending}, timeout=None if stalled.is_set() else 0.5))[0]:
                stalled.set()
            await sending
            sent += len(PIECE)
        if chunked:
            await peer.send(b"0\r\n\r\n")

    async with recording(script) as upstream:
        with ProxyProcess(f"http://127.0.0.1:{upstream.port}/v1", tmp_path) as proxy:
            before_kb = peak_kb(proxy.pid)
            async with client(proxy.port, receive_buffer=4096, limit=1 << 16, patience_s=90) as reader:
                await reader.send(asked)
                await stalled.wait()
                assert 20_000_000 > sent
                await reader.head()
                got = 0
                while got < size:
                    got += len(await (reader.chunk() if chunked else reader.reader.read(1 << 20)))
            used_kb = peak_kb(proxy.pid) - before_kb
    assert 100_000 > before_kb + used_kb
    assert 20_000 > used_kb


async def test_a_slow_writer() -> None:
    """A chat that comes byte by byte is served when it is there, and holds up nobody meanwhile."""
    server = Pretender()
    async with (
        recording(server.script) as upstream,
        running(f"http://127.0.0.1:{upstream.port}/v1") as proxied,
        client(proxied.proxy.port) as slow,
    ):
        await slow.send(CHAT + b"Content-Length: %d\r\n\r\n" % len(BODY))
        for at in range(0, len(BODY), 64):
            await slow.send(BODY[at : at + 64])
            if at % 2048 == 0:
                assert 200 == (await proxied.ask(sessions("/b", tokens=400)[0])).status
        answer = await slow.answer()
        assert (200, True) == (answer.status, b"[DONE]" in answer.body)
        assert BODY == [message.body for message in upstream.requests if message.target == b"/v1/chat/completions"][-1]


async def test_two_chats_and_a_look_in_one_write() -> None:
    """Pipelined requests are answered in their order, each once."""
    server = Pretender()
    chat = CHAT + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    async with (
        recording(server.script) as upstream,
        running(f"http://127.0.0.1:{upstream.port}/v1") as proxied,
        client(proxied.proxy.port) as visitor,
    ):
        await visitor.send(chat + b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n" + chat)
        first, look, second = [await visitor.answer() for _ in range(3)]
        await proxied.heard.until(lambda: 2 == len(proxied.heard.requests))
    assert [True, True] == [b"[DONE]" in answer.body for answer in (first, second)]
    assert b'"tiny"' in look.body
    assert 2 == server.calls.count("chat")


# --- what could be read as another request than it is ---

HIDDEN = b"POST /slots/0?action=erase HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
SHAPES = {
    "length-and-chunks": CHAT + b"Content-Length: %d\r\n" % len(BODY) + CHUNKED + WHOLE,
    "chunks-and-length": CHAT + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + WHOLE,
    "two-lengths": CHAT + b"Content-Length: %d\r\nContent-Length: 0\r\n\r\n" % len(BODY) + BODY,
    "the-same-length-twice": CHAT + b"Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(BODY), len(BODY)) + BODY,
    "a-list-of-lengths": CHAT + b"Content-Length: 0, %d\r\n\r\n" % len(BODY) + BODY,
    "a-length-with-a-sign": CHAT + b"Content-Length: +%d\r\n\r\n" % len(BODY) + BODY,
    "a-length-with-zeros": CHAT + b"Content-Length: 000%d\r\n\r\n" % len(BODY) + BODY,
    "a-length-in-hex": CHAT + b"Content-Length: 0x%x\r\n\r\n" % len(BODY) + BODY,
    "a-length-too-short": CHAT + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY + b"GPOST / HTTP/1.1\r\n\r\n",
    "capitals": CHAT + b"TRANSFER-ENCODING: CHUNKED\r\n\r\n" + WHOLE,
    "chunked-twice": CHAT + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + WHOLE,
    "two-encodings": CHAT + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + WHOLE,
    "an-unknown-encoding": CHAT + b"Transfer-Encoding: xchunked\r\n\r\n" + WHOLE,
    "an-encoding-with-a-tab": CHAT + b"Transfer-Encoding:\tchunked\r\n\r\n" + WHOLE,
    "an-encoding-with-a-space": CHAT + b"Transfer-Encoding : chunked\r\n\r\n" + WHOLE,
    "an-encoding-in-a-fold": CHAT + b"X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n" + WHOLE,
    "a-chunk-extension": CHAT + CHUNKED + WHOLE.replace(b"\r\n", b";a=b\r\n", 1),
    "a-chunk-size-with-zeros": CHAT + CHUNKED + b"0000" + WHOLE,
    "a-chunk-size-with-a-sign": CHAT + CHUNKED + b"+" + WHOLE,
    "a-chunk-size-in-0x": CHAT + CHUNKED + b"0x" + WHOLE,
    "a-chunk-size-with-a-space": CHAT + CHUNKED + b" " + WHOLE,
    "a-chunk-size-beyond-64-bits": CHAT + CHUNKED + b"10000000000000000" + WHOLE,
    "a-chunk-without-its-end": CHAT + CHUNKED + WHOLE.replace(BODY + b"\r\n", BODY + b"XX", 1),
    "bare-line-feeds-in-chunks": CHAT + CHUNKED + b"%x\n%b\n0\n\n" % (len(BODY), BODY),
    "a-trailer": CHAT + CHUNKED + WHOLE[:-2] + b"Content-Length: 5\r\n\r\n",
    "a-carriage-return-in-a-name": CHAT + b"X\rContent-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "a-nul-in-a-name": CHAT + b"X\x00: 1\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "no-name": CHAT + b": 1\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "no-colon": CHAT + b"X\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    **{f"chat-{name}": words.replace(b"POST / ", b"POST /v1/chat/completions ") for name, words in MALFORMED.items()},
}


async def answered(visitor: RawClient) -> list[int]:
    """The statuses of all answers until the connection ends or nothing more comes."""
    statuses: list[int] = []
    with suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        while len(statuses) < 2:
            async with asyncio.timeout(5 if not statuses else 0.3):
                statuses.append((await visitor.answer()).status)
    return statuses


@pytest.mark.parametrize("words", SHAPES.values(), ids=SHAPES.keys())
async def test_a_request_that_could_be_read_in_two_ways(words: bytes) -> None:
    """Refused with 400, or passed as the one request that the server reads: what hides behind it is never another."""
    server = Pretender()
    async with (
        recording(server.script) as upstream,
        running(f"http://127.0.0.1:{upstream.port}/v1", observe_only=True) as proxied,
        client(proxied.proxy.port) as visitor,
    ):
        await visitor.send(words + HIDDEN)
        statuses = await answered(visitor)
    passed = [message for message in upstream.requests if message.start.startswith(b"POST")]
    assert statuses[0] in (200, 400)
    if statuses[0] == 400:
        assert ([400], []) == (statuses, [m for m in passed if m.target.startswith(b"/slots")])
        assert [] == passed
    else:
        assert (b"/v1/chat/completions", BODY) == (passed[0].target, passed[0].body)
        # What follows is the next request: one that its client has sent as such, or nothing that is passed.
        assert [b"/slots/0?action=erase"] * (len(passed) - 1) == [message.target for message in passed[1:]]
