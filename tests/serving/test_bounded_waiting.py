"""Nobody waits for our work longer than `MAX_SILENCE`, and what was done until then is of use."""

import asyncio

import aiohttp
import pytest

from proxy.demo.sessions import Body, session
from tests.conftest import StartLlama
from tests.serving.running import ask, ask_directly, running, sessions

SLOW = ("-np", "1", "-t", "1", "-b", "32", "-ub", "32")
SILENCE_S = 1.0
SLACK_S = 0.5


async def test_a_warm_up_that_takes_too_long(start_llama: StartLlama) -> None:
    """The client sees its headers within `MAX_SILENCE` beyond direct, and what was prefilled until then is reused."""
    (body,) = sessions("/a", tokens=2500)
    server = start_llama("dense", *SLOW)
    (directly,) = await ask_directly(server, body)
    server.restart()
    async with running(server, max_silence=SILENCE_S) as proxied:
        answer = await proxied.ask(body)
    assert 200 == answer.status
    assert (0, ["warm_up_too_slow"]) == (len(proxied.heard.warm_ups), proxied.reasons), directly.timings
    assert directly.headers_s + SILENCE_S + SLACK_S >= answer.headers_s
    assert 0 < answer.reused
    assert directly.prompt_tokens == answer.prompt_tokens


async def test_whoever_waits_behind_it_waits_no_longer(start_llama: StartLlama) -> None:
    """A second session that waits for the same slow warm-up is in the server's queue within `MAX_SILENCE`."""
    bodies = sessions("/a", "/b", tokens=2500)
    server = start_llama("dense", *SLOW)
    async with running(server, max_silence=SILENCE_S) as proxied:
        asked = [asyncio.create_task(ask(proxied.client, proxied.base_url, body)) for body in bodies]
        answers = await asyncio.gather(*asked)
        await proxied.heard.until(lambda: 2 == len(proxied.heard.requests))
    assert [200, 200] == [answer.status for answer in answers]
    assert [True, True] == [t.ours_ms < (SILENCE_S + SLACK_S) * 1000 for t in proxied.heard.requests]
    assert answers[1].reused > answers[1].prefilled


async def leave_when(client: aiohttp.ClientSession, url: str, body: Body, tokens: int) -> None:
    """Leave after this many pieces of the answer; before any with 0."""
    async with client.post(f"{url}/chat/completions", json=body) as response:
        seen = 0
        async for line in response.content:
            seen += line.startswith(b"data: {")
            if seen > tokens:
                return


@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_the_client_leaves(start_llama: StartLlama, phase: str) -> None:
    """Within a second of a client's leaving its place is free, and the next request is served."""
    first = session("/a", prefix_tokens=2000, max_tokens=8000, user="look " * (9000 if phase == "prefill" else 1))
    server = start_llama("dense", "-np", "1", "-b", "64", "-ub", "64")
    async with running(server) as proxied:
        leaving = asyncio.create_task(leave_when(proxied.client, proxied.base_url, first, 1 << 30))
        model = proxied.proxy.engine.model
        async with asyncio.timeout(15):
            while not proxied.heard.warm_ups or not await is_at_work(proxied.client, server.url, phase):
                await asyncio.sleep(0.05)
        leaving.cancel()
        async with asyncio.timeout(1):
            while model.gate.inside or not model.turn.is_free:
                await asyncio.sleep(0.01)
        answer = await proxied.ask(sessions("/b")[0])
    assert 200 == answer.status
    assert 3000 > answer.prompt_tokens


async def is_at_work(client: aiohttp.ClientSession, url: str, phase: str) -> bool:
    async with client.get(f"{url}/slots") as response:
        (slot,) = await response.json()
    decoded = slot["next_token"][0]["n_decoded"] if isinstance(slot["next_token"], list) else 0
    return bool(slot["is_processing"]) and (decoded > 3 if phase == "decode" else slot["n_prompt_tokens"] > 3000)
