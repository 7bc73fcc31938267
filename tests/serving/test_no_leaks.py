"""Clients that leave in the middle of an answer leave nothing behind: no task, no descriptor, no place, no turn."""

import asyncio
from pathlib import Path

from tests.conftest import StartLlama
from tests.serving.running import running, sessions, talking

LEAVERS = 20


async def test_clients_that_leave_in_mid_answer(start_llama: StartLlama) -> None:
    """Twenty of them, one after the other: as many tasks and descriptors as before, within the noise of one request."""
    (body,) = sessions("/a", tokens=600)
    long = {**body, "max_completion_tokens": 400}
    server = start_llama("dense", "-np", "1")
    async with running(server) as proxied:
        await proxied.ask(body)
        tasks, files = len(asyncio.all_tasks()), len(list(Path("/proc/self/fd").iterdir()))
        async with talking() as client:
            for _ in range(LEAVERS):
                answer = await client.post(f"{proxied.base_url}/chat/completions", json=long)
                await answer.content.readany()
                answer.close()
        await proxied.heard.until(lambda: len(proxied.heard.requests) > LEAVERS)
        model = proxied.proxy.engine.model
        assert (0, True) == (model.gate.inside, model.turn.is_free)
        assert [0] == [belief.lease for belief in model.ledger.slots]
        assert len(asyncio.all_tasks()) <= tasks + 4
        assert len(list(Path("/proc/self/fd").iterdir())) <= files + 4
