"""What befalls the server, one thing at a time, from a seed: it dies, freezes, is cut off, finds its files spoilt.

Owns when a fault was active, and hence which answers it excuses. What befalls files excuses nothing: whatever lies on
the disk, or doesn't, a request is answered.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.soak.house import House

GRACE_S = 0.25
"""For so long after a fault, one that was just begun may still be hit by it."""
GAP_S = (1.0, 6.0)
FROZEN_S = (0.5, 7.0)
AWAY_S = (0.1, 3.0)
CUTTING_S = (0.5, 4.0)
NO_DIRECTORY_S = (1.0, 8.0)
NOTICED_S = 3.0
"""How long ago a server that is found dead may have died."""
DISK_BLAME_S = 30.0
"""A server that dies so soon after its files were spoilt may have read one between the proxy's look and its own."""
SPANS = 100


@dataclass(slots=True)
class Faults:
    """Makes them, and knows when they were."""

    house: House
    choose: random.Random
    counts: dict[str, int] = field(default_factory=dict)
    is_down: bool = False
    """Whether the server is meant not to run."""
    died_by_itself: list[str] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)
    _active: int = 0
    _spoilt_at: float = float("-inf")

    def excuses(self, began: float, ended: float) -> bool:
        """Whether a request between these moments may have suffered from a fault."""
        return bool(self._active) or any(start <= ended and began <= end + GRACE_S for start, end in self.spans)

    async def befall(self, until: float) -> None:
        """One after the other, until the time is up; the last one is over when this returns."""
        while (now := time.monotonic()) < until:
            await asyncio.sleep(min(self.choose.uniform(*GAP_S), until - now))
            if time.monotonic() < until:
                await self.one()

    async def one(self, name: str | None = None) -> None:
        """One fault, from its beginning to its end."""
        name = name or self.choose.choice(list(KINDS))
        self.counts[name] = self.counts.get(name, 0) + 1
        await KINDS[name](self)

    async def keep_alive(self) -> None:
        """Start a server that has ended though nobody had ended it."""
        if self.is_down or self.house.server.is_running or not self.house.slot_dir.exists():
            return
        status = self.house.server.wait_for_exit(0)
        if time.monotonic() - self._spoilt_at > DISK_BLAME_S:
            self.died_by_itself.append(f"the server ended by itself with {status}")
        async with self._lasting(since_s=NOTICED_S):
            self.is_down = True
            await self._start()

    async def killed(self) -> None:
        async with self._lasting():
            self.is_down = True
            self.house.door.shut()
            await asyncio.to_thread(self.house.server.kill)
            await asyncio.sleep(self.choose.uniform(*AWAY_S))
            await self._start()

    async def frozen(self) -> None:
        async with self._lasting():
            with suppress(ProcessLookupError):
                os.kill(self.house.server.pid, signal.SIGSTOP)
                await asyncio.sleep(self.choose.uniform(*FROZEN_S))
                os.kill(self.house.server.pid, signal.SIGCONT)

    async def cut(self) -> None:
        async with self._lasting():
            self.house.door.is_cutting = True
            until = time.monotonic() + self.choose.uniform(*CUTTING_S)
            while time.monotonic() < until:
                self.house.door.cut_some()
                await asyncio.sleep(self.choose.uniform(0.05, 0.5))
            self.house.door.is_cutting = False

    async def shut(self) -> None:
        async with self._lasting():
            self.house.door.shut()
            await asyncio.sleep(self.choose.uniform(*AWAY_S))
            await self.house.door.open()

    async def truncated(self) -> None:
        for path in self._some_files():
            with suppress(OSError):
                os.truncate(path, self.choose.randrange(max(1, path.stat().st_size)))

    async def deleted(self) -> None:
        for path in self._some_files():
            path.unlink(missing_ok=True)

    async def without_directory(self) -> None:
        """Moved away, and back: even root can't write there then."""
        self._spoilt_at = time.monotonic()
        away = self.house.slot_dir.with_name("slots-away")
        self.house.slot_dir.rename(away)
        try:
            await asyncio.sleep(self.choose.uniform(*NO_DIRECTORY_S))
        finally:
            away.rename(self.house.slot_dir)

    def _some_files(self) -> list[Path]:
        self._spoilt_at = time.monotonic()
        files = sorted(self.house.slot_dir.glob("pi-prefix-*.bin"))
        return self.choose.sample(files, k=min(len(files), self.choose.randint(1, 3)))

    async def _start(self) -> None:
        starting = asyncio.ensure_future(asyncio.to_thread(self.house.server.start))
        await self.house.door.open()
        await starting
        self.is_down = False

    @asynccontextmanager
    async def _lasting(self, since_s: float = 0.0) -> AsyncIterator[None]:
        """The time from here to the end of the block is excused."""
        began = time.monotonic() - since_s
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self.spans.append((began, time.monotonic()))
            del self.spans[:-SPANS]


KINDS: dict[str, Callable[[Faults], Awaitable[None]]] = {
    "killed": Faults.killed,
    "frozen": Faults.frozen,
    "cut": Faults.cut,
    "shut": Faults.shut,
    "truncated": Faults.truncated,
    "deleted": Faults.deleted,
    "no directory": Faults.without_directory,
}
