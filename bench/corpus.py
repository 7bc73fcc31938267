"""Random traces from seeds, and the seeds that are kept: what anybody's day could look like, small.

Owns: the corpus. A seed whose trace once cost more through the proxy than directly is added to it, with a word about
why, and stays.
"""

import random

from bench.traces import Conversation, Size, Trace, World, agent, side_request, words

SMALL = Size(900, (), 0)
STEPS = 12

CORPUS: dict[int, tuple[str, str, str]] = {
    1: ("dense", "one", ""),
    6: ("dense", "default", "a restore took the place of a conversation in host memory whose last message was edited"),
    3: ("hybrid", "one", "a restore took the place of a longer in-memory checkpoint when the last message was edited"),
    4: ("hybrid", "default", ""),
}
"""Seed: model, flags, and what it found."""


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
