"""One request to the upstream and its answer back, each byte as it came and each piece as it comes.

Order of events: headers are shaped (`headers`), the request is sent while its body may still be arriving (`outbound`),
the answer's head goes out as soon as it is there, then every piece.  Whatever ends this early resets the connection
that is still open: the upstream's when the client has gone, the client's when the upstream has died in mid-answer,
since an answer cut short must never look whole.  Nothing is kept, unpacked, followed or retried here.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

import aiohttp
from aiohttp import ClientResponse, HttpVersion10, web
from aiohttp.web_protocol import RequestPayloadError
from multidict import CIMultiDictProxy

from proxy.errors import NotForwardable, PrefixCacheError, RequestRefused
from proxy.llama.upstream import Upstream
from proxy.serving.answers import OwnError, Sent
from proxy.serving.headers import Framing, answer_framing, answer_head, origin_form, outgoing
from proxy.serving.inbound import TooLong, rest_of
from proxy.serving.line import Line, cut
from proxy.serving.outbound import Call, Outbound

LAST_CHUNK = b"0\r\n\r\n"
CONNECT_S = 5.0
"""How long the upstream may take to accept a connection: there is no other limit on a request's way."""


class Watcher(Protocol):
    """Sees an answer pass; called synchronously, and must not raise."""

    def began(self, status: int, headers: CIMultiDictProxy[str]) -> None:
        """The upstream's headers came."""

    def passed(self, data: bytes) -> None:
        """A piece of the body is sent on."""

    def ended(self, complete: bool) -> None:
        """It is over, exactly once."""


class _Unwatched:
    def began(self, status: int, headers: CIMultiDictProxy[str]) -> None: ...

    def passed(self, data: bytes) -> None: ...

    def ended(self, complete: bool) -> None: ...


@dataclass(slots=True)
class _Upload:
    """The request's body on its way, and how that went."""

    source: AsyncIterator[bytes] | AsyncIterator[memoryview]
    done: bool = False
    refused: bool = False

    async def __aiter__(self) -> AsyncIterator[bytes | memoryview]:
        try:
            async for piece in self.source:
                yield piece
        except RequestPayloadError:
            self.refused = True
            raise
        self.done = True


class Forwarder:
    """Forwards requests to one upstream."""

    def __init__(self, upstream: Upstream, connect_s: float = CONNECT_S) -> None:
        self.upstream = upstream
        self._outbound = Outbound(upstream, connect_s)

    async def start(self) -> None:
        """Get ready, on the running loop."""
        await self._outbound.start()

    async def close(self) -> None:
        """Close idle connections."""
        await self._outbound.close()

    def refuse_self(self, host: str, port: int) -> None:
        """Answer 508 when the upstream turns out to be this address, where we listen."""
        self._outbound.refuse(host, port)

    async def forward(
        self, request: web.BaseRequest, body: bytes | TooLong | None, watcher: Watcher | None = None
    ) -> web.StreamResponse:
        """Forward, with the body as read before, or streamed through where it is None or was too long to read."""
        watch = watcher or _Unwatched()
        upload = _upload_of(request, body)
        line = Line()
        complete = False
        try:
            sent = await self._exchange(request, upload, line, watch)
            complete = True
            return sent
        except PrefixCacheError as error:
            return _failed(request, upload, error)
        finally:
            if not complete or (upload is not None and not upload.done):
                line.cut()
            watch.ended(complete)

    async def _exchange(
        self, request: web.BaseRequest, upload: _Upload | None, line: Line, watch: Watcher
    ) -> web.StreamResponse:
        answer = await self._outbound.ask(self._call(request, upload, line))
        try:
            return await self._pass_on(request, answer, line, watch)
        except BaseException:
            answer.close()
            raise

    def _call(self, request: web.BaseRequest, upload: _Upload | None, line: Line) -> Call:
        target = origin_form(request.raw_path)
        if request.method == "CONNECT" or target is None:
            raise NotForwardable("this is a reverse proxy for one server: it opens no tunnels")
        if not target.isprintable():
            raise RequestRefused("the request's path holds bytes that are not UTF-8")
        headers = outgoing(request.raw_headers, self.upstream.authority, http_1_0=request.version == HttpVersion10)
        return Call(request.method, self.upstream.url(target), headers, upload, line)

    async def _pass_on(self, request: web.BaseRequest, answer: ClientResponse, line: Line, watch: Watcher) -> Sent:
        watch.began(answer.status, answer.headers)
        old = request.version == HttpVersion10
        framing = answer_framing(request.method, answer.status, answer.raw_headers, http_1_0=old)
        keep_alive = request.keep_alive and framing is not Framing.UNTIL_CLOSE
        head = answer_head(
            answer.status, answer.reason or "", answer.raw_headers, framing, keep_alive=keep_alive, http_1_0=old
        )
        with self._outbound.blamed(), line.ending(answer.content):
            await _pump(request, answer.content, head, framing, watch)
            if framing is Framing.UNTIL_CLOSE and line.was_reset:
                raise aiohttp.ClientPayloadError("reset")
        return Sent(answer.status, keep_alive=keep_alive)


def _failed(request: web.BaseRequest, upload: _Upload | None, error: PrefixCacheError) -> web.StreamResponse:
    if request.writer.output_size > 0:
        cut(request.transport)
        return Sent(error.status, keep_alive=False)
    if upload is not None and upload.refused:
        error = RequestRefused("the request's body is not valid HTTP")
    ends = isinstance(error, RequestRefused | NotForwardable)
    return OwnError(error.status, str(error), keep_alive=request.keep_alive and not ends)


def _upload_of(request: web.BaseRequest, body: bytes | TooLong | None) -> _Upload | None:
    if isinstance(body, bytes):
        return _Upload(in_slices(body)) if request.body_exists else None
    if not request.body_exists:
        return None
    return _Upload(rest_of(request, body.pieces if body is not None else ()))


async def _pump(
    request: web.BaseRequest, content: aiohttp.StreamReader, head: bytes, framing: Framing, watch: Watcher
) -> None:
    """Head and body, each piece in one write; what is there already goes with the head."""
    write = request.writer.write
    data = content.read_nowait()
    chunked = framing is Framing.CHUNKED
    ahead = head
    while True:
        if data:
            watch.passed(data)
            piece = b"%x\r\n%b\r\n" % (len(data), data) if chunked else data
            ahead = ahead + piece if ahead else piece
        over = content.at_eof()
        if over and chunked:
            ahead += LAST_CHUNK
        if ahead:
            await write(ahead)
        if over:
            return
        ahead = b""
        data = await content.readany()


async def in_slices(body: bytes, size: int = 1 << 18) -> AsyncIterator[memoryview]:
    """A body in slices without copies: handed over whole, a large one would be copied and hold the loop."""
    view = memoryview(body)
    for start in range(0, len(body), size):
        yield view[start : start + size]
