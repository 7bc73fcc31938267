"""What a client sees of its sessions: each turn asked as an agent asks, its stream read to the end, its figures kept.

Owns: the conversation of one client with one base URL. Knows nothing of who answers there, so that a server and a
proxy in front of another can be compared from outside.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from proxy.demo.sessions import USER_AGENTS, Body, next_turn


@dataclass(frozen=True, slots=True)
class Turn:
    """One answered request: what it cost, by the answer's own figures and the client's clock."""

    session: str
    number: int
    prefilled: int
    reused: int
    first_token_ms: float
    answer: str
    prompt_ms: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.prefilled + self.reused


async def ask_in_turns(
    base_url: str, sessions: Sequence[tuple[str, Body]], says: Sequence[str], tell: Callable[[str], None]
) -> list[Turn]:
    """Ask every session's first question, then every session's second, and so on, as parallel agents would.

    `says` are the user's words after the first turn; `tell` is told what is being waited for.
    """
    bodies = dict(sessions)
    turns: list[Turn] = []
    # A connection each: llama-server closes one that has streamed, and may do so just as the next request is sent.
    fresh = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=fresh, headers={"User-Agent": USER_AGENTS["1.6"]}) as client:
        for number, word in enumerate([*says, ""], start=1):
            for name, body in list(bodies.items()):
                tell(f"turn {number} in {name}")
                turn = await ask(client, base_url, name, number, body)
                turns.append(turn)
                bodies[name] = next_turn(body, turn.answer, word)
    return turns


async def ask(
    client: aiohttp.ClientSession,
    base_url: str,
    name: str,
    number: int,
    body: Body,
    began: asyncio.Event | None = None,
) -> Turn:
    """Send one request and read its answer to the end; `began` is set at the first token."""
    asked_at = time.perf_counter()
    first_token_at: float | None = None
    answer, timings = "", dict[str, Any](prompt_n=0, cache_n=0, prompt_ms=0.0)
    async with client.post(f"{base_url}/chat/completions", json=body, raise_for_status=True) as response:
        async for event in _events(response):
            if text := _text(event):
                first_token_at = first_token_at or time.perf_counter()
                answer += text
                if began is not None:
                    began.set()
            timings = event.get("timings") or timings
    first_token_ms = ((first_token_at or time.perf_counter()) - asked_at) * 1000
    return Turn(
        name, number, timings["prompt_n"], timings["cache_n"], first_token_ms, answer, prompt_ms=timings["prompt_ms"]
    )


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.startswith(b"data: {"):
            yield orjson.loads(line.removeprefix(b"data: "))


def _text(event: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))
