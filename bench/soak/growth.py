"""Has it grown? A decision over the quiet moments of a run: what the proxy holds when nobody asks anything. Pure.

Tasks and descriptors must not grow at all: at rest there is nothing to have them for. Memory may, a little: what is
remembered up to a limit fills (the last 10,000 requests; prefixes, conversations, reasons), and an allocator gives back
less than it takes. So each request that is still to be remembered has its allowance, and all the rest a small one.
Compared is the median of the first quarter with that of the last, so that no single moment decides; and the very end,
when there was all the time to come to rest, with the first quarter.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.serving.history import MAX_REQUESTS

SLACK_MB = 7.0
"""For all that is bounded but the history: 128 prefixes of a thousand tokens are some 4 MB, the rest is fragments."""
REMEMBERED_KB = 0.8
"""A request in the history: 630 bytes, measured, and what an allocator adds."""
THREADS = 6
"""A pool starts its threads one by one, when there is work for one more: on two cores it has six."""
QUARTER = 4


@dataclass(frozen=True, slots=True)
class Rest:
    """The proxy while nobody asks anything."""

    at_s: float
    requests: int
    """How many chats it has served so far."""
    rss_mb: float
    fds: int
    tasks: int
    threads: int


@dataclass(frozen=True, slots=True)
class Grown:
    """One of the things that must not grow."""

    what: str
    before: float
    after: float
    allowed: float
    unit: str = ""

    @property
    def is_too_much(self) -> bool:
        return self.after - self.before > self.allowed

    def __str__(self) -> str:
        words = "GREW" if self.is_too_much else "has not grown"
        return f"{self.what} {words}: {self.before:.4g} → {self.after:.4g}{self.unit} (may grow by {self.allowed:.3g})"


def growth(rests: Sequence[Rest]) -> list[Grown]:
    """Each thing that is watched; needs two moments at least, the first after the warm-up."""
    if len(rests) < 2:
        raise ValueError("growth needs a beginning and an end")
    quarter = max(1, len(rests) // QUARTER)
    first, last, end = rests[:quarter], rests[-quarter:], rests[-1]
    remembered = min(MAX_REQUESTS, end.requests) - min(MAX_REQUESTS, first[0].requests)
    memory_mb = SLACK_MB + remembered * REMEMBERED_KB / 1000

    def compared(what: str, read: Callable[[Rest], float], allowed: float, unit: str = "") -> Grown:
        before = statistics.median(map(read, first))
        return Grown(what, before, max(statistics.median(map(read, last)), read(end)), allowed, unit)

    return [
        compared("memory", lambda rest: rest.rss_mb, memory_mb, " MB"),
        compared("descriptors", lambda rest: rest.fds, 0),
        compared("tasks", lambda rest: rest.tasks, 0),
        compared("threads", lambda rest: rest.threads, THREADS),
    ]
