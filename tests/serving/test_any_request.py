"""Through the whole proxy, engine included: no byte is altered either way, and no piece is kept back."""

import asyncio
import hashlib
import json
from collections.abc import Iterator

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.slots.plan import Source
from tests.serving.random_http import (
    BODY,
    CUTS,
    HEADERS,
    METHODS,
    SPECIAL,
    TARGET,
    VALUE,
    Bench,
    chunked,
    framed,
    lines,
)
from tests.serving.route import HOST, answer
from tests.serving.running import sessions
from tests.serving.scripted import MARK, Whole, whole
from tests.wire import Message, Peer, client

CHATS = [b"/v1/chat/completions", b"/chat/completions", b"/v1/chat/completions?key=a%20b", b"/v1/chat%2Fcompletions"]
TEXT = st.text(max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
"""As Python writes it: with NaN, huge integers and half surrogate pairs."""


@st.composite
def chats(draw: st.DrawFn) -> bytes:
    """A request as an agent sends it, in any order of keys and any spelling."""
    words = [
        "you ",
        draw(TEXT),
        draw(st.sampled_from(["\n\n# Project Context\n\n", "\n\n<project_context>"])),
        draw(TEXT),
    ]
    role = draw(st.sampled_from(["system", "developer"]))
    messages = [{"role": role, "content": "".join(words)}, {"role": "user", "content": draw(TEXT)}]
    return draw(spelt({"messages": messages, "stream": draw(st.booleans()), "x": draw(JSON)}))


@st.composite
def odd_chats(draw: st.DrawFn) -> bytes:
    """One with a mind of its own, or in mid-conversation, or with tools that are none."""
    roles = st.sampled_from(["system", "user", "assistant", "tool", ""])
    messages = draw(st.lists(st.fixed_dictionaries({"role": roles, "content": TEXT | JSON}), max_size=4))
    others = st.dictionaries(st.sampled_from(["tools", "model", "n", "id_slot", "stream", "cache_prompt"]), JSON)
    return draw(spelt({"messages": messages, **draw(others)}))


@st.composite
def spelt(draw: st.DrawFn, value: dict[str, object]) -> bytes:
    in_order = dict(draw(st.permutations(list(value.items()))))
    separators = draw(st.sampled_from([(",", ":"), (" , ", "\t:\r\n")]))
    text = json.dumps(in_order, ensure_ascii=draw(st.booleans()), separators=separators)
    return text.encode(errors="surrogatepass")


AROUND = st.sampled_from([b"", b"\r\n", b" \n", b"\xef\xbb\xbf"])
CHAT_BODY = st.tuples(AROUND, chats() | odd_chats() | JSON.map(lambda value: json.dumps(value).encode()) | BODY, AROUND)
KNOWN = st.fixed_dictionaries(
    {},
    optional={
        b"Authorization": VALUE.map(lambda text: b"Bearer " + text.strip().encode()).map(bytes.strip),
        b"x-api-key": VALUE.map(lambda text: text.strip().encode()),
        b"Content-Type": st.sampled_from([b"application/json", b"text/plain", b"", b"multipart/form-data; boundary=x"]),
        b"Content-Encoding": st.sampled_from([*[b"identity"] * 6, b"gzip", b"br"]),
        b"User-Agent": VALUE.map(lambda text: text.strip().encode()),
    },
).map(lambda pairs: list(pairs.items()))
REPLY = BODY | st.just(b'data: {"timings":{"prompt_n":9,"cache_n":891}}\n\ndata: [DONE]\n\n')
STATUS = st.sampled_from([b"200 OK", b"201 Made Just So", b"401 No", b"404 Not Found", b"503 Loading", b"299 "])


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench[Whole]]:
    with asyncio.Runner() as runner:
        bench = Bench[Whole](runner)
        runner.run(bench.open(whole))
        yield bench
        heard = bench.path.proxied.heard
        runner.run(bench.stack.aclose())
    # What passed had passed the engine, and some of it was prepared.
    assert not heard.requests or {Source.NONE} < {ticket.plan.source for ticket in heard.requests}


