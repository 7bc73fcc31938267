"""One proxy under mixed load and faults for as long as wanted, and moments of rest to see whether it has grown.

A day after the other: guests and faults for a while, then a breather, in which a plain request must be served at once,
all that was held for requests must be given back, and tasks, descriptors and memory are read. In the end the proxy has
still to be of use, what it believes has to be so, no temporary file may be left, and the answers that were kept are
compared with those of a quiet server.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.soak.ending import differing, forgotten, unbelievable
from bench.soak.faults import Faults
from bench.soak.growth import Grown, Rest, growth
from bench.soak.guests import CLIENT_PATIENCE_S, Guest, Scene, new_session
from bench.soak.house import House, housed
from bench.soak.odd_guests import References, guests
from bench.soak.tally import Tally
from bench.soak.watch import Sample, Watcher, counted
from tests.load.players import Ask
from tests.serving.running import talking

LOOKS_EVERY_S = 1.0
REST_WITHIN_S = 15.0
REST_LOOKS_EVERY_S = 0.4
REST_S = 5.0
DAYS = 50
WARM_UP = 0.1
"""Part of the days after which everything that fills has begun to."""
MOST_REST_S = 12.0
"""Longer than a connection is kept that is of no use any more: up to twice 4 s."""
MANY = 1 << 30


@dataclass(frozen=True, slots=True)
class Course:
    """How long everything takes."""

    days: int
    load_s: float
    rest_s: float

    @classmethod
    def of(cls, minutes: float) -> "Course":
        seconds = minutes * 60
        days = max(2, min(DAYS, round(seconds / 30)))
        return cls(days, max(4.0, seconds / days - REST_S), REST_S)

    @property
    def warm_up(self) -> int:
        """The days that are not compared."""
        return int(self.days * WARM_UP)


@dataclass(slots=True)
class Day:
    """What a table tells of a day."""

    ended_at_s: float
    tally: Tally
    faults: dict[str, int]
    rest: Sample
    reuse: float
    most_waiting: int
    most_tasks: int
    most_rss_mb: float
    wrong: list[str]


@dataclass(slots=True)
class Outcome:
    """What came of it all."""

    seed: int
    days: list[Day] = field(default_factory=list)
    grown: list[Grown] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """What must not be, growth apart."""
    counted: dict[str, int] = field(default_factory=dict)
    """By the proxy's own metrics."""
    compared: int = 0
    """Answers that were held against a quiet server's."""

    @property
    def has_failed(self) -> bool:
        return bool(self.wrong) or any(one.is_too_much for one in self.grown)


