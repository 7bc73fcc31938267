"""A relay between the proxy and a server, where a test can step in before a request is let through.

Whole requests, so that a test sees what is about to happen; answers pass piece by piece. A client that leaves ends the
request at the server.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from proxy.demo.servers import LlamaServer


@dataclass(frozen=True, slots=True)
class Call:
    """A request on its way to the server."""

    method: str
    path: str
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def slot(self) -> int | None:
        """The slot it is aimed at."""
        if self.path.startswith("/slots/"):
            return int(self.path.removeprefix("/slots/").partition("?")[0])
        return self.body.get("id_slot")

    @property
    def is_copy(self) -> bool:
        return self.path == "/completion" and self.body.get("prompt") == [[]]

    @property
    def is_clear(self) -> bool:
        return self.path.endswith("action=erase") or self.is_displacing

    @property
    def is_displacing(self) -> bool:
        return self.path == "/completion" and self.slot is not None and not self.is_copy


StepIn = Callable[[Call], Awaitable[None]]


@asynccontextmanager
async def relay(server: LlamaServer, step_in: StepIn) -> AsyncIterator[str]:
    """Where the proxy finds the server; `step_in` is awaited before each request is let through."""
    fresh = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(connector=fresh, auto_decompress=False) as session:

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            body = await request.read()
            await step_in(Call(request.method, request.path_qs, orjson.loads(body) if body[:1] == b"{" else {}))
            async with session.request(request.method, f"{server.url}{request.path_qs}", data=body) as answer:
                passing = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
                await passing.prepare(request)
                async for piece in answer.content.iter_any():
                    await passing.write(piece)
                return passing

        listening = web.ServerRunner(web.Server(handle, handler_cancellation=True), shutdown_timeout=0.1)
        await listening.setup()
        site = web.TCPSite(listening, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{listening.addresses[0][1]}"
        finally:
            await listening.cleanup()
