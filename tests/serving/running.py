"""The whole proxy in this process, in front of a llama-server, and a client that sees what an agent sees.

What the engine reports is kept beside the answers, so that a test can wait for a request to be accounted for.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import orjson

from proxy.demo.servers import LlamaServer
from proxy.demo.sessions import USER_AGENTS, Body, session
from proxy.serving.app import Proxy
from proxy.serving.model import ExactPrefix
from proxy.serving.reporting import Reporter
from proxy.serving.ticket import Ticket
from proxy.settings import Settings
from proxy.slots.anchoring import leaves_anchors

PATIENCE_S = 30.0
Logprobs = dict[str, float]


@dataclass(slots=True)
class Answer:
    """One answer as its client saw it."""

    status: int = 0
    data: bytes = b""
    headers_s: float = 0.0
    """Seconds until the headers came."""
    text: str = ""
    timings: dict[str, Any] = field(default_factory=dict)
    logprobs: list[Logprobs] = field(default_factory=list)
    """Of the likeliest tokens, for each place of the answer."""

    @property
    def prefilled(self) -> int:
        return int(self.timings["prompt_n"])

    @property
    def reused(self) -> int:
        return int(self.timings["cache_n"])

    @property
    def prompt_tokens(self) -> int:
        return self.prefilled + self.reused

    def take(self, event: dict[str, Any]) -> None:
        """Take what one event, or a whole answer, tells."""
        self.timings = event.get("timings") or self.timings
        for choice in event.get("choices") or ():
            said = choice.get("delta") or choice.get("message") or {}
            self.text += said.get("content") or ""
            for place in (choice.get("logprobs") or {}).get("content") or ():
                self.logprobs.append({top["token"]: top["logprob"] for top in place["top_logprobs"]})


class Recorder(Reporter):
    """Reports, and remembers what it reported."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Ticket] = []
        self.warm_ups: list[Any] = []
        self.anchors: list[Any] = []
        self.begun_warm_ups = 0
        self.troubles: list[str] = []
        self.said: dict[str, str] = {}
        """What was said of each trouble last."""
        self.bugs: list[BaseException] = []
        self.changed = asyncio.Event()

    def settled(self, ticket: Ticket, *told: Any, **more: Any) -> None:
        super().settled(ticket, *told, **more)
        self.requests.append(ticket)
        self.changed.set()

    def warming(self, *told: Any, **more: Any) -> None:
        super().warming(*told, **more)
        self.begun_warm_ups += 1
        self.changed.set()

    def warmed(self, slot: int, told: Any, *others: Any, **more: Any) -> None:
        super().warmed(slot, told, *others, **more)
        self.warm_ups.append(told)
        self.changed.set()

    def anchored(self, slot: int, told: Any, *others: Any, **more: Any) -> None:
        super().anchored(slot, told, *others, **more)
        self.anchors.append(told)

    @property
    def prefilled(self) -> int:
        """Tokens that prompts of ours prefilled so far."""
        return sum(told.prompt_n for told in (*self.warm_ups, *self.anchors))

    def trouble(self, reason: str, words: str) -> None:
        super().trouble(reason, words)
        self.troubles.append(reason)
        self.said[reason] = words
        self.changed.set()

    def bug(self, error: BaseException, *told: Any, **more: Any) -> None:
        # Unsaid: it is raised at the end, and a traceback written here would block the event loop.
        self.bugs.append(error)
        self.changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a report that makes this true."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


@dataclass(slots=True)
class Running:
    """A proxy that runs."""

    proxy: Proxy
    heard: Recorder
    client: aiohttp.ClientSession
    asked: int = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}/v1"

    @property
    def prefix(self) -> ExactPrefix:
        """The exact prefix of the latest request, as the engine knows it."""
        return self.proxy.engine.model.prefixes[self.last.visit.rendering]

    @property
    def able_to_do_better_alone(self) -> bool:
        """Whether the first session on this server leaves a better in-memory checkpoint than a warm-up would."""
        able = self.proxy.engine.model.able
        return able.needs_anchors and not leaves_anchors(able)

    @property
    def last(self) -> Ticket:
        return self.heard.requests[-1]

    @property
    def sources(self) -> list[str]:
        """How each request's prefix came to be warm, in the order of their ends."""
        return [str(ticket.plan.source) for ticket in self.heard.requests]

    @property
    def reasons(self) -> list[str]:
        return [ticket.plan.reason for ticket in self.heard.requests]

    async def ask(self, body: Body, headers: Mapping[str, str] | None = None) -> Answer:
        """Ask, read to the end, and wait until the engine has accounted for it."""
        before = len(self.heard.requests)
        answer = await ask(self.client, self.base_url, body, headers)
        if answer.status and b'"proxy_error"' not in answer.data:
            await self.heard.until(lambda: len(self.heard.requests) > before)
        return answer


