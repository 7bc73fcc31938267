"""The end of a connection: made at once by us, or noticed in time when the other side makes it.

aiohttp closes a connection only after what was written is flushed.  A peer that does not read would then never learn
that its counterpart has gone, and an answer cut short by a plain close can look whole; so what ends early ends in a
reset, on either side of the proxy.
"""

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

NO_LINGER = struct.pack("ii", 1, 0)


def cut(transport: asyncio.BaseTransport | None) -> None:
    """End a connection at once with a reset: what was sent so far must not look whole, and nothing is flushed."""
    if transport is None:
        return
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError, ValueError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
    cast("asyncio.Transport", transport).abort()


@dataclass(slots=True)
class Line:
    """The connection that one request goes over, so that it can be ended at once and its end is not missed."""

    transport: asyncio.Transport | None = None
    protocol: ResponseHandler | None = None

    def cut(self) -> None:
        """Reset it."""
        cut(self.transport)

    @property
    def was_reset(self) -> bool:
        """Whether it ended in an error: aiohttp takes even that for the end of an answer without a length."""
        return self.protocol is not None and isinstance(self.protocol.exception(), aiohttp.ClientOSError)

    @contextmanager
    def ending(self, content: aiohttp.StreamReader) -> Iterator[None]:
        """Tell the answer's reader when the connection ends: aiohttp does not where the cause was a malformed chunk."""
        closed = self.protocol.closed if self.protocol is not None else None
        if closed is None:
            _cut_short(content)
            yield
            return

        def tell(_: asyncio.Future[None]) -> None:
            _cut_short(content)

        closed.remove_done_callback(_looked_at)
        closed.add_done_callback(_looked_at)
        closed.add_done_callback(tell)
        try:
            yield
        finally:
            closed.remove_done_callback(tell)


def _cut_short(content: aiohttp.StreamReader) -> None:
    if not content.is_eof() and content.exception() is None:
        content.set_exception(aiohttp.ClientPayloadError("the connection ended"))


def _looked_at(closed: asyncio.Future[None]) -> None:
    # An error that nobody looks at would be logged when it is collected.
    if not closed.cancelled():
        closed.exception()
