"""What a copy to host memory takes is measured on the server itself, and what is shorter than that is let go."""

import asyncio
from typing import Any

import pytest

from proxy.llama.client import LlamaClient
from proxy.serving.slot_steps import MOST_LET_GO
from tests.conftest import StartLlama
from tests.serving.running import running, sessions


async def test_a_copy_is_measured_against_the_prefill(start_llama: StartLlama) -> None:
    """In tokens: more than nothing, far less than a session; the rate is that of the warm-up."""
    first, second = sessions("/a", "/b")
    server = start_llama("hybrid", "-np", "1")
    async with running(server) as proxied:
        await proxied.ask(first)
        await proxied.ask(second)
        model = proxied.proxy.engine.model
        (warmed,) = proxied.heard.warm_ups
        assert 0 < model.copy_ms
        assert warmed.prompt_ms / warmed.prompt_n == model.prompt_ms_per_token
        assert 0 < model.able.copy_tokens <= MOST_LET_GO


async def test_a_copy_that_had_to_wait_costs_no_conversation(
    start_llama: StartLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside others each copy seems slow: what is let go for that stays short."""
    real = LlamaClient.copy

    async def slow(client: LlamaClient, *told: Any) -> None:
        await real(client, *told)
        await asyncio.sleep(0.5)

    monkeypatch.setattr(LlamaClient, "copy", slow)
    async with running(start_llama("hybrid", "-np", "1")) as proxied:
        first, second, third = sessions("/a", "/b", "/c")
        for body in (first, {**second, "tools": []}, first, third):
            await proxied.ask(body)
        assert MOST_LET_GO == proxied.proxy.engine.model.able.copy_tokens
