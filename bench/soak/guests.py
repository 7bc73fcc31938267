"""Those who chat as agents do: conversations that grow, new installs, sub-agents at once; some leave, whenever it is.

Each lives until the time is up and asks one thing after the other. Counterpart: `odd_guests` has those who do anything
else.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
import orjson

from bench.soak.house import SLOTS, House
from bench.soak.tally import Tally, flaw
from proxy.demo.sessions import Body, next_turn, session
from proxy.demo.vocabulary import WORDS
from tests.load.players import Ask, Asked, Player, put
from tests.serving.running import Answer

LEAVES = 0.15
LEAVES_WITHIN_S = 2.0
PAUSE_S = 0.3
TRIES_AGAIN_S = 0.5
CLIENT_PATIENCE_S = 90.0
"""Longer than anything here may take: a client that waits so long is one that is stuck."""
ASKS = (8, 40)
"""Of one player, before another takes its place."""
INSTALLS = 150
"""More than are remembered."""
KEPT = 40
"""Answers that are compared with those of a quiet server in the end."""
BROKEN = (aiohttp.ClientError, OSError, TimeoutError, EOFError, ValueError)
"""What an answer that breaks off is to its client."""


@dataclass(slots=True)
class Scene:
    """What all guests share."""

    house: House
    client: aiohttp.ClientSession
    tally: Tally
    choose: random.Random
    until: float = 0.0
    installs: int = 0
    """Others than the players have, that have come so far."""
    told: list[Asked] = field(default_factory=list)
    """Whole answers, with log-probabilities, a fair choice of them all."""
    n_told: int = 0

    @property
    def base_url(self) -> str:
        return f"{self.house.root_url}/v1"

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    async def chat(self, one: Ask, kind: str = "", leaves_s: float | None = None) -> Answer | None:
        """Ask and judge; None where there is no whole answer."""
        kind, began = kind or one.kind, time.monotonic()
        try:
            async with asyncio.timeout(leaves_s):
                answer = await put(self.client, self.base_url, one)
        except BROKEN as error:
            if leaves_s is not None and time.monotonic() - began >= leaves_s:
                self.tally.note_left(kind)
            else:
                self.tally.note(kind, began, f"broken: {type(error).__name__} {error}")
                await asyncio.sleep(TRIES_AGAIN_S)
            return None
        if one.leaves_after is not None and answer.status == 200:
            self.tally.note_left(kind)
            return answer
        words = flaw(answer, is_streamed=bool(one.body.get("stream")))
        self.tally.note(kind, began, words, answer.headers_s)
        if words:
            await asyncio.sleep(TRIES_AGAIN_S)
        if not words and answer.logprobs and not self.tally.excuses(began, time.monotonic()):
            self._keep(Asked(one, answer))
        return None if words else answer

    def _keep(self, told: Asked) -> None:
        self.n_told += 1
        if len(self.told) < KEPT:
            self.told.append(told)
        elif (at := self.choose.randrange(self.n_told)) < KEPT:
            self.told[at] = told


Guest = Callable[[Scene, random.Random], Awaitable[None]]


async def talker(scene: Scene, choose: random.Random) -> None:
    """One player after the other."""
    while not scene.is_over:
        player = Player(random.Random(choose.random()), SLOTS)
        for _ in range(choose.randint(*ASKS)):
            if scene.is_over:
                return
            one = player.next_ask()
            leaves_s = choose.uniform(0.01, LEAVES_WITHIN_S) if choose.random() < LEAVES else None
            answer = await scene.chat(one, leaves_s=leaves_s)
            if answer is not None:
                player.take(one, answer)
            await asyncio.sleep(choose.uniform(0, PAUSE_S))


async def newcomer(scene: Scene, choose: random.Random) -> None:
    """A session of an install that was not seen before, or not for long, and a turn or two of it."""
    while not scene.is_over:
        scene.installs = (scene.installs + 1) % INSTALLS
        body = new_session(choose, 100 + scene.installs, choose.randint(400, 1500))
        for _ in range(choose.randint(1, 3)):
            answer = await scene.chat(Ask("newcomer", body))
            if answer is None:
                break
            body = next_turn(body, answer.text, words(choose, 5, 60))
        await asyncio.sleep(choose.uniform(1, 5))


async def family(scene: Scene, choose: random.Random) -> None:
    """A session that goes on while sub-agents of its begin at once."""
    while not scene.is_over:
        body = new_session(choose, 1, 600, max_tokens=120)
        parent = asyncio.create_task(scene.chat(Ask("parent", body)))
        children = [Ask("child", new_session(choose, 1, 600)) for _ in range(choose.randint(2, 5))]
        leaves = [choose.uniform(0.01, LEAVES_WITHIN_S) if choose.random() < LEAVES else None for _ in children]
        await asyncio.gather(parent, *(scene.chat(one, leaves_s=s) for one, s in zip(children, leaves, strict=True)))
        if (answer := parent.result()) is not None:
            await scene.chat(Ask("parent", next_turn(body, answer.text, words(choose, 5, 60))))
        await asyncio.sleep(choose.uniform(1, 4))


def new_session(choose: random.Random, install: int, tokens: int, max_tokens: int = 12) -> Body:
    """Of this install, in some folder, about something."""
    folder, user = f"/home/{choose.randrange(8)}", words(choose, 5, 60)
    body = session(folder, seed=install, prefix_tokens=tokens, user=user, max_tokens=max_tokens)
    return {**body, "temperature": 0}


def words(choose: random.Random, least: int, most: int) -> str:
    """Something to say."""
    return " ".join(choose.choices(WORDS, k=choose.randint(least, most)))


def wire(body: Body | bytes, agent: str) -> bytes:
    """A chat as it goes over the wire."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nUser-Agent: {agent}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
