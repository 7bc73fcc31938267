"""The side that faces the client: connections, their sudden ends, `Expect`, whole bodies, and listening.

aiohttp's server notices a client that leaves only in part.  An end of file closes the transport *after* the write
buffer is flushed, so a reader that stalls and goes is never missed; and while reading is paused (an upload that the
upstream does not take) nothing is noticed at all.  Both are mended here: a connection with a request in progress is
reset as soon as its client has gone, which cancels the request's handler.  A client that has only ended its sending
looks the same as one that has left: what can be answered soon it still gets, then it counts as gone.  Counterpart:
`outbound`.
"""

import asyncio
import select
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self, cast

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.web_protocol import RequestHandler, RequestPayloadError

from proxy.errors import RequestRefused
from proxy.logs import get_logger
from proxy.serving.answers import OwnError
from proxy.serving.line import cut

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

log = get_logger()

# Above what any server in front of a model accepts: refusing is the upstream's business.
LIMITS = {"max_line_size": 1 << 20, "max_field_size": 1 << 20, "max_headers": 10_000, "read_bufsize": 1 << 16}
DEPARTURE_CHECK_S = 0.4
GONE = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
AFTER_CUT_S = 2.0
LAST_ANSWER_S = 0.3
"""How long an answer may take to a client that will send no more; llama-server looks about once a second."""


def _has_gone(transport: asyncio.BaseTransport) -> bool:
    poll = select.poll()
    with suppress(OSError, ValueError):
        poll.register(transport.get_extra_info("socket").fileno(), GONE)
        return any(events & GONE for _, events in poll.poll(0))
    return True


