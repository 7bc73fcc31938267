"""What came of the requests: counted by kind; what must not be is kept in words.

An answer that is not as it should be is judged a moment later, when it is known whether a fault was the reason.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from tests.serving.running import Answer

JUDGED_AFTER_S = 4.0
"""By then it has been noticed that the server died."""
DONE = b"data: [DONE]"
SHOWN = 160
MOST_WAIT_S = 45.0
"""A client waits for our work for 25 s at most, and then for its turn at the server."""
Excuses = Callable[[float, float], bool]


@dataclass(frozen=True, slots=True)
class Suspect:
    """An answer that needs an excuse."""

    began: float
    ended: float
    kind: str
    words: str


@dataclass(slots=True)
class Tally:
    """Of one stretch of time, or of all."""

    excuses: Excuses
    asked: Counter[str] = field(default_factory=Counter)
    fine: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)
    """Until the headers of chats that were answered while nothing was wrong."""
    wrong: list[str] = field(default_factory=list)
    suspects: list[Suspect] = field(default_factory=list)

    def note(self, kind: str, began: float, words: str, wait_s: float | None = None) -> None:
        """What one client saw; no words where all is as it should be."""
        self.asked[kind] += 1
        if words:
            self.suspects.append(Suspect(began, time.monotonic(), kind, words))
            return
        self.fine[kind] += 1
        if wait_s is not None and not self.excuses(began, time.monotonic()):
            self.waits_s.append(wait_s)

    def note_left(self, kind: str) -> None:
        """A client left, as it had meant to."""
        self.asked[kind] += 1
        self.left[kind] += 1

    def judge(self, *, all_of_them: bool = False) -> None:
        """Excuse, or not, what was seen long enough ago."""
        until = float("inf") if all_of_them else time.monotonic() - JUDGED_AFTER_S
        due = [one for one in self.suspects if one.ended <= until]
        self.suspects = [one for one in self.suspects if one.ended > until]
        for one in due:
            if self.excuses(one.began, one.ended):
                self.excused[one.words.partition(":")[0]] += 1
            else:
                self.wrong.append(f"{one.kind}, after {one.ended - one.began:.1f} s, with no fault about: {one.words}")

    @property
    def p95_s(self) -> float:
        """Of the waits."""
        return statistics.quantiles(self.waits_s, n=20)[-1] if len(self.waits_s) > 1 else 0.0


def flaw(answer: Answer, *, is_streamed: bool) -> str:
    """What a whole answer to a chat lacks; nothing where it lacks nothing."""
    shown = repr(answer.data[-SHOWN:])
    if answer.status != 200:
        return f"{answer.status}: {shown}"
    if is_streamed and not answer.data.rstrip().endswith(DONE):
        return f"no end: {shown}"
    if not is_streamed and not _is_object(answer.data):
        return f"no JSON: {shown}"
    if "prompt_n" not in answer.timings or "cache_n" not in answer.timings:
        return f"no timings: {shown}"
    if answer.headers_s > MOST_WAIT_S:
        return f"late: after {answer.headers_s:.0f} s"
    return "" if answer.text else f"no text: {shown}"


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(orjson.loads(data), dict)
    except orjson.JSONDecodeError:
        return False
