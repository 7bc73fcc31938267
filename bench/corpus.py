"""Random traces from seeds, and the seeds that are kept: what anybody's day could look like, small.

Owns: the corpus. A seed whose trace once cost more through the proxy than directly is added to it, with a word about
why, and stays.
"""

import random
from dataclasses import dataclass

from bench.traces import Conversation, Size, Trace, World, agent, side_request, words

SMALL = Size(900, (), 0)
STEPS = 12


@dataclass(frozen=True, slots=True)
class Day:
    """A trace and the server that it is played on."""

    seed: int
    model: str
    flags: str
    why: str = ""
    """What it found."""

    def __str__(self) -> str:
        return f"{self.seed}-{self.model}-{self.flags}"


CORPUS = (
    Day(1, "dense", "one"),
    Day(4, "hybrid", "default"),
    Day(6, "dense", "default", "a restore took the place of a copy whose last message was edited"),
    Day(3, "hybrid", "one", "a restore took the place of a longer in-memory checkpoint when a message was edited"),
    Day(
        21,
        "swa-full",
        "one",
        "a warm-up had spent a copy that was to be resumed; and no copy goes back",
    ),
    Day(12, "swa", "default", "what comes back from host memory has the window only: sessions after later turns"),
    Day(13, "hybrid-last", "one", "of a warm-up's and a request's checkpoints the server keeps one: early edits"),
    Day(21, "swa", "one", "a new session in a later turn of another"),
    Day(3, "swa", "default", "an anchor was loaded in the place of a longer in-memory checkpoint"),
    Day(33, "hybrid-last", "one", "what had been gone back in was copied, and loaded when its client went back again"),
    Day(33, "swa-full", "one", "the same, and a conversation that came back was gone back in"),
    Day(
        35,
        "swa",
        "default",
        "what comes back has its window only: for a little it took the place of a slot that had all",
    ),
    Day(35, "swa-full", "one", "the same"),
    Day(42, "swa-full", "default", "the same, and a prefix that was in host memory only was prefilled again"),
    Day(43, "swa-full", "one", "a copy in which nothing can be gone back was loaded for an edit"),
    Day(54, "hybrid-last", "one", "an edit behind a long question: no checkpoint lay where one was expected"),
    Day(60, "swa", "default", "what comes back has its window only"),
)


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
