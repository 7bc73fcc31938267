"""What the parts of the engine share: settings, the model's record, the store, the reporter, and background work."""

import asyncio
import time
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.llama.client import ControlFailed
from proxy.serving.model import Model
from proxy.serving.reporting import Reporter
from proxy.serving.store import Store
from proxy.settings import Settings
from proxy.slots.ledger import Look

PULSE_ECHO_S = 1.0
"""For so long after empty tasks, looks that others took at the slots may still come in."""


class PlanBroken(Exception):  # noqa: N818
    """A step did not do what it should; the request goes on without the rest."""


class PlanAgain(Exception):  # noqa: N818
    """What the plan was made of was not so; with what is known now, another one is worth making."""


@dataclass(slots=True)
class Context:
    """One model on one upstream, and everything that is done about it."""

    settings: Settings
    report: Reporter
    store: Store
    model: Model
    number: int = 0
    """Tells the models of a router apart."""
    is_stopping: bool = False
    """Running requests may end; nothing is saved any more."""
    pulses: int = 0
    """How many requests have empty tasks sent ahead of them: slots change their task numbers by it."""
    pulsed_at: float = float("-inf")
    """When that ended last, on the monotonic clock."""
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    @property
    def has_slots_moved(self) -> bool:
        """Whether idle slots are being moved to host memory by empty tasks of ours, or were a moment ago."""
        return self.pulses > 0 or time.monotonic() - self.pulsed_at < PULSE_ECHO_S

    def observe(self, looks: list[Look], ours: Iterable[int] = (), pending: Collection[int] = ()) -> None:
        """Enter a look at `/slots`; what it took away is told."""
        are_moved = self.has_slots_moved
        can_be_moved = self.model.able.clears_idle is not False
        if surprised := self.model.ledger.observe(
            looks, ours, pending=pending, can_be_moved=can_be_moved, are_moved=are_moved
        ):
            self.report.surprised(surprised)

    def is_new(self, look: Look) -> bool:
        """Whether a slot has a task that nobody has accounted for."""
        if not 0 <= look.slot < len(self.model.ledger.slots):
            return False
        belief = self.model.ledger.slots[look.slot]
        if belief.lease:
            return belief.lease_task is not None and belief.lease_task != look.task
        return belief.seen is None or belief.seen.task != look.task

    def begun(self, looks: Sequence[Look]) -> Sequence[Look]:
        """The slots that a request of ours which has just begun may be in.

        A short answer is over already; the turn is still its request's, so no other of ours can have begun. Unless
        empty tasks were sent ahead: those have left new numbers in idle slots, too.
        """
        new = [look for look in looks if self.is_new(look)]
        busy = [look for look in new if look.is_busy]
        return busy or ([] if self.has_slots_moved else new)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have something done meanwhile."""
        task = asyncio.create_task(work)
        self.watch_over(task)
        return task

    def watch_over(self, task: "asyncio.Task[Any]") -> None:
        """Work that goes on by itself; an error of ours in it is told."""
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def tidy_up(self) -> None:
        """After a save: clean up and write the index, while requests go on."""
        self.spawn(self._tidy_up())

    async def _tidy_up(self) -> None:
        await self.store.clean_up()
        await self.store.flush()

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, PlanAgain | PlanBroken | ControlFailed):
            self.report.bug(error)

    async def close(self) -> None:
        """Let what is being accounted for end, stop everything else."""
        tasks = [*self._tasks, *self.model.flights.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=1.0)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
