"""Random traces from seeds: what anybody's day could look like, small.

Owns: the two generators. A seed always gives the same requests, but for the answers in them; what is changed here
changes every day of the corpus, so it isn't: another kind of day is another generator. Counterpart: `corpus`.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

from bench.traces import Conversation, Size, Trace, World, agent, side_request, words

STEPS = 12
VARIED_STEPS = 16
OTHER_INSTALL_TOKENS = 400


def random_trace(seed: int) -> Trace:
    """Sessions of two installs begin, go on, are edited and asked about, one request at a time."""

    async def trace(world: World, size: Size) -> None:
        choose = random.Random(seed)
        sessions: list[Conversation] = []
        for step in range(STEPS):
            what = choose.choices(("new", "on", "edit", "side"), (3, 6, 1, 1))[0] if sessions else "new"
            if what == "new":
                install = choose.choice((1, 1, 2))
                sessions.append(agent(world, f"s{len(sessions)}", size, seed=install))
                await sessions[-1].turn()
            elif what == "side":
                await side_request(world, f"side{step}", words(choose.randint(40, 400), f"{seed} {step}")).turn()
            else:
                one = choose.choice(sessions)
                if what == "edit" and len(one.history) > 1:
                    one.body["messages"] = one.history[choose.randrange(1, len(one.history))][:-1]
                await one.turn(words(choose.choice((10, 60, 200, 700)), f"{seed} {step}"), "tool")

    return trace


def varied_trace(seed: int) -> Trace:
    """The same with several sessions in a folder, and whatever else clients do.

    They begin with questions of any length, ask again, edit any message, are forked and summed up, and some send
    answers back changed. On some days the server is restarted, and on some an install's prefix changes.
    """

    async def trace(world: World, size: Size) -> None:
        day = _Varied(world, size, seed)
        for step in range(VARIED_STEPS):
            await day.step(step)

    return trace


def dated_trace(seed: int) -> Trace:
    """The same of installs whose system text tells the date, which changes more often than a version: a week, say."""

    async def trace(world: World, size: Size) -> None:
        day = _Dated(world, size, seed)
        for step in range(VARIED_STEPS):
            await day.step(step)

    return trace


HABITS = {"new": 3.0, "on": 8.0, "edit": 1.0, "again": 0.7, "fork": 0.7, "summed_up": 0.4, "side": 1.0}
RESTARTS = 0.6
UPDATES = 0.5
LOADING_S = 1.2
"""A model of real size takes longer to load than the proxy to see that it was restarted; a tiny one does not."""


@dataclass(slots=True)
class _Session:
    talk: Conversation
    folder: str
    sends_back: Callable[[str], str]


def _as_it_came(answer: str) -> str:
    return answer


def _without_its_beginning(answer: str) -> str:
    return answer[len(answer) // 2 :]


class _Varied:
    """One such day; each step is a method."""

    def __init__(self, world: World, size: Size, seed: int) -> None:
        self._world, self._size, self._seed = world, size, seed
        self._choose = random.Random(f"varied {seed}")
        self._changes_answers = self._choose.choice((0.0, 0.0, 0.3, 1.0))
        self._habits = dict(HABITS)
        if self._choose.random() < 0.3:
            self._habits["restart"] = RESTARTS
        if self._choose.random() < 0.3:
            self._habits["update"] = UPDATES
        self._version = 1
        self._sessions: list[_Session] = []

    async def step(self, number: int) -> None:
        """What happens next."""
        what = self._choose.choices(list(self._habits), list(self._habits.values()))[0] if self._sessions else "new"
        text = words(self._choose.choice((2, 10, 60, 200, 700)), f"{self._seed} {number}")
        await getattr(self, f"_{what}")(text)

    async def _new(self, text: str) -> None:
        folders = [one.folder for one in self._sessions]
        is_known = bool(folders) and self._choose.random() < 0.5
        folder = self._choose.choice(folders) if is_known else f"/home/me/folder{len(folders)}"
        install = self._choose.choice((1, 1, 1, 2, 3))
        size = self._size if install < 3 else Size(OTHER_INSTALL_TOKENS, (), 0)
        talk = agent(self._world, f"s{len(self._sessions)}", size, user=text, seed=install, folder=folder)
        system = talk.body["messages"][0]
        told = system["content"].replace("\n</docs>", f"\n{self._changing_line()}\n</docs>")
        talk.body["messages"] = [system | {"content": told}, *talk.body["messages"][1:]]
        changes = self._choose.random() < self._changes_answers
        one = _Session(talk, folder, _without_its_beginning if changes else _as_it_came)
        self._sessions.append(one)
        await self._turn(one)

    def _changing_line(self) -> str:
        return f"version {words(1, str(self._version))}"

    async def _update(self, text: str) -> None:
        self._version += 1
        await self._new(text)

    async def _restart(self, text: str) -> None:
        await self._world.restart()
        await asyncio.sleep(LOADING_S)
        await self._on(text)

    async def _on(self, text: str) -> None:
        await self._turn(self._choose.choice(self._sessions), text)

    async def _edit(self, text: str) -> None:
        one = self._choose.choice(self._sessions)
        one.talk.body["messages"] = self._choose.choice(one.talk.history)[:-1]
        await self._turn(one, text)

    async def _again(self, _: str) -> None:
        one = self._choose.choice(self._sessions)
        one.talk.body["messages"] = one.talk.history.pop()
        await self._turn(one)

    async def _fork(self, text: str) -> None:
        one = self._choose.choice(self._sessions)
        talk = Conversation(self._world, f"s{len(self._sessions)}", dict(one.talk.body), list(one.talk.history))
        fork = _Session(talk, one.folder, one.sends_back)
        self._sessions.append(fork)
        await self._turn(fork, text)

    async def _summed_up(self, text: str) -> None:
        one = self._choose.choice(self._sessions)
        one.talk.body["messages"] = one.talk.body["messages"][:1]
        await self._turn(one, text)

    async def _side(self, text: str) -> None:
        await side_request(self._world, f"side {text[:20]}", text).turn()

    async def _turn(self, one: _Session, text: str = "") -> None:
        is_first = len(one.talk.body["messages"]) == 1
        await one.talk.turn(text, "user" if is_first else self._choose.choice(("user", "tool")))
        answer = one.talk.body["messages"][-1]
        changed = answer | {"content": one.sends_back(answer["content"])}
        one.talk.body["messages"] = [*one.talk.body["messages"][:-1], changed]


class _Dated(_Varied):
    """One such week."""

    def __init__(self, world: World, size: Size, seed: int) -> None:
        super().__init__(world, size, seed)
        self._habits["update"] = 2 * UPDATES

    def _changing_line(self) -> str:
        return f"Today is {date(2026, 12, 1) + timedelta(days=self._version)}."