@asynccontextmanager
async def running(server: LlamaServer | str, **settings: Any) -> AsyncIterator[Running]:
    """The proxy in front of a server while the block runs; whatever bug it met fails the block."""
    base_url = server if isinstance(server, str) else server.base_url
    with TemporaryDirectory() as home:
        own = {"dir": Path(home) / "index", "port": 0, "admin_port": None, **settings}
        async with _running(Settings(_env_file=None, base_url=base_url, **own)) as proxied:  # type: ignore[call-arg]
            yield proxied


@asynccontextmanager
async def _running(settings: Settings) -> AsyncIterator[Running]:
    proxy = Proxy(settings)
    heard = proxy.reporter = Recorder()
    try:
        await proxy.start()
        async with talking() as client:
            yield Running(proxy, heard, client)
    finally:
        await proxy.close()
    if heard.bugs:
        raise heard.bugs[0]


@asynccontextmanager
async def talking(patience_s: float = PATIENCE_S) -> AsyncIterator[aiohttp.ClientSession]:
    """A client with a connection for each request: llama-server closes one that has streamed."""
    fresh = aiohttp.TCPConnector(force_close=True, limit=0)
    patience = aiohttp.ClientTimeout(total=patience_s)
    agent = {"User-Agent": USER_AGENTS["1.6"]}
    async with aiohttp.ClientSession(connector=fresh, headers=agent, timeout=patience) as client:
        yield client


async def ask(
    client: aiohttp.ClientSession, base_url: str, body: Body, headers: Mapping[str, str] | None = None
) -> Answer:
    """Ask whoever is there and read the answer to its end."""
    asked_at = time.monotonic()
    answer = Answer()
    async with client.post(f"{base_url}/chat/completions", json=body, headers=headers) as response:
        answer.status, answer.headers_s = response.status, time.monotonic() - asked_at
        async for line in response.content:
            answer.data += line
            if line.startswith(b"data: {"):
                answer.take(orjson.loads(line.removeprefix(b"data: ")))
    if answer.data.startswith(b"{"):
        answer.take(orjson.loads(answer.data))
    return answer


async def ask_directly(server: LlamaServer, *bodies: Body) -> list[Answer]:
    """Ask a server itself, one after the other."""
    async with talking() as client:
        return [await ask(client, server.base_url, body) for body in bodies]


async def ask_server(server: LlamaServer, path: str, body: Any = None) -> Any:
    """Any other call straight to a server: GET without a body, else POST."""
    async with talking() as client:
        method = "GET" if body is None else "POST"
        async with client.request(method, f"{server.url}{path}", json=body) as response:
            return await response.json(content_type=None)


def telling(body: Body) -> Body:
    """The same request, answered with log-probabilities: not streamed, as there are none beside tools in a stream."""
    rest = {name: value for name, value in body.items() if name != "stream_options"}
    return {**rest, "stream": False, "logprobs": True, "top_logprobs": 5}


def sessions(*folders: str, tokens: int = 2000, **traits: Any) -> list[Body]:
    """First requests of sessions in these folders, answered without chance."""
    return [{**session(folder, prefix_tokens=tokens, max_tokens=8, **traits), "temperature": 0} for folder in folders]


def distance(one: Answer, other: Answer) -> float:
    """The largest difference of log-probabilities, as far as both answers took the same way."""
    largest = 0.0
    for mine, theirs in zip(one.logprobs, other.logprobs, strict=True):
        largest = max(largest, *(abs(mine[token] - theirs.get(token, float("-inf"))) for token in list(mine)[:3]))
        if next(iter(mine)) != next(iter(theirs)):
            break
    return largest
