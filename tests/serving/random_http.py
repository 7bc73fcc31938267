"""Random but valid HTTP: what a request or an answer may consist of, and the ways in which its bytes may arrive."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

from hypothesis import strategies as st

from tests.wire import Message, Peer, Script

P = TypeVar("P")
TOKEN = st.text(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.!#$%&'*+^`|~", min_size=1, max_size=12
)
VALUE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x2FFF, exclude_characters="\x7f"), max_size=20)
# Names that say how a message is framed or sent, which have scenarios of their own.
SPECIAL = {"host", "connection", "content-length", "transfer-encoding", "upgrade", "expect", "te", "trailer"} | {
    "keep-alive",
    "proxy-connection",
    "sec-websocket-key1",
}
# aiohttp refuses these twice in one request.
ONCE = {"content-type", "user-agent", "etag", "server", "max-forwards", "content-location", "content-range"}
HEADERS = st.lists(st.tuples(TOKEN, VALUE), max_size=6).map(
    lambda pairs: [
        (name.encode(), value.strip().encode()) for name, value in pairs if name.lower() not in SPECIAL | ONCE
    ]
)
TARGET = st.text("abcXYZ019%/.~-_|!$&'()*+,;=:@?{}\"<>^`[]\\", max_size=30).map(lambda text: b"/" + text.encode())
BODY = st.binary(max_size=2000)
CUTS = st.lists(st.integers(1, 400), min_size=1, max_size=6)
METHODS = st.sampled_from([b"POST", b"PUT", b"PATCH", b"DELETE", b"GET", b"OPTIONS"])


def cut_up(data: bytes, sizes: list[int]) -> list[bytes]:
    """The same bytes in pieces of these sizes, over and over."""
    pieces: list[bytes] = []
    while data:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def chunked(pieces: list[bytes]) -> list[bytes]:
    return [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces] + [b"0\r\n\r\n"]


def framed(body: bytes, cuts: list[int], in_chunks: bool) -> tuple[list[bytes], list[bytes]]:
    """The framing headers and the pieces of a body."""
    if in_chunks:
        return [b"Transfer-Encoding: chunked"], chunked(cut_up(body, cuts))
    return [b"Content-Length: %d" % len(body)], cut_up(body, cuts)


def lines(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [b"%b: %b" % pair for pair in headers]


class Bench(Generic[P]):
    """One proxy and one loop for all examples; the answer to the next request is set by the example."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.stack = contextlib.AsyncExitStack()
        self.pieces: list[bytes] = []
        self.path: P

    async def reply(self, peer: Peer, _: Message) -> None:
        for piece in self.pieces:
            await peer.send(piece)
            await asyncio.sleep(0)

    async def open(self, path: Callable[[Script], contextlib.AbstractAsyncContextManager[P]]) -> None:
        self.path = await self.stack.enter_async_context(path(self.reply))