@pytest.mark.parametrize("is_chat", [True, False], ids=["chats", "any-path"])
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), in_chunks=st.booleans(), cuts=CUTS, reply=REPLY, reply_in_chunks=st.booleans(), reply_cuts=CUTS)
def test_any_request_and_any_answer_pass_unaltered(
    bench: Bench[Whole],
    *,
    is_chat: bool,
    data: st.DataObject,
    in_chunks: bool,
    cuts: list[int],
    reply: bytes,
    reply_in_chunks: bool,
    reply_cuts: list[int],
) -> None:
    """Method, target, headers and body, in any pieces, whether or not the body says something to the engine."""
    target = data.draw(st.sampled_from(CHATS) if is_chat else TARGET)
    method, body = (b"POST", b"".join(data.draw(CHAT_BODY))) if is_chat else (data.draw(METHODS), data.draw(BODY))
    headers, reply_headers = [MARK, *data.draw(KNOWN), *data.draw(HEADERS)], data.draw(HEADERS)
    if data.draw(st.booleans()):
        bench.path.server.restart()
    start, status = b"%b %b HTTP/1.1" % (method, target), data.draw(STATUS)

    async def example() -> None:
        reply_framing, reply_pieces = framed(reply, reply_cuts, reply_in_chunks)
        head = b"\r\n".join([b"HTTP/1.1 " + status, *lines(reply_headers), *reply_framing, b"", b""])
        bench.pieces = [head, *reply_pieces]
        framing, pieces = framed(body, cuts, in_chunks)
        async with client(bench.path.port) as visitor:
            for piece in [b"\r\n".join([start, HOST.strip(), *lines(headers), *framing, b"", b""]), *pieces]:
                await visitor.send(piece)
                await asyncio.sleep(0)
            got = await visitor.answer()
        asked = bench.path.server.asked.pop()
        assert [] == bench.path.server.asked
        assert start == asked.start
        assert headers == [pair for pair in asked.headers if pair[0].decode().lower() not in SPECIAL]
        assert (body, in_chunks) == (asked.body, asked.chunked)
        assert b"HTTP/1.1 " + status == got.start
        assert reply_headers == [pair for pair in got.headers if pair[0].decode().lower() not in SPECIAL]
        assert (reply, reply_in_chunks) == (got.body, got.chunked)

    bench.runner.run(example())


def body_of(body: bytes, target: bytes = CHATS[0], in_chunks: bool = False) -> bytes:
    """A client's whole request."""
    framing, pieces = framed(body, [70_000], in_chunks)
    head = b"\r\n".join([b"POST %b HTTP/1.1" % target, HOST.strip(), *lines([MARK]), *framing, b"", b""])
    return head + b"".join(pieces)


async def test_ten_thousand_chunks_each_at_once() -> None:
    """The next chunk is made only after the client has seen the one before, in the answer to a warmed request."""
    count = 10_000
    seen = asyncio.Semaphore(0)

    async def reply(peer: Peer, _: Message) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(count):
            await peer.send(b"".join(chunked([b"data: %d\n\n" % number])[:1]))
            await seen.acquire()
        await peer.send(b"0\r\n\r\n")

    async with whole(reply) as path, client(path.port) as visitor:
        await visitor.send(body_of(orjson.dumps(sessions("/a")[0])))
        await visitor.head()
        for number in range(count):
            assert b"data: %d\n\n" % number == await visitor.chunk()
            seen.release()
        assert b"" == await visitor.chunk()
        await path.proxied.heard.until(lambda: bool(path.proxied.heard.requests))
        assert (Source.WARM_UP, True) == (path.proxied.last.plan.source, path.proxied.last.is_whole), (
            path.proxied.last.plan
        )


LARGE = 30_000_000
LONG_TALK = orjson.dumps({**sessions("/a")[0], "padding": "x" * LARGE})


@pytest.mark.parametrize("in_chunks", [False, True], ids=["length", "chunks"])
@pytest.mark.parametrize(
    ("target", "body"),
    [(CHATS[0], LONG_TALK), (CHATS[0], hashlib.shake_256(b"seed").digest(LARGE)), (b"/any", LONG_TALK)],
    ids=["chat", "no-json", "any-path"],
)
async def test_thirty_megabytes_both_ways(target: bytes, body: bytes, in_chunks: bool) -> None:
    """The same bytes at the server, and their echo at the client."""

    async def echo(peer: Peer, message: Message) -> None:
        await peer.send(answer(message.body))

    async with whole(echo) as path, client(path.port) as visitor:
        got = await visitor.ask(body_of(body, target, in_chunks))
        (asked,) = path.server.asked
    assert hashlib.sha256(body).digest() == hashlib.sha256(asked.body).digest()
    assert hashlib.sha256(body).digest() == hashlib.sha256(got.body).digest()
