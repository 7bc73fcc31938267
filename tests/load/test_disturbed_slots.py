"""Somebody uses the server directly in the very moment in which we copy or empty a slot: nobody's answer is touched."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.demo.models import Kind
from proxy.demo.sessions import Body, next_turn
from tests.conftest import StartLlama
from tests.load.disturbed import disturbed
from tests.load.quiet import at_rest, idle_server
from tests.load.relay import Call, relay
from tests.load.traces import CONTEXT
from tests.serving.running import (
    Answer,
    Running,
    ask,
    ask_directly,
    ask_server,
    distance,
    running,
    sessions,
    talking,
    telling,
)

BESIDE_OTHERS = 2e-2
EXACT = ("-fa", "off", "--slots")
FLAGS = {"one": ("-np", "1"), "default": (), "four": ("-np", "4", "--no-kv-unified")}
DIRECT_TOKENS = 250
DISTURBED_S = 6.0

everywhere = pytest.mark.parametrize("kind", ["dense", "hybrid"])
OTHER: Body = {"messages": [{"role": "user", "content": "look " * 300}]}
"""Shares nothing with anybody: what is kept of others would be loaded in its place."""
RACES: list[tuple[Kind, str, str, str]] = [
    ("dense", "one", "is_copy", "same"),
    ("hybrid", "one", "is_clear", "same"),
    ("hybrid", "one", "is_copy", "other"),
    ("dense", "one", "is_displacing", "same"),
    ("hybrid", "one", "is_displacing", "other"),
    ("hybrid", "default", "is_copy", "same"),
    ("dense", "four", "is_copy", "other"),
    ("hybrid", "four", "is_clear", "same"),
    ("dense", "four", "is_displacing", "same"),
]
"""A copy empties the other slots under default flags: there is nothing to clear there."""


def direct_body(like: Body, slot: int) -> Body:
    """A stranger's request, aimed at a slot, that generates for a while."""
    return telling({**like, "id_slot": slot, "max_completion_tokens": DIRECT_TOKENS, "temperature": 0})


class Stranger:
    """Starts a request of its own in a slot just before a call of ours gets there."""

    def __init__(self, url: str, like: Body, is_theirs: Callable[[Call], bool]) -> None:
        self.url, self.like, self.is_theirs = url, like, is_theirs
        self.is_armed = False
        self.hit: list[str] = []
        self.task: asyncio.Task[Answer] | None = None

    async def step_in(self, call: Call) -> None:
        if not self.is_armed or self.task is not None or call.slot is None or not self.is_theirs(call):
            return
        self.hit.append(call.path)
        self.task = asyncio.create_task(self._ask(call.slot))
        await self._has_begun(call.slot)

    async def _ask(self, slot: int) -> Answer:
        async with talking() as client:
            return await ask(client, f"{self.url}/v1", direct_body(self.like, slot))

    async def _has_begun(self, slot: int) -> None:
        """Until it generates, so that its state is what a mistake of ours would spoil."""
        async with talking() as client, asyncio.timeout(10):
            while True:
                async with client.get(f"{self.url}/slots") as response:
                    told = (await response.json())[slot]
                if told["is_processing"] and told["next_token"][0]["n_decoded"] > 1:
                    return
                assert self.task is not None
                assert not self.task.done(), "over before our call: it must generate for longer"


async def provoke(proxied: Running, stranger: Stranger, bodies: list[Body]) -> list[Answer]:
    """Turns that take turns make the proxy copy and clear; the stranger is armed once it is known what is where."""
    answers = []
    for round_number in range(3):
        stranger.is_armed = round_number > 0
        for at, body in enumerate(bodies):
            answers.append(answer := await proxied.ask(body))
            bodies[at] = telling(next_turn(body, answer.text, "go on with the next file"))
    return answers


@pytest.mark.parametrize(("kind", "flags", "what", "whose"), RACES)
async def test_a_stranger_begins_just_before_our_call(
    start_llama: StartLlama, tmp_path: Path, kind: Kind, flags: str, what: str, whose: str
) -> None:
    """A copy or a clear that reaches a slot in which somebody has just begun changes nothing of what is generated."""
    acts = () if what == "is_displacing" else ("--slot-save-path", str(tmp_path))
    server = start_llama(kind, *EXACT, *FLAGS[flags], *acts)
    bodies = [telling(body) for body in sessions("/a", "/b", tokens=600)]
    like = bodies[0] if whose == "same" else OTHER
    stranger = Stranger(server.url, like, lambda call: bool(getattr(call, what)))
    async with relay(server, stranger.step_in) as url, running(url, dir=tmp_path / "index") as proxied:
        answers = await provoke(proxied, stranger, bodies)
        await at_rest(proxied)
        assert stranger.task is not None, (proxied.sources, proxied.reasons)
        theirs = await stranger.task
        await idle_server(server)
        asked = [ticket.visit.request for ticket in proxied.heard.requests]
    server.restart()
    quiet, *ours = await ask_directly(server, direct_body(like, 0), *(dict(one.fields) for one in asked if one))
    assert 200 == theirs.status
    assert BESIDE_OTHERS > distance(theirs, quiet)
    assert BESIDE_OTHERS > max(distance(*pair) for pair in zip(answers, ours, strict=True))


@everywhere
async def test_a_stranger_all_the_while(start_llama: StartLlama, tmp_path: Path, kind: Kind) -> None:
    """Somebody prompts, erases and restores slots beside us: answers are right, and afterwards turns are as planned."""
    server = start_llama(kind, *EXACT, "--slot-save-path", str(tmp_path), ctx=CONTEXT)
    wrong = await disturbed(server, DISTURBED_S, 1, persist=True, slot_dir=tmp_path, dir=tmp_path / "index")
    assert [] == wrong, "\n".join(wrong)


async def test_a_spoiled_generation_shows(start_llama: StartLlama) -> None:
    """What a careless call does to a slot at work, loading a kept conversation into it, is seen by the measure."""
    server = start_llama("dense", *EXACT, "-np", "1")
    kept = telling(sessions("/a", tokens=600)[0])
    (quiet,) = await ask_directly(server, direct_body(OTHER, 0))
    prompt = (await ask_server(server, "/apply-template", kept))["prompt"]
    tokens = (await ask_server(server, "/tokenize", {"content": prompt, "parse_special": True}))["tokens"]
    await ask_directly(server, kept)
    await ask_server(server, "/completion", {"prompt": tokens[700:701], "n_predict": 0, "id_slot": 0})
    stranger = Stranger(server.url, OTHER, lambda _: True)
    stranger.is_armed = True
    await stranger.step_in(Call("POST", "/completion", {"id_slot": 0}))
    await ask_server(server, "/completion", {"prompt": tokens[:-5], "n_predict": 0, "id_slot": 0})
    assert stranger.task is not None
    assert BESIDE_OTHERS < distance(await stranger.task, quiet)
