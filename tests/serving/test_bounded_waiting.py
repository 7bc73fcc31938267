"""Nobody waits for our work longer than `MAX_SILENCE`, and what was done until then is of use."""

import asyncio

from tests.conftest import StartLlama
from tests.serving.running import ask, ask_directly, running, sessions

# Fewer than 64 tokens at once are computed another way by a CPU, which takes it twenty times as long.
SLOW = ("-np", "1", "-t", "1", "-b", "32", "-ub", "32")
SILENCE_S = 1.0
SLACK_S = 0.5


async def test_a_warm_up_that_takes_too_long(start_llama: StartLlama) -> None:
    """The client sees its headers within `MAX_SILENCE` beyond direct, and what was prefilled until then is reused."""
    (body,) = sessions("/a", tokens=1200)
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
    bodies = sessions("/a", "/b", tokens=1200)
    server = start_llama("dense", *SLOW)
    async with running(server, max_silence=SILENCE_S) as proxied:
        asked = [asyncio.create_task(ask(proxied.client, proxied.base_url, body)) for body in bodies]
        answers = await asyncio.gather(*asked)
        await proxied.heard.until(lambda: 2 == len(proxied.heard.requests))
    assert [200, 200] == [answer.status for answer in answers]
    assert [True, True] == [t.ours_ms < (SILENCE_S + SLACK_S) * 1000 for t in proxied.heard.requests]
    assert answers[1].reused > answers[1].prefilled
