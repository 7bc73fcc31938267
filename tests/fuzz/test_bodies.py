"""Any body at all: it reaches the server as it is, the server's answer comes back, and nothing of it stays.

`make fuzz` sends a hundred thousand; `FUZZ_SEED` sends others.
"""

import asyncio
import gc
import itertools
import os
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
from tests.faults.pretender import Pretender
from tests.fuzz.mutation import bodies, corpus
from tests.load.quiet import at_rest
from tests.serving.route import answer
from tests.serving.running import Running, running
from tests.wire import Message, Peer, RawClient, client, recording

SEED = int(os.environ.get("FUZZ_SEED", "1"))
CLIENTS, ON_ONE_LINE = 6, 20
MOST_GROWN_MB = 30.0
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


def resident_mb() -> float:
    """What this process has in memory."""
    gc.collect()
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


@pytest.mark.parametrize("count", [600, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(7200)])])
async def test_broken_requests(count: int) -> None:
    """Each arrives as it was sent, none is answered by us, nothing is logged as an error, and memory stays."""
    with capture_logs() as lines:
        async with proxied_server() as proxied:
            await send_all(proxied.proxy.port, iter(corpus()))
            before: float | None = None
            for part in range(0, count, 500):
                await send_all(proxied.proxy.port, bodies(SEED + part, min(500, count - part)))
                proxied.heard.requests.clear()
                proxied.heard.troubles.clear()
                # After a while everything that is remembered up to a limit is full.
                before = resident_mb() if before is None and part >= count // 3 else before
                del lines[:-1000]
                assert [] == [line for line in lines if line["log_level"] in ("error", "critical")]
            grown = resident_mb() - (before or resident_mb())
    assert grown < MOST_GROWN_MB


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