@dataclass(slots=True)
class Mix:
    """Runs it."""

    house: House
    scene: Scene
    watcher: Watcher
    faults: Faults
    everybody: list[Guest]
    outcome: Outcome
    began: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    """Of this day."""
    level: tuple[int, int] = (MANY, MANY)
    """The least that was there in a rest."""

    async def live(self, course: Course, tell: Callable[[Day], None]) -> None:
        """All days, and the end."""
        await self._greet()
        rests: list[Rest] = []
        for number in range(course.days):
            day = await self._day(course, MOST_REST_S if course.days - 1 == number > 1 else course.rest_s)
            self.outcome.days.append(day)
            tell(day)
            if number >= course.warm_up:
                rests.append(_rest(day))
        self.outcome.grown = growth(rests)
        self.outcome.wrong += await unbelievable(self.house)
        self.outcome.wrong += await forgotten(self.house)

    async def _day(self, course: Course, rest_s: float) -> Day:
        self.scene.tally = tally = Tally(self.faults.excuses)
        self.faults.counts, self.samples = {}, []
        before = await self.watcher.look()
        async with self._watching():
            self.scene.until = time.monotonic() + course.load_s
            lives = [guest(self.scene, random.Random(self.scene.choose.random())) for guest in self.everybody]
            await asyncio.gather(self.faults.befall(self.scene.until), *lives)
            await self._greet()
            await self._come_to_rest()
            rest = await self._rest(rest_s)
        tally.judge(all_of_them=True)
        self.outcome.wrong += (wrong := self._complaints(tally))
        return Day(
            time.monotonic() - self.began, tally, self.faults.counts, rest, _reuse(before, rest),
            int(max(sample.metrics["queue_length"] for sample in self.samples)),
            max(sample.tasks for sample in self.samples),
            max(sample.rss_mb for sample in self.samples),
            wrong,
        )  # fmt: skip

    async def _greet(self) -> None:
        """A plain request when nothing is wrong: served."""
        await self.scene.chat(Ask("greeting", new_session(self.scene.choose, 1, 600)))

    async def _come_to_rest(self) -> None:
        until = time.monotonic() + REST_WITHIN_S
        while (seen := await self.watcher.look()) is None or seen.held or seen.temporary:
            if time.monotonic() > until:
                held = "no metrics" if seen is None else f"{seen.held}, {seen.temporary} temporary files"
                self.outcome.wrong.append(f"no rest in {REST_WITHIN_S:.0f} s: {held}")
                return
            await asyncio.sleep(REST_LOOKS_EVERY_S)

    async def _rest(self, seconds: float) -> Sample:
        """The least of what was seen while nobody asked anything: what stays is in all of them.

        Where it is more than in an earlier rest, time is given for what goes by itself after a while.
        """
        began, least = time.monotonic(), None
        while least is None or time.monotonic() < began + (seconds if _size(least) <= self.level else MOST_REST_S):
            sample = await self.watcher.look()
            if sample is not None and (least is None or _size(sample) <= _size(least)):
                least = sample
            await asyncio.sleep(REST_LOOKS_EVERY_S)
        self.level = min(self.level, _size(least))
        return least

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _watch(self) -> None:
        while True:
            if (sample := await self.watcher.look()) is not None:
                self.samples.append(sample)
            self.watcher.read_log()
            self.scene.tally.judge()
            await self.faults.keep_alive()
            await asyncio.sleep(LOOKS_EVERY_S)

    def _complaints(self, tally: Tally) -> list[str]:
        wrong = [*tally.wrong, *self.watcher.complaints, *self.faults.died_by_itself]
        self.watcher.complaints.clear()
        self.faults.died_by_itself.clear()
        return wrong


def _size(sample: Sample) -> tuple[int, int]:
    return sample.tasks, sample.fds


def _rest(day: Day) -> Rest:
    rest = day.rest
    return Rest(day.ended_at_s, rest.requests, rest.rss_mb, rest.fds, rest.tasks, rest.threads)


def _reuse(before: Sample | None, after: Sample) -> float:
    """Which part of the prompt tokens of a day was not prefilled."""
    names = ("prompt_tokens_reused_total", "prompt_tokens_prefilled_total")
    reused, prefilled = (
        after.metrics.get(name, 0.0) - (before.metrics.get(name, 0.0) if before else 0.0) for name in names
    )
    return reused / (reused + prefilled) if reused + prefilled else 0.0


async def soak(seed: int, course: Course, talkers: int, home: Path, tell: Callable[[Day], None]) -> Outcome:
    """Run it; files and logs are in `home`."""
    outcome = Outcome(seed)
    references = References()
    async with housed(seed, home, references.take) as house, talking(CLIENT_PATIENCE_S) as client:
        choose = random.Random(seed)
        faults = Faults(house, random.Random(choose.random()))
        everybody = guests(references, talkers)
        scene = Scene(house, client, Tally(faults.excuses), choose)
        watcher = Watcher(house, client)
        await Mix(house, scene, watcher, faults, everybody, outcome).live(course, tell)
        outcome.counted = counted(watcher.told)
        status = await asyncio.to_thread(house.proxy.stop)
        watcher.read_log()
        outcome.wrong += watcher.complaints
        outcome.wrong += [f"the proxy ended with {status}"] if status else []
        outcome.compared = len(scene.told)
        outcome.wrong += await differing(house, scene.told)
    return outcome
