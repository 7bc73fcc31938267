"""Any body at all: it reaches the server as it is, the server's answer comes back, and nothing of it stays.

`make fuzz` sends a hundred thousand; `FUZZ_SEED` sends others.
"""

import asyncio
import gc
import itertools
import os
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from proxy.demo.sessions import USER_AGENTS
from tests.conformance.exchange import told
from tests.conftest import StartLlama
from tests.faults.pretender import Pretender
from tests.fuzz.mutation import bodies, corpus
from tests.load.quiet import at_rest
from tests.serving.route import answer
from tests.serving.running import Running, running
from tests.wire import Message, Peer, RawClient, client, recording

SEED = int(os.environ.get("FUZZ_SEED", "1"))
CLIENTS, ON_ONE_LINE = 6, 20
MOST_GROWN_MB = 30.0
MOST_HELD_MB = 1.2
"""More than what is remembered of four hundred requests on purpose, less than that and their bodies (one of 2.5 kB)."""
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nUser-Agent: %b\r\nContent-Length: %d\r\n\r\n"
AGENT = USER_AGENTS["1.6"].encode()


class Tolerant(Pretender):
    """Takes any body for a chat, as the server reads it or refuses it, and says which bytes it got."""

    async def script(self, peer: Peer, message: Message) -> None:
        del self.memory[:-8], self.calls[:]
        if not message.target.startswith(b"/v1/chat"):
            try:
                await Pretender.script(self, peer, message)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                # So does a real one: nothing that a client sends is beyond being rendered for us.
                await peer.send(answer(b"{}", status=b"500 Internal Server Error"))
            return
        told = b'{"got":%d}' % zlib.crc32(message.body)
        try:
            asked = orjson.loads(message.body)
            self._ran({**asked, "messages": [*asked["messages"]]})
            await peer.send(answer(told, b"Content-Type: application/json"))
        except Exception:
            await peer.send(answer(told, status=b"400 Bad Request"))


def held_mb() -> float:
    """What Python holds, where that is traced; else what this process has in memory."""
    gc.collect()
    if tracemalloc.is_tracing():
        return tracemalloc.get_traced_memory()[0] / 1e6
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@asynccontextmanager
async def proxied_server() -> AsyncIterator[Running]:
    server = Tolerant()
    async with (
        recording(server.script) as upstream,
        running(f"http://127.0.0.1:{upstream.port}/v1", max_silence=5.0) as proxied,
    ):
        upstream.requests, upstream.peers = Forgetful(), Forgetful()
        yield proxied
        await at_rest(proxied)


class Forgetful(list[Any]):
    """What was recorded would be the growth that is looked for."""

    def append(self, _: Any) -> None:
        pass


async def send(visitor: RawClient, body: bytes) -> None:
    """The server has got these bytes, and what it says of them comes back."""
    said = await visitor.ask(HEAD % (AGENT, len(body)) + body)
    assert said.status in (200, 400), body
    assert b'{"got":%d}' % zlib.crc32(body) == said.body, body


async def send_all(port: int, more: Iterator[bytes]) -> None:
    """Several clients, until there are no more."""

    async def one() -> None:
        while some := [*itertools.islice(more, ON_ONE_LINE)]:
            async with client(port) as visitor:
                for body in some:
                    await send(visitor, body)

    async with asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(one())


@pytest.fixture
def traced() -> Iterator[None]:
    """Each byte that Python holds is counted: slow, but sees what some hundred requests leave behind."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


async def broken(count: int, part: int) -> float:
    """Send so many; by how many MB what is held grew in the later two thirds."""
    with capture_logs() as lines:
        async with proxied_server() as proxied:
            await send_all(proxied.proxy.port, iter(corpus()))
            before: float | None = None
            for start in range(0, count, part):
                await send_all(proxied.proxy.port, bodies(SEED + start, part))
                assert [] == [line for line in lines if line["log_level"] in ("error", "critical")]
                for heard in (proxied.heard.requests, proxied.heard.troubles, proxied.heard.warm_ups, lines):
                    heard.clear()
                # After a while most of what is remembered up to a limit is full.
                before = held_mb() if before is None and start + part >= count // 3 else before
            return held_mb() - (before or 0.0)


async def test_broken_requests(traced: None) -> None:
    """Each arrives as it was sent, none is answered by us, nothing is logged as an error, and no body stays."""
    assert await broken(600, part=100) < MOST_HELD_MB


@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_a_hundred_thousand_broken_requests() -> None:
    """The same, and the process stays as large as it is."""
    assert await broken(100_000, part=500) < MOST_GROWN_MB


async def heard(port: int, body: bytes) -> tuple[bytes, Any, Any]:
    """What is said to it, as far as it is the same each time: of an answer its head, of a refusal all."""
    async with client(port) as visitor:
        said = told(await visitor.ask(HEAD % (AGENT, len(body)) + body))
    return said.start, said.headers, None if b" 200 " in said.start else said.body


async def test_broken_requests_at_a_real_server(start_llama: StartLlama) -> None:
    """It reads, refuses or serves them as it does directly, in the very same words."""
    server = start_llama("dense", "-np", "1", "-n", "8", ctx=2048)
    statuses = set()
    with capture_logs() as lines:
        async with running(server) as proxied:
            for body in bodies(SEED, 100):
                directly = await heard(server.port, body)
                statuses.add(directly[0].split()[1])
                assert directly == await heard(proxied.proxy.port, body), body
            await at_rest(proxied)
    assert {b"200", b"400"} <= statuses
    assert [] == [line for line in lines if line["log_level"] in ("error", "critical")]


values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
texts = st.text(max_size=50) | st.just("a" * 300 + "\n\n<cwd>\n/a\n</cwd>")
ROLES = ["system", "developer", "user", "assistant", "tool", ""]
messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "developer", "user", "assistant", "tool", ""]) | values,
            "content": texts | values,
        },
        optional={"tool_calls": values, "tool_call_id": values, "name": values},
    )
    | values,
    max_size=4,
)
NAMES = ["stream", "n", "n_cmpl", "tools", "tool_choice", "id_slot", "cache_prompt", "lora", "model", "response_format"]
requests = st.fixed_dictionaries({"messages": messages | values}, optional=dict.fromkeys(NAMES, values))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=st.lists(requests, min_size=8, max_size=8))
def test_any_request_that_is_json(made: list[Any]) -> None:
    """Known fields with any values: read, prepared for or not, and passed."""

    async def scenario() -> None:
        async with proxied_server() as proxied:
            await send_all(proxied.proxy.port, map(orjson_or_not, made))

    asyncio.run(scenario())


def orjson_or_not(body: Any) -> bytes:
    try:
        return orjson.dumps(body)
    except (TypeError, ValueError):
        return repr(body).encode("utf-8", "surrogatepass")
