"""What answers teach of a server that could not be probed, and what they do not."""

import math
from dataclasses import replace

import pytest

from proxy.demo.sessions import next_turn
from proxy.serving.learning import learn_from_reuse
from proxy.serving.model import Model
from proxy.serving.ticket import Ticket
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Holding, Nothing, Talk, Unknown
from proxy.slots.plan import Plan, Source
from tests.conftest import StartLlama
from tests.serving.running import ask_directly, running, sessions
from tests.serving.test_accounting import Client, ticket
from tests.slots.beliefs import PREFIX_TOKENS, need, talk

NATIVE = Plan(Source.HIT, "conversation_begins_with_prefix")
MET_IN_USE = Capabilities(window=0)
OTHER_FOLDER = "xb"


def after(able: Capabilities, asked: Ticket, cache_n: int) -> Capabilities:
    """What is known after an answer."""
    model = Model(Client(), able=able)  # type: ignore[arg-type]
    learn_from_reuse(model, asked, cache_n)
    return model.able


def asked(letters: str, before: Holding, loaded: Talk | None = None, plan: Plan = NATIVE) -> Ticket:
    """A request that found `before` in its slot."""
    made = ticket()
    made.need, made.plan, made.before, made.loaded = need(letters), plan, before, loaded
    return made


@pytest.mark.parametrize(("cache_n", "goes_back"), [(PREFIX_TOKENS, True), (0, False)])
def test_another_folder_tells_whether_a_slot_can_be_gone_back_in(cache_n: int, goes_back: bool) -> None:
    assert goes_back == after(MET_IN_USE, asked(OTHER_FOLDER, talk("a")), cache_n).rolls_back


@pytest.mark.parametrize(
    ("able", "before", "letters", "plan"),
    [
        (MET_IN_USE, talk("a"), "az", NATIVE),
        (MET_IN_USE, replace(talk("a"), is_marked=True), OTHER_FOLDER, NATIVE),
        (MET_IN_USE, talk("a", "Q"), OTHER_FOLDER, NATIVE),
        (MET_IN_USE, Nothing(), OTHER_FOLDER, NATIVE),
        (MET_IN_USE, talk("a"), OTHER_FOLDER, Plan(Source.RESTORE, "checkpoint_on_disk")),
        (replace(MET_IN_USE, window=512), talk("a"), OTHER_FOLDER, NATIVE),
        (replace(MET_IN_USE, window=None), talk("a"), OTHER_FOLDER, NATIVE),
    ],
    ids=["same folder", "marked", "another prefix", "empty", "restored", "within the window", "no file"],
)
def test_what_may_have_come_from_elsewhere_tells_nothing(
    able: Capabilities, before: Holding, letters: str, plan: Plan
) -> None:
    """An in-memory checkpoint where the question begins, one that we left, a window: these serve without a rollback."""
    assert after(able, asked(letters, before, plan=plan), PREFIX_TOKENS).rolls_back is None


@pytest.mark.parametrize(
    ("before", "cache_n", "expected"),
    [(talk("xy"), talk("ab").n_tokens, True), (talk("xy"), PREFIX_TOKENS, None), (Unknown(), 99, None)],
    ids=["came back", "only what the slot had", "may have been in the slot"],
)
def test_a_conversation_that_comes_back_tells_that_copies_are_kept(
    before: Holding, cache_n: int, expected: bool | None
) -> None:
    assert expected is after(MET_IN_USE, asked("abc", before, talk("ab")), cache_n).keeps_copies


async def test_in_a_quiet_moment_the_only_slot_is_probed_once_copies_were_seen_to_come_back(
    start_llama: StartLlama,
) -> None:
    """And what it held comes back afterwards, with no more prefilled than without a proxy."""
    (long,), (short,) = sessions("/a", tokens=1200), sessions("/b", seed=5, tokens=600)
    later = next_turn(short, "done", "go on")
    bodies = [long, short, next_turn(long, "done", "go on"), later]
    last = next_turn(later, "done", "go on")
    server = start_llama("hybrid", "-np", "1", tools_last=True)
    *_, directly = await ask_directly(server, *bodies, last)
    server.restart()
    await ask_directly(server, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1})
    async with running(server) as proxied:
        model, lifecycle = proxied.proxy.engine.model, proxied.proxy.engine.lifecycle
        for body in bodies:
            assert not model.was_probed
            await proxied.ask(body)
            model.last_answer = -math.inf
            await lifecycle.look()
        assert model.was_probed
        assert model.able.mark_distance is not None
        answer = await proxied.ask(last)
    assert "resume" == proxied.sources[-1]
    assert directly.prefilled >= answer.prefilled
