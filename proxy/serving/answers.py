"""The answers that a handler hands back to aiohttp's server: one already on the wire, and an error of our own.

Neither lets aiohttp write headers: it would add `Date`, `Server` and `Content-Type`.
"""

from typing import Any

import orjson
from aiohttp import HttpVersion10, web
from aiohttp.abc import AbstractStreamWriter

from proxy.serving.headers import Framing, answer_head

ERROR_TYPE = "proxy_error"
REASONS = {
    400: "Bad Request",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
    508: "Loop Detected",
}


class Sent(web.StreamResponse):
    """An answer that the forwarder has written: nothing is left to send, only whether the connection lives on."""

    def __init__(self, status: int, *, keep_alive: bool) -> None:
        super().__init__(status=status)
        self._lives_on = keep_alive

    @property
    def keep_alive(self) -> bool:
        """Whether the connection takes another request."""
        return self._lives_on

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Nothing to do: the head is out."""
        return None

    async def write_eof(self, data: Any = b"") -> None:
        """Nothing to do: the body is out."""


class OwnError(Sent):
    """An error of this proxy, in OpenAI's shape and marked as ours, so that nobody looks for it in the server."""

    def __init__(self, status: int, message: str, *, keep_alive: bool) -> None:
        super().__init__(status, keep_alive=keep_alive)
        self.message = message

    @property
    def payload(self) -> bytes:
        """The JSON body."""
        return orjson.dumps({"error": {"message": self.message, "type": ERROR_TYPE, "code": self.status}})

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send it."""
        payload = self.payload
        raw = ((b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(payload)))
        head = answer_head(
            self.status,
            REASONS.get(self.status, "Error"),
            raw,
            Framing.LENGTH,
            keep_alive=self.keep_alive,
            # aiohttp calls a request that it can't read an UNKNOWN one of HTTP/1.0.
            http_1_0=request.version == HttpVersion10 and request.method != "UNKNOWN",
        )
        await request.writer.write(head if request.method == "HEAD" else head + payload)
        return None
