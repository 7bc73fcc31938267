"""Many clients at once: each goes on with its conversation until the time is up, a third of their requests are left.

Owns how clients of a crowd behave and what each of them saw; what must be true of it is the tests' business.
"""

import asyncio
import random
import time
from dataclasses import dataclass, field

import aiohttp

from proxy.demo.sessions import Body, next_turn, session
from proxy.demo.vocabulary import WORDS
from tests.load.players import PREFIX_TOKENS
from tests.serving.running import Answer, ask

LEAVES = 1 / 3
LEAVES_WITHIN_S = 1.5
SIDE = 0.1
INSTALLS = (1, 1, 2)
ANSWER_TOKENS = (4, 16)
GONE = (aiohttp.ClientError, TimeoutError)


@dataclass(slots=True)
class Member:
    """One client of the crowd."""

    choose: random.Random
    body: Body
    answer: Answer | None = None
    """The latest whole answer to `body`; None where it was left."""
    waits_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def live(self, client: aiohttp.ClientSession, base_url: str, until: float) -> None:
        """Ask until the time is up."""
        while time.monotonic() < until:
            if self.choose.random() < SIDE:
                await self._ask(client, base_url, self._side())
                continue
            self.go_on()
            limit = self.choose.uniform(0.01, LEAVES_WITHIN_S) if self.choose.random() < LEAVES else None
            self.answer = await self._ask(client, base_url, self.body, limit)

    def go_on(self) -> None:
        """The next turn; an answer that was left is asked for again."""
        if self.answer is not None:
            self.body = next_turn(self.body, self.answer.text, self.words(3, 40))

    def words(self, least: int, most: int) -> str:
        return " ".join(self.choose.choices(WORDS, k=self.choose.randint(least, most)))

    async def _ask(
        self, client: aiohttp.ClientSession, base_url: str, body: Body, limit_s: float | None = None
    ) -> Answer | None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                answer = await ask(client, base_url, body)
        except GONE as error:
            if limit_s is None:
                self.failures.append(f"{type(error).__name__} after {time.monotonic() - began:.1f} s")
            return None
        self.waits_s.append(answer.headers_s)
        if answer.status != 200:
            self.failures.append(f"{answer.status}: {answer.data[:200]!r}")
        return answer

    def _side(self) -> Body:
        said = {"role": "user", "content": self.words(10, 60)}
        return {"model": "tiny", "messages": [said], "max_completion_tokens": 8, "stream": True}


def members(count: int, seed: int) -> list[Member]:
    """A crowd, in some folders and of two installs."""
    choose = random.Random(seed)
    return [_member(random.Random(choose.random())) for _ in range(count)]


def _member(choose: random.Random) -> Member:
    install = choose.choice(INSTALLS)
    words = " ".join(choose.choices(WORDS, k=choose.randint(5, 40)))
    folder = f"/home/{choose.randrange(8)}"
    body = session(folder, seed=install, prefix_tokens=PREFIX_TOKENS[install], user=words)
    return Member(choose, {**body, "temperature": 0, "max_completion_tokens": choose.randint(*ANSWER_TOKENS)})


async def live_together(crowd: list[Member], client: aiohttp.ClientSession, base_url: str, seconds: float) -> None:
    """All of them at once."""
    until = time.monotonic() + seconds
    await asyncio.gather(*(member.live(client, base_url, until) for member in crowd))