class Connection(RequestHandler):
    """One client's connection."""

    __slots__ = ("_check", "_draining", "_last", "_line", "_listener", "_request")

    def __init__(self, listener: "Listener", server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(server, loop=loop, access_log=None, auto_decompress=False, **LIMITS)  # type: ignore[arg-type]
        self._listener = listener
        self._request: web.BaseRequest | None = None
        self._draining = False
        self._check: asyncio.TimerHandle | None = None
        self._last: asyncio.TimerHandle | None = None
        """When a client that sends no more will count as gone."""
        self._line: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is here."""
        self._line = cast("asyncio.Transport", transport)
        self._listener.connections.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone; aiohttp cancels the handler."""
        if self._last is not None:
            self._last.cancel()
        self._listener.lost(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came; where they break the framing of the body that is being read, its reader must be told."""
        super().data_received(data)
        if self._request is not None and self._messages and hasattr(self._messages[-1][0], "exc"):
            content = self._request.content
            if not content.is_eof() and content.exception() is None:
                content.set_exception(RequestPayloadError("malformed body"))

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client will send no more; whether the connection stays open for what it has asked."""
        # aiohttp's own loop waits for a request, unless there is one, be it not yet with its handler.
        is_idle = self._waiter is not None and not self._waiter.done()
        if not is_idle:
            self._last = self._loop.call_later(LAST_ANSWER_S, self.cut)
        return not is_idle

    @property
    def is_serving(self) -> bool:
        """Whether a request is in progress."""
        return self._request is not None

    def cut(self) -> None:
        """Reset the connection, whatever is going on."""
        cut(self._line)

    def begin(self, request: web.BaseRequest) -> None:
        """A request's handler starts."""
        self._request = request
        if self._line is None or self._line.is_closing():
            # The client left while an earlier answer was still being flushed.
            self.cut()
        self._check_later()

    def end(self) -> None:
        """A request's handler is done."""
        self._request = None
        if self._check is not None:
            self._check.cancel()
        if self._draining or (self._last is not None and not self._messages):
            self.close()

    def drain(self) -> None:
        """Take no further request: close now, or after the one in progress."""
        self._draining = True
        if self._request is None:
            self.force_close()

    def _check_later(self) -> None:
        self._check = self._loop.call_later(DEPARTURE_CHECK_S, self._look_for_client)

    def _look_for_client(self) -> None:
        line = self._line
        if line is None or line.is_closing() or self._last is not None:
            return
        if not line.is_reading() and _has_gone(line):
            self.cut()
        else:
            self._check_later()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what isn't HTTP, or an error of ours, in the shape of our errors."""
        if isinstance(exc, RequestPayloadError | RequestRefused):
            status = HTTPStatus.BAD_REQUEST
        ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR
        if ours:
            log.error("request_failed", error=type(exc).__name__, exc_info=exc)
        if request.writer.output_size > 0:
            self.cut()
            raise ConnectionError("the answer had begun")
        told = "this proxy failed; its log says more" if ours else "the request is not valid HTTP"
        return OwnError(status, told, keep_alive=False)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log what nobody handled, by its kind only."""
        # aiohttp's own words would carry a malformed request's content into the log.
        error = kw.get("exc_info")
        if not isinstance(error, RequestPayloadError):
            log.error("connection_failed", error=type(error).__name__)


class _Server(web.Server):
    def __init__(self, listener: "Listener", handler: Handler) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._listener = listener

    def __call__(self) -> RequestHandler:
        return Connection(self._listener, self, self._loop)


def _other_version(request: web.BaseRequest) -> OwnError | None:
    """The answer to a request line without a version, or with one that is spoken in another way than this."""
    if request.version in {HttpVersion10, HttpVersion11}:
        return None
    if request.version < HttpVersion10:
        return OwnError(HTTPStatus.BAD_REQUEST, "the request names no version of HTTP", keep_alive=False)
    return OwnError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 and HTTP/1.0 are spoken", keep_alive=False)


class Listener:
    """A listening socket and the connections that came through it."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Event()
        self.connections: set[Connection] = set()
        self.host = ""
        self.port = 0

    async def open(self, host: str, port: int) -> Self:
        """Bind; raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(_Server(self, self._handle), host, port, backlog=1024)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]
        return self

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast("Connection", request.protocol)
        connection.begin(request)
        try:
            return _other_version(request) or await self._handler(request)
        finally:
            connection.end()

    def lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        self._changed.set()

    async def close(self, drain_s: float = 0.0) -> None:
        """Accept no more, let requests in progress end within the limit, reset the rest."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.drain()
        await self._empty_within(drain_s)
        for connection in tuple(self.connections):
            connection.cut()
        await self._empty_within(AFTER_CUT_S)

    async def _empty_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.connections:
                    self._changed.clear()
                    await self._changed.wait()


async def listen(handler: Handler, host: str, port: int) -> Listener:
    """Serve `handler` on an address; port 0 takes a free one."""
    return await Listener(handler).open(host, port)


@dataclass(frozen=True, slots=True)
class TooLong:
    """A body beyond the limit: the pieces read so far; the rest is still to be read from the request."""

    pieces: tuple[bytes, ...]


async def invite_body(request: web.BaseRequest) -> None:
    """Answer `Expect: 100-continue`, now that the body is about to be read."""
    expects = "100-continue" in request.headers.get("Expect", "").lower()
    if expects and request.version >= (1, 1) and not request.content.total_bytes and not request.content.is_eof():
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


async def read_whole(request: web.BaseRequest, limit: int) -> bytes | TooLong:
    """The request's body as it came; one that is announced as longer than the limit is left unread."""
    if (request.content_length or 0) > limit:
        return TooLong(())
    await invite_body(request)
    pieces: list[bytes] = []
    size = 0
    while piece := await request.content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            return TooLong(tuple(pieces))
    return b"".join(pieces)


async def rest_of(request: web.BaseRequest, pieces: tuple[bytes, ...] = ()) -> AsyncIterator[bytes]:
    """The body piece by piece: those already read, then the others as they come."""
    for piece in pieces:
        yield piece
    if not pieces:
        await invite_body(request)
    while piece := await request.content.readany():
        yield piece
