"""A recording upstream with the proxy's forwarding in front of it, and what was seen of each answer."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web
from multidict import CIMultiDictProxy

from proxy.llama.upstream import Upstream
from proxy.serving.forward import Forwarder
from proxy.serving.inbound import Listener, listen, read_whole
from tests.wire import RecordingUpstream, Script, recording

HOST = b"Host: proxy.test\r\n"


class Seen:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.status = 0
        self.data = b""
        self.ends: list[bool] = []
        self.over = asyncio.Event()

    def began(self, status: int, headers: CIMultiDictProxy[str]) -> None:
        self.status = status

    def passed(self, data: bytes) -> None:
        self.data += data

    def ended(self, complete: bool) -> None:
        self.ends.append(complete)
        self.over.set()


@dataclass(slots=True)
class Route:
    """client → `port` → upstream."""

    listener: Listener
    forwarder: Forwarder
    upstream: RecordingUpstream
    seen: list[Seen] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.listener.port


@asynccontextmanager
async def proxied(
    base_url: str, *, connect_s: float = 5.0, limit: int | None = None
) -> AsyncIterator[tuple[Listener, Forwarder, list[Seen]]]:
    """The proxy alone; `limit` makes it read bodies whole up to that size."""
    forwarder = Forwarder(Upstream.parse(base_url), connect_s)
    await forwarder.start()
    seen: list[Seen] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = None if limit is None else await read_whole(request, limit)
        seen.append(Seen())
        return await forwarder.forward(request, body, seen[-1])

    listener = await listen(handle, "127.0.0.1", 0)
    try:
        yield listener, forwarder, seen
    finally:
        await listener.close(0)
        await forwarder.close()


@asynccontextmanager
async def route(
    script: Script, *, whole: bool = True, limit: int | None = None, path: str = "/v1"
) -> AsyncIterator[Route]:
    """The proxy in front of a recording upstream."""
    async with (
        recording(script, whole=whole) as upstream,
        proxied(f"http://127.0.0.1:{upstream.port}{path}", limit=limit) as (listener, forwarder, seen),
    ):
        yield Route(listener, forwarder, upstream, seen)


def answer(body: bytes = b"", *headers: bytes, status: bytes = b"200 OK") -> bytes:
    """A whole answer with a length."""
    lines = [b"HTTP/1.1 " + status, *headers, b"Content-Length: %d" % len(body), b"", body]
    return b"\r\n".join(lines)


def open_sockets() -> int:
    """How many sockets this process has open."""
    return sum(entry.is_socket() for entry in Path("/proc/self/fd").iterdir())


def run(loop: str, scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario on the named kind of event loop; neither tasks nor sockets may be left of it."""

    async def checked() -> None:
        await scenario
        async with asyncio.timeout(2):
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others)

    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    before = open_sockets()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(checked())
    assert before >= open_sockets()


both_loops = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
