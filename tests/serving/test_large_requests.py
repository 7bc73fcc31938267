"""A request of megabytes costs the proxy no more than a small one: neither time of its own nor pauses of others."""

import asyncio
import io
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from proxy.demo.sessions import Body
from tests.conftest import StartLlama
from tests.serving.running import Running, running, sessions

WORDS = "find the file that holds the list and read it to the end before you change it. "
MEGABYTES_4 = 4_000_000 // len(WORDS)
MOST_OURS_MS = 1000
MOST_GAP_S = 0.1


@asynccontextmanager
async def gaps() -> AsyncIterator[list[float]]:
    """How long at most the event loop's thread worked without a pause; its own time, whatever else the machine does."""
    found = [0.0]

    async def tick() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            found.append(time.thread_time() - before)

    ticking = asyncio.create_task(tick())
    try:
        yield found
    finally:
        ticking.cancel()


def large(**traits: Any) -> Body:
    (body,) = sessions("/a", **traits)
    return body


async def ask_raw(proxied: Running, body: Body) -> int:
    """Ask with bytes that were made before: writing JSON is no work of the proxy's."""
    raw = orjson.dumps(body)
    url = f"{proxied.base_url}/chat/completions"
    async with gaps() as found:
        data, headers = io.BytesIO(raw), {"Content-Type": "application/json"}
        async with proxied.client.post(url, data=data, headers=headers) as answer:
            await answer.read()
        await proxied.heard.until(lambda: len(proxied.heard.requests) == 2)
    assert MOST_GAP_S > max(found)
    return answer.status


@pytest.mark.parametrize("where", ["user", "project_context", "stable text"])
async def test_four_megabytes(start_llama: StartLlama, where: str) -> None:
    """What no slot can hold is forwarded at once, unrendered, and nobody's stream pauses meanwhile."""
    body = large(**({where: WORDS * MEGABYTES_4} if where != "stable text" else {}))
    if where == "stable text":
        body["messages"][0]["content"] = WORDS * MEGABYTES_4 + body["messages"][0]["content"]
    server = start_llama("dense", "-np", "1")
    async with running(server) as proxied:
        await proxied.ask({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1})
        assert 400 == await ask_raw(proxied, body)
    assert ("no_prefix", 0) == (proxied.last.plan.reason, proxied.heard.begun_warm_ups)
    assert MOST_OURS_MS > proxied.last.ours_ms


async def test_a_little_more_than_a_slot_holds(start_llama: StartLlama) -> None:
    """A request that the server refuses makes it prefill nothing."""
    body = large(user=WORDS * 300)
    server = start_llama("dense", "-np", "1", ctx=4096)
    async with running(server) as proxied:
        assert 400 == (await proxied.ask(body)).status
    assert ("no_prefix", 0) == (proxied.last.plan.reason, proxied.heard.begun_warm_ups)
    assert 4096 < proxied.last.n_rendered


async def test_half_a_megabyte_that_fits(start_llama: StartLlama) -> None:
    """The prefix is found without rendering all that follows it, and is the one of any other request."""
    server = start_llama("dense", "-np", "1", ctx=400_000)
    async with running(server) as proxied, gaps() as found:
        asked = asyncio.create_task(proxied.ask(large(user=WORDS * 7000)))
        await proxied.heard.until(lambda: 1 == len(proxied.heard.warm_ups))
        asked.cancel()
        await proxied.ask(large())
    assert MOST_GAP_S > max(found)
    assert proxied.prefix.n_tokens == proxied.heard.warm_ups[0].prompt_n
