"""A relay between proxy and server that stops at one step, so that a test can kill either of them just there.

A step is a call that has to do with a real prefix: its prefill, a save, a look one token beyond it, a restore, the chat
itself. What the proxy's probe asks passes uncounted. Answers are passed on whole.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import orjson
from aiohttp import web

from proxy.demo.servers import LlamaServer
from proxy.serving.acquaintance import PROBE_KEY

When = Literal["before", "after"]
LONG_PROMPT = 300
PATIENCE_S = 30.0


@dataclass(slots=True)
class Relay:
    """Passes calls on, until the step to stop at."""

    server: LlamaServer
    session: aiohttp.ClientSession
    port: int = 0
    stop_at: tuple[int, When] | None = None
    missing: str = ""
    """A path that this server does not have."""
    forgets: bytes = b""
    """Who asks with this in the question is told that nothing was reused."""
    steps: list[str] = field(default_factory=list)
    """What was asked, in order."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    _go_on: asyncio.Event = field(default_factory=asyncio.Event)
    _passed: asyncio.Event = field(default_factory=asyncio.Event)
    _drops: bool = False

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def arrive(self) -> None:
        """Wait until the step is reached."""
        async with asyncio.timeout(PATIENCE_S):
            await self.reached.wait()

    async def go_on(self, *, drop: bool = False) -> None:
        """Let the step go on, or break its connection as a server that died does; and stop nowhere any more."""
        self._drops = drop
        self.stop_at = None
        self._go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            await self._passed.wait()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.path == self.missing:
            return web.json_response({"error": {"code": 404, "message": "File Not Found"}}, status=404)
        step = name_of(request, body)
        here = None
        if step:
            if self.stop_at is not None and self.stop_at[0] == len(self.steps):
                here = self.stop_at[1]
            self.steps.append(step)
        try:
            if here == "before" and await self._stop():
                return self._cut(request)
            answer = await self._forward(request, body)
            if answer is None or (here == "after" and await self._stop()):
                return self._cut(request)
            return answer
        finally:
            if here:
                self._passed.set()

    async def _stop(self) -> bool:
        self.reached.set()
        await self._go_on.wait()
        return self._drops

    async def _forward(self, request: web.Request, body: bytes) -> web.StreamResponse | None:
        headers = {name: request.headers[name] for name in ("Content-Type", "User-Agent") if name in request.headers}
        url = f"{self.server.url}{request.path_qs}"
        try:
            async with self.session.request(request.method, url, data=body or None, headers=headers) as told:
                kind = told.headers.get("Content-Type", "application/json")
                answer = await told.read()
                if self.forgets and self.forgets in body:
                    answer = re.sub(rb'"cache_n":\d+', b'"cache_n":0', answer)
                return web.Response(status=told.status, body=answer, headers={"Content-Type": kind})
        except aiohttp.ClientError:
            return None

    def _cut(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()


def name_of(request: web.Request, body: bytes) -> str:
    """What kind of step this is; "" for none."""
    if request.path.endswith("/chat/completions"):
        return "chat"
    told: Any = orjson.loads(body) if body else {}
    action = request.query.get("action", "")
    if action in ("save", "restore"):
        return "" if PROBE_KEY in told["filename"] else action
    if request.path == "/completion" and len(told["prompt"]) > LONG_PROMPT:
        return "beyond" if "n_probs" in told else "prefill"
    return ""


@asynccontextmanager
async def relaying(server: LlamaServer) -> AsyncIterator[Relay]:
    """A relay in front of a server while the block runs."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        relay = Relay(server, session)
        runner = web.ServerRunner(web.Server(relay.handle), shutdown_timeout=1.0)  # type: ignore[arg-type]
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        relay.port = runner.addresses[0][1]
        try:
            yield relay
        finally:
            await runner.cleanup()
