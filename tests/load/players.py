"""Clients from a seed: what a player asks next follows from the seed and from the answers so far.

Owns the mix: sessions of two installs in some folders begin, go on, are retried and edited; short side requests without
tools come between; some answers are left in the middle, some are not streamed, some are wanted twice. A player does
not care who answers, so that the same asks can be put to a server afterwards and the answers compared.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import aiohttp
import orjson

from proxy.demo.sessions import Body, next_turn, session
from proxy.demo.vocabulary import WORDS
from tests.serving.running import Answer, ask, distance, telling

INSTALLS = (1, 1, 1, 2)
PREFIX_TOKENS = {1: 600, 2: 900}
KINDS = {"new": 3, "next": 6, "retry": 1, "edit": 1, "side": 2, "left": 2, "twice": 1}
TELLS_WHOLE = 0.4
ANSWER_TOKENS = (4, 24)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, and what its client does with the answer."""

    kind: str
    body: Body
    talk: int = -1
    """Which of the player's conversations it belongs to."""
    leaves_after: int | None = None
    """Leave after so many pieces of the answer."""

    @property
    def as_told(self) -> "Ask":
        """The same, answered with log-probabilities."""
        return self if self.leaves_after is not None else replace(self, body=telling(self.body))


@dataclass(frozen=True, slots=True)
class Asked:
    """A request and what came of it."""

    ask: Ask
    answer: Answer


@dataclass(slots=True)
class Player:
    """Asks one thing after the other."""

    choose: random.Random
    slots: int = 1
    talks: list[list[Body]] = field(default_factory=list)
    """The requests of each conversation, the latest last."""
    answers: list[list[str]] = field(default_factory=list)

    def next_ask(self) -> Ask:
        """What comes next."""
        open_talks = [i for i, texts in enumerate(self.answers) if texts]
        kind = self.choose.choices(list(KINDS), list(KINDS.values()))[0] if open_talks else "new"
        if kind == "side":
            return Ask(kind, self._as_it_comes(self._side()))
        if kind == "new":
            self.talks.append([])
            self.answers.append([])
            return Ask(kind, self._as_it_comes(self._first()), len(self.talks) - 1)
        return self._in_talk(kind, self.choose.choice(open_talks))

    def take(self, ask: Ask, answer: Answer) -> None:
        """The answer is part of what is asked later; one that was left is not."""
        if ask.talk < 0 or ask.leaves_after is not None or ask.kind == "twice":
            return
        self.talks[ask.talk].append(ask.body)
        self.answers[ask.talk].append(answer.text)

    def _in_talk(self, kind: str, talk: int) -> Ask:
        bodies, texts = self.talks[talk], self.answers[talk]
        if kind == "retry":
            body = bodies.pop()
            texts.pop()
            return Ask(kind, body, talk)
        if kind == "edit":
            at = self.choose.randrange(len(bodies))
            body = bodies[at]
            del bodies[at:], texts[at:]
            said = {"role": "user", "content": [{"type": "text", "text": self._words(5, 60)}]}
            return Ask(kind, {**body, "messages": [*body["messages"][:-1], said]}, talk)
        body = next_turn(bodies[-1], texts[-1], self._words(5, 150))
        if kind == "left":
            body = {**body, "stream": True, "max_completion_tokens": 60, "timings_per_token": True}
            return Ask(kind, _without_logprobs(body), talk, self.choose.randrange(1, 20))
        if kind == "twice" and self.slots > 1:
            return Ask(kind, telling({**body, "n": 2}), talk)
        return Ask("next", self._as_it_comes(body), talk)

    def _first(self) -> Body:
        install = self.choose.choice(INSTALLS)
        folder = f"/home/{self.choose.choice('abc')}"
        tokens = PREFIX_TOKENS[install]
        return self._answered(session(folder, seed=install, prefix_tokens=tokens, user=self._words(5, 60)))

    def _side(self) -> Body:
        messages = [
            {"role": "system", "content": "write a title of a few words"},
            {"role": "user", "content": self._words(20, 200)},
        ]
        return self._answered({"model": "tiny", "messages": messages})

    def _answered(self, body: Body) -> Body:
        return {**body, "temperature": 0, "max_completion_tokens": self.choose.randint(*ANSWER_TOKENS)}

    def _as_it_comes(self, body: Body) -> Body:
        if self.choose.random() < TELLS_WHOLE:
            return telling(body)
        return {**_without_logprobs(body), "stream": True, "stream_options": {"include_usage": True}}

    def _words(self, least: int, most: int) -> str:
        return " ".join(self.choose.choices(WORDS, k=self.choose.randint(least, most)))


def _without_logprobs(body: Body) -> Body:
    return {name: value for name, value in body.items() if "logprobs" not in name}


async def put(client: aiohttp.ClientSession, base_url: str, one: Ask) -> Answer:
    """Ask, and leave early where the client does."""
    if one.leaves_after is None:
        return await ask(client, base_url, one.body)
    answer = Answer()
    async with client.post(f"{base_url}/chat/completions", json=one.body) as response:
        answer.status = response.status
        async for line in response.content:
            if line.startswith(b"data: {"):
                answer.take(orjson.loads(line.removeprefix(b"data: ")))
                if len(answer.text) >= one.leaves_after:
                    break
    return answer


async def play(client: aiohttp.ClientSession, base_url: str, player: Player, asks: int) -> list[Asked]:
    """One client's day."""
    done: list[Asked] = []
    for _ in range(asks):
        one = player.next_ask()
        answer = await put(client, base_url, one)
        player.take(one, answer)
        done.append(Asked(one, answer))
        await asyncio.sleep(0)
    return done


def strays(told: Asked, reference: Answer) -> float:
    """How far an answer's log-probabilities are from the reference's.

    Where it came without any, how much less likely than the reference's own choice its first other letter was; tiny
    models say capitals only, each of them a token.
    """
    if told.ask.leaves_after is not None:
        return 0.0
    if told.answer.logprobs:
        return distance(told.answer, reference)
    for letter, place in zip(told.answer.text, reference.logprobs, strict=True):
        best = next(iter(place))
        if letter != best:
            return place[best] - place.get(letter, float("-inf"))
    return 0.0


def furthest(done: Sequence[Asked], references: Sequence[Answer]) -> float:
    """The largest of all."""
    return max((strays(one, reference) for one, reference in zip(done, references, strict=True)), default=0.0)
