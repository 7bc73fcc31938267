"""A look at the slots that comes back when its request is long over gives that request nothing any more."""

import asyncio
from dataclasses import replace

import pytest

from proxy.demo.sessions import next_turn
from tests.conftest import StartLlama
from tests.load.players import Ask, put
from tests.load.quiet import at_rest
from tests.load.relay import Call, relay
from tests.serving.running import running, sessions


@pytest.mark.parametrize("flags", [(), ("-np", "4", "--no-kv-unified")], ids=["default-flags", "four-slots"])
async def test_the_client_left_during_the_look(start_llama: StartLlama, flags: tuple[str, ...]) -> None:
    """No lease stays on the slot that was found too late."""
    is_armed, is_held, is_over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold(call: Call) -> None:
        is_armed.set() if call.body.get("max_completion_tokens") == 400 else None
        if call.path == "/slots" and is_armed.is_set() and not is_held.is_set():
            is_held.set()
            await is_over.wait()

    server = start_llama("hybrid", *flags)
    (body,) = sessions("/a", tokens=600)
    long = Ask("left", {**body, "max_completion_tokens": 400}, leaves_after=3)
    async with relay(server, hold) as url, running(url) as proxied:
        answer = await proxied.ask(body)
        later = next_turn(long.body, answer.text, "go on")
        await put(proxied.client, proxied.base_url, replace(long, body=later))
        await proxied.heard.until(lambda: 2 == len(proxied.heard.requests))
        assert is_held.is_set()
        is_over.set()
        await proxied.ask(body)
        await at_rest(proxied)
