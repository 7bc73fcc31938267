"""A request that runs beside another ends just when that one is about to be forwarded: neither loses anything by it.

Where a task makes the server move idle slots to host memory (default flags): a slot that has just become free shares
the beginning of the request, and would be chosen and overwritten.
"""

import asyncio
import math
import random
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.models import Kind
from proxy.demo.servers import LlamaServer
from proxy.demo.sessions import Body, next_turn
from proxy.demo.vocabulary import WORDS
from proxy.serving import neighbours
from tests.conftest import StartLlama
from tests.load.quiet import idle_server
from tests.load.relay import Call, relay
from tests.serving.running import Answer, Running, ask_server, running, sessions

SLACK = 24
"""What finding a conversation again may cost."""
PULSES = 2
LONG_READ = 1500
"""Words that keep a neighbour busy; a long answer would not come back as the same tokens."""
KINDS: list[Kind] = ["dense", "hybrid"]


class Held:
    """Lets everything through, but holds back one call until the server is idle."""

    def __init__(self, server: LlamaServer) -> None:
        self.server, self.is_armed, self.has_held = server, False, False
        self.copies = 0

    def is_meant(self, call: Call) -> bool:
        raise NotImplementedError

    async def __call__(self, call: Call) -> None:
        self.copies += call.is_copy
        if self.is_armed and self.is_meant(call):
            self.is_armed, self.has_held = False, True
            await idle_server(self.server)
            await self.then()

    async def then(self) -> None:
        """What else to wait for."""


class HeldRequest(Held):
    """Holds back the chat request itself."""

    def is_meant(self, call: Call) -> bool:
        return call.path.endswith("/chat/completions")


class HeldLonger(HeldRequest):
    """Until the proxy has gone on minding its neighbours, too."""

    async def then(self) -> None:
        before = self.copies
        async with asyncio.timeout(2):
            while self.copies < before + PULSES:
                await asyncio.sleep(0.001)


class HeldPrompt(Held):
    """Holds back the prompt of ours that brings a conversation back."""

    def is_meant(self, call: Call) -> bool:
        return call.path == "/completion" and len(call.body["prompt"]) > 1


class HeldLook(Held):
    """Holds back the first look at the slots after a chat request, and the second one until that is answered."""

    def __init__(self, server: LlamaServer) -> None:
        super().__init__(server)
        self.is_over = asyncio.Event()
        self.is_waiting = False

    def is_meant(self, call: Call) -> bool:
        return call.path == "/slots"

    async def __call__(self, call: Call) -> None:
        if self.has_held and self.is_meant(call) and not self.is_over.is_set():
            await self.is_over.wait()
            await asyncio.sleep(0.1)
        await super().__call__(call)
        self.is_armed = self.is_armed or (self.is_waiting and call.path.endswith("/chat/completions"))

    async def then(self) -> None:
        self.is_waiting = False
        self.is_over.set()


class HeldRestore(Held):
    """Holds back the restore of a checkpoint."""

    def is_meant(self, call: Call) -> bool:
        return call.path.endswith("action=restore")


async def has_begun(server: LlamaServer, proxied: Running) -> None:
    """Wait until some request of the proxy's is known to be in a slot."""
    async with asyncio.timeout(5):
        while not any(belief.lease for belief in proxied.proxy.engine.model.ledger.slots):
            await asyncio.sleep(0.005)


def goes_on(body: Body, answer: Answer) -> Body:
    """A turn that takes its time."""
    return next_turn(body, answer.text, " ".join(random.Random(1).choices(WORDS, k=LONG_READ)))


def spare(answer: Answer, before: Answer) -> int:
    """Tokens prefilled beyond what was new in this turn."""
    return answer.prefilled - (answer.prompt_tokens - before.prompt_tokens)


async def ends_beside(server: LlamaServer, hold: Held, *before: Body) -> Running:
    """One conversation comes back while another goes on and ends; neither loses anything. `before` are asked first."""
    first, second = sessions("/a", "/b", tokens=2500)
    async with relay(server, hold) as url, running(url) as proxied:
        one = await proxied.ask(first)
        other = await proxied.ask(second)
        for body in before:
            await proxied.ask(body)
        again = goes_on(second, other)
        talking = asyncio.create_task(proxied.ask(again))
        await has_begun(server, proxied)
        hold.is_armed = True
        resumed = await proxied.ask(next_turn(first, one.text, "go on"))
        spoken = await talking
        later = await proxied.ask(next_turn(again, spoken.text, "and on"))
    assert hold.has_held
    assert SLACK >= spare(resumed, one), proxied.reasons
    assert SLACK >= spare(later, spoken), proxied.reasons
    return proxied


