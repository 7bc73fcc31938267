"""The seeds that are kept of random days (`days`).

Owns: the corpus. A seed whose trace once cost more through the proxy than directly is added to it, with a word about
why, and stays.
"""

from dataclasses import dataclass
from itertools import product

from bench.days import dated_trace, random_trace, varied_trace
from bench.traces import Size, Trace

SMALL = Size(900, (), 0)


@dataclass(frozen=True, slots=True)
class Day:
    """A trace and the server that it is played on."""

    seed: int
    model: str
    flags: str
    why: str = ""
    """What it found."""
    is_varied: bool = False
    """Whether it is one of the second generator, and so with the others."""
    is_dated: bool = False
    is_used: bool = False
    """Whether somebody has used the server before the proxy meets it: then it can't be probed."""
    is_long: bool = False
    """Whether it is tried with the long tests only."""

    @property
    def trace(self) -> Trace:
        made = dated_trace if self.is_dated else varied_trace if self.is_varied else random_trace
        return made(self.seed)

    def __str__(self) -> str:
        kind = f"{'used-' * self.is_used}{'varied-' * self.is_varied}{'dated-' * self.is_dated}"
        return f"{kind}{self.seed}-{self.model}-{self.flags}"


CORPUS = (
    Day(1, "dense", "one"),
    Day(4, "hybrid", "default"),
    Day(6, "dense", "default", "a restore took the place of a copy whose last message was edited", is_long=True),
    Day(3, "hybrid", "one", "a restore took the place of a longer in-memory checkpoint when a message was edited"),
    Day(
        21,
        "swa-full",
        "one",
        "a warm-up had spent a copy that was to be resumed; and no copy goes back",
    ),
    Day(
        12,
        "swa",
        "default",
        "what comes back from host memory has the window only: sessions after later turns",
        is_long=True,
    ),
    Day(
        13,
        "hybrid-last",
        "one",
        "of a warm-up's and a request's checkpoints the server keeps one: early edits",
        is_long=True,
    ),
    Day(21, "swa", "one", "a new session in a later turn of another", is_long=True),
    Day(3, "swa", "default", "an anchor was loaded in the place of a longer in-memory checkpoint", is_long=True),
    Day(
        33,
        "hybrid-last",
        "one",
        "what had been gone back in was copied, and loaded when its client went back again",
        is_long=True,
    ),
    Day(33, "swa-full", "one", "the same, and a conversation that came back was gone back in"),
    Day(
        35,
        "swa",
        "default",
        "what comes back has its window only: for a little it took the place of a slot that had all",
    ),
    Day(35, "swa-full", "one", "the same", is_long=True),
    Day(
        42,
        "swa-full",
        "default",
        "the same, and a prefix that was in host memory only was prefilled again",
        is_long=True,
    ),
    Day(43, "swa-full", "one", "a copy in which nothing can be gone back was loaded for an edit", is_long=True),
    Day(54, "hybrid-last", "one", "an edit behind a long question: no checkpoint lay where one was expected"),
    Day(60, "swa", "default", "what comes back has its window only"),
    Day(6, "hybrid-last", "default-noram", "a prefix was put over another install's conversation", is_long=True),
    Day(3, "hybrid-last", "default-noram", "the same", is_long=True),
    Day(4, "swa", "default-noram", "what the probe had left in other slots took room from a window", is_long=True),
    Day(1, "hybrid-last", "one", "sessions in one folder share more than the exact prefix", is_varied=True),
    *(
        Day(seed, "hybrid-last", flags, "the same", is_varied=True, is_long=True)
        for seed, flags in product(range(1, 6), ("one", "default"))
        if (seed, flags) != (1, "one")
    ),
    Day(
        1,
        "swa-full",
        "one",
        "that an answer had come back changed showed when its copy was loaded",
        is_varied=True,
        is_long=True,
    ),
    Day(1, "swa-full", "default", "the same", is_varied=True, is_long=True),
    Day(6, "swa-full", "one", "the same, in a fork", is_varied=True, is_long=True),
    Day(6, "swa-full", "default", "the same", is_varied=True, is_long=True),
    Day(2, "hybrid", "one-noram", "a warm-up's checkpoint took a better one's place", is_varied=True, is_long=True),
    Day(2, "hybrid", "default-noram", "the same", is_varied=True, is_long=True),
    Day(
        4,
        "hybrid-last",
        "default-noram",
        "the same; with files another's prefix, too",
        is_varied=True,
        is_long=True,
    ),
    *(
        Day(seed, model, flags, "the same", is_varied=True, is_long=True)
        for seed, model, flags in (
            (1, "hybrid-last", "one-noram"),
            (1, "hybrid-last", "default-noram"),
            (1, "swa", "one-noram"),
            (2, "hybrid-last", "default-noram"),
            (2, "swa", "one-noram"),
            (3, "hybrid-last", "default-noram"),
            (5, "hybrid-last", "one-noram"),
            (5, "hybrid-last", "default-noram"),
            (5, "swa", "one-noram"),
        )
    ),
    Day(3, "swa", "default-noram", "what the probe had left in other slots", is_varied=True, is_long=True),
    Day(4, "swa", "default-noram", "the same", is_varied=True, is_long=True),
    Day(
        23,
        "hybrid-last",
        "one",
        "anchors in a copy's way were given up, then wanted",
        is_varied=True,
        is_long=True,
    ),
    Day(
        28,
        "hybrid-last",
        "one",
        "a question before a head's end was thought marked",
        is_varied=True,
        is_long=True,
    ),
    Day(24, "swa-full", "one", "sessions in one folder share more than the exact prefix", is_varied=True, is_long=True),
    Day(28, "swa-full", "one", "the same", is_varied=True, is_long=True),
    Day(
        5,
        "swa-full",
        "one",
        "what came back had its window only, and a new prefix found nothing of what both share",
        is_dated=True,
    ),
    Day(1, "swa-full", "one", "the same", is_dated=True, is_long=True),
    Day(1, "hybrid-last", "one", "nobody had tried what the server can do", is_varied=True, is_used=True),
    *(
        Day(seed, model, "one", "the same", is_varied=True, is_used=True, is_long=True)
        for seed, model in ((1, "dense"), (1, "swa"), (2, "hybrid-last"), (8, "swa"))
    ),
    Day(4, "dense", "one", "the same", is_used=True, is_long=True),
    Day(2, "swa", "one", "nobody had tried what the server can do", is_used=True, is_long=True),
    *(
        Day(seed, "hybrid-last", "one", why, is_varied=True, is_used=True, is_long=True)
        for seed, why in (
            (4, "a prefix was restored, and a head built, where the server could go back farther"),
            (5, "a prefix was built where a copy had all of it, and the head"),
            (6, "what a warm-up left to go back to outlived what requests left"),
        )
    ),
)
