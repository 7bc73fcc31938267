"""What has to be true in the end, when the load is gone: beliefs are so, it is still of use, answers were right."""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp

from bench.soak.house import House
from proxy.demo.sessions import next_turn
from proxy.slots.ledger import LENGTH_TOLERANCE
from tests.load.players import Asked, furthest, put
from tests.load.traces import BESIDE_OTHERS
from tests.serving.running import ask, ask_server, sessions, talking

PER_RESUME = 24
BETWEEN_MARKS = 64
"""Where a model can't roll back, a server goes on from a mark; marks are at least so many tokens apart."""
TURNS = 4
UNTOLD = {"unknown"}


async def unbelievable(house: House) -> list[str]:
    """Slots of which the proxy believes something else than the server shows."""
    wrong = []
    async with talking() as client:
        believed = await _status(client, house)
    shown = {slot["id"]: slot for slot in await ask_server(house.server, "/slots")}
    for slot in believed["slots"]:
        n_tokens = shown[slot["slot"]].get("n_prompt_tokens", 0)
        thought = slot["prefix_tokens"] + slot["other_tokens"]
        if slot["holds"] not in UNTOLD and abs(n_tokens - thought) > LENGTH_TOLERANCE:
            wrong.append(f"slot {slot['slot']} holds {n_tokens} tokens, believed {slot['holds']} of {thought}")
    if not believed["slots"]:
        wrong.append(f"the proxy tells of no slot: {believed['server']}")
    return wrong


async def _status(client: aiohttp.ClientSession, house: House) -> Any:
    async with client.get(f"{house.admin_url}/status?requests=1") as answer:
        return await answer.json()


async def forgotten(house: House) -> list[str]:
    """Two conversations that take turns: from their second on each prefills what is new, as on the first day."""
    wrong, bodies = [], sessions("/p", "/q", tokens=600)
    before = [0] * len(bodies)
    async with talking() as client:
        for turn in range(TURNS):
            for at, body in enumerate(bodies):
                answer = await ask(client, f"{house.root_url}/v1", body)
                if answer.status != 200:
                    return [f"turn {turn} in the end: {answer.status} {answer.data[:160]!r}"]
                new = answer.prompt_tokens - before[at]
                if turn > 1 and answer.prefilled > new + PER_RESUME + BETWEEN_MARKS:
                    wrong.append(f"turn {turn} in the end, with {new} new tokens, prefilled {answer.prefilled}")
                before[at], bodies[at] = answer.prompt_tokens, next_turn(body, answer.text, "go on")
                await asyncio.sleep(0)
    return wrong


async def differing(house: House, told: Sequence[Asked]) -> list[str]:
    """Answers that are others than those of the same server when nobody else uses it."""
    await asyncio.to_thread(house.server.restart)
    async with talking() as client:
        references = [await put(client, house.server.base_url, one.ask.as_told) for one in told]
    apart = furthest(told, references)
    return [f"an answer is {apart:.2g} from a quiet server's"] if apart > BESIDE_OTHERS else []