@pytest.mark.parametrize(
    "holds", [HeldRequest, HeldLonger, HeldPrompt], ids=["brought-back", "tokens-not-known", "just-brought-back"]
)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_neighbour_ends_while_a_request_is_on_its_way(
    start_llama: StartLlama, monkeypatch: pytest.MonkeyPatch, kind: Kind, holds: type[Held]
) -> None:
    """What comes back from host memory does not take the slot that has just become free."""
    if holds is HeldLonger:

        async def not_known(*_: Any) -> list[int]:
            return []

        monkeypatch.setattr(neighbours, "beginning", not_known)
    server = start_llama(kind)
    proxied = await ends_beside(server, holds(server))
    assert (holds is not HeldLonger) == bool([warm_up for warm_up in proxied.heard.warm_ups if warm_up.prompt_n == 1])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_neighbour_has_begun_in_an_empty_slot(start_llama: StartLlama, kind: Kind) -> None:
    """It counts for what it will leave there, not for what the slot held before."""
    server = start_llama(kind)
    proxied = await ends_beside(server, HeldRequest(server), *sessions("/c", tokens=2500))
    assert "resume" == proxied.sources[3], proxied.reasons


async def test_a_neighbour_whose_slots_nobody_knows(start_llama: StartLlama) -> None:
    """As they are of one that asked for several answers at once."""
    server = start_llama("hybrid")
    hold = HeldRequest(server)
    first, second = sessions("/a", "/b", tokens=2500)
    async with relay(server, hold) as url, running(url) as proxied:
        one = await proxied.ask(first)
        other = await proxied.ask(second)
        talking = asyncio.create_task(proxied.ask({**goes_on(second, other), "n": 2}))
        async with asyncio.timeout(5):
            while not any(slot["is_processing"] for slot in await ask_server(server, "/slots")):
                await asyncio.sleep(0.005)
        hold.is_armed = True
        resumed = await proxied.ask(next_turn(first, one.text, "go on"))
        await talking
    assert hold.has_held
    assert ("several_answers", "resume") == (proxied.heard.requests[2].plan.reason, proxied.sources[-1])
    assert SLACK >= spare(resumed, one), proxied.reasons


@pytest.mark.parametrize(
    ("kind", "tools_last"), [("dense", False), ("hybrid", False), ("hybrid", True)], ids=["dense", "hybrid", "heads"]
)
async def test_a_neighbour_ends_while_a_slot_is_prepared(
    start_llama: StartLlama, tmp_path: Path, kind: Kind, tools_last: bool
) -> None:
    """The plan is made again: what the neighbour left is moved out of the way of the restored prefix."""
    server = start_llama(kind, "--slot-save-path", str(tmp_path), tools_last=tools_last)
    hold = HeldRestore(server)
    first, second, third = sessions("/a", "/b", "/c", tokens=2500)
    settings = {"persist": True, "slot_dir": tmp_path, "dir": tmp_path / "index"}
    async with relay(server, hold) as url, running(url, **settings) as proxied:
        await proxied.ask(first)
        other = await proxied.ask(second)
        again = goes_on(second, other)
        talking = asyncio.create_task(proxied.ask(again))
        await has_begun(server, proxied)
        hold.is_armed = True
        new = await proxied.ask(third)
        spoken = await talking
        later = await proxied.ask(next_turn(again, spoken.text, "and on"))
    assert hold.has_held
    assert proxied.prefix.n_tokens <= new.reused, proxied.reasons
    assert 1 == sum(warm_up.cache_n == 0 for warm_up in proxied.heard.warm_ups), proxied.heard.warm_ups
    assert SLACK >= spare(later, spoken), proxied.reasons


@pytest.mark.parametrize("kind", KINDS)
async def test_a_short_answer_is_over_before_anybody_looks(start_llama: StartLlama, kind: Kind) -> None:
    """Right after empty tasks, which leave new task numbers, too: its slot is the one that is as long as it is."""
    server = start_llama(kind)
    hold = HeldLook(server)
    (first,), (second,) = sessions("/a", tokens=600), sessions("/b", tokens=600, user="look at the tests, too")
    async with relay(server, hold) as url, running(url) as proxied:
        one = await proxied.ask(first)
        proxied.proxy.engine.context.pulsed_at = math.inf
        hold.is_waiting = True
        answer = await proxied.ask(second)
        assert hold.has_held
        again = await proxied.ask(next_turn(second, answer.text, "go on"))
        back = await proxied.ask(next_turn(first, one.text, "go on"))
    assert ["continue", "resume"] == proxied.sources[-2:], proxied.reasons
    assert SLACK >= max(spare(again, answer), spare(back, one))
