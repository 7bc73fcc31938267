"""What answers teach of a server that could not be probed, and what they do not."""

from dataclasses import replace

import pytest

from proxy.demo.sessions import next_turn
from proxy.llama.replies import Warmed
from proxy.serving.learning import learn_from_reuse
from proxy.serving.model import Model
from proxy.serving.slot_steps import SlotSteps
from proxy.serving.ticket import Ticket
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Holding, Nothing, Talk, Unknown
from proxy.slots.plan import Plan, Source
from proxy.slots.prediction import Choice
from tests.conftest import StartLlama
from tests.serving.running import ask_directly, running, sessions
from tests.serving.test_accounting import Client, context, ticket
from tests.slots.beliefs import PREFIX_TOKENS, bare, need, talk

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


@pytest.mark.parametrize(("cache_n", "goes_back"), [(PREFIX_TOKENS, None), (0, False)])
def test_another_folder_tells_that_a_slot_can_not_be_gone_back_in(cache_n: int, goes_back: bool | None) -> None:
    """That it could tells nothing: an in-memory checkpoint may lie just there."""
    assert goes_back is after(MET_IN_USE, asked(OTHER_FOLDER, talk("a")), cache_n).rolls_back


OF_FOLDER = replace(talk("axb"), head_key="H")


FROM_COPY = Plan(Source.HIT, "host_memory_begins_with_prefix")
HEAD_TOKENS = PREFIX_TOKENS + 50


@pytest.mark.parametrize(
    ("plan", "before", "copy", "cache_n", "expected"),
    [
        (NATIVE, OF_FOLDER, None, HEAD_TOKENS, (None, None)),
        (NATIVE, OF_FOLDER, None, PREFIX_TOKENS, (None, False)),
        (NATIVE, OF_FOLDER, None, 0, (False, False)),
        (FROM_COPY, Nothing(), OF_FOLDER, HEAD_TOKENS, (None, None)),
        (FROM_COPY, Nothing(), OF_FOLDER, PREFIX_TOKENS, (None, False)),
        (FROM_COPY, Nothing(), OF_FOLDER, 0, (False, None)),
        (Plan(Source.RESTORE, "checkpoint_on_disk"), OF_FOLDER, None, 0, (None, None)),
    ],
)
def test_a_session_of_the_same_folder_tells_how_far_its_head_can_be_gone_back_in(
    plan: Plan, before: Holding, copy: Talk | None, cache_n: int, expected: tuple[bool | None, bool | None]
) -> None:
    """Less than all of it: not anywhere; less than the prefix: to no checkpoint; of a copy it may have been gone."""
    request = asked("az", before, copy, plan)
    request.need = replace(request.need, head_key="H", head_tokens=HEAD_TOKENS)
    able = after(MET_IN_USE, request, cache_n)
    assert expected == (able.keeps_heads, able.rolls_back)


@pytest.mark.parametrize(
    ("able", "before", "letters", "plan"),
    [
        (MET_IN_USE, replace(talk("a"), keeps_question=True), "az", NATIVE),
        (MET_IN_USE, replace(talk("a"), is_marked=True), OTHER_FOLDER, NATIVE),
        (MET_IN_USE, talk("a", "Q"), OTHER_FOLDER, NATIVE),
        (MET_IN_USE, Nothing(), OTHER_FOLDER, NATIVE),
        (MET_IN_USE, talk("a"), OTHER_FOLDER, Plan(Source.RESTORE, "checkpoint_on_disk")),
    ],
    ids=["same folder", "marked", "another prefix", "empty", "restored"],
)
def test_where_nobody_can_have_gone_back_nothing_is_learned(
    able: Capabilities, before: Holding, letters: str, plan: Plan
) -> None:
    """What was marked, restored or of another prefix was no trial; a question's checkpoint has a belief of its own."""
    assert after(able, asked(letters, before, plan=plan), 0).rolls_back is None


@pytest.mark.parametrize(
    ("before", "cache_n", "expected"),
    [
        (talk("xy"), talk("ab").n_tokens, True),
        (talk("xy"), PREFIX_TOKENS, None),
        (talk("abx"), talk("ab").n_prompt, None),
        (Unknown(), 99, None),
    ],
    ids=["came back", "only what the slot had", "as much as the slot had", "may have been in the slot"],
)
def test_a_conversation_that_comes_back_tells_that_copies_are_kept(
    before: Holding, cache_n: int, expected: bool | None
) -> None:
    assert expected is after(MET_IN_USE, asked("abc", before, talk("ab")), cache_n).keeps_copies


@pytest.mark.parametrize("window", [512, None])
def test_of_a_sliding_window_it_is_not_learned(window: int | None) -> None:
    """Only the window is copied: with `--swa-full` the server would go back in it, and answer wrongly."""
    copied = asked("abc", talk("xy"), talk("ab"))
    assert after(replace(MET_IN_USE, window=window), copied, talk("ab").n_tokens).keeps_copies is None


def test_when_nothing_comes_back_again_and_again_that_is_learned_too() -> None:
    """Host memory is off; else what may come back would be waited for for ever."""
    model = Model(Client(), able=MET_IN_USE)  # type: ignore[arg-type]
    seen = []
    for cache_n in (0, 0, PREFIX_TOKENS, 99):
        learn_from_reuse(model, asked("abc", talk("xy"), talk("ab")), cache_n)
        seen.append(model.able.keeps_copies)
    assert [None, None, False, False] == seen


async def test_what_a_prompt_of_ours_displaces_may_come_back_too() -> None:
    """Where nobody has tried that it is kept in mind; where it was seen not to, it is not."""
    for keeps_copies, expected in ((None, [talk("xy")]), (False, [])):
        at = context(talk("xy"), Nothing())
        at.model.able = replace(MET_IN_USE, keeps_copies=keeps_copies)
        taken = Choice(0, 0, by_similarity=False, overwrites=False, copies=True)
        await SlotSteps(at).prefilled(need("ab", "Q"), taken, Warmed(0, PREFIX_TOKENS, 0, 1.0), bare("Q"), {})
        assert expected == [*at.model.ledger.copies.values()]


async def test_conversations_that_take_turns_are_kept_apart_once_one_was_seen_to_come_back(
    start_llama: StartLlama,
) -> None:
    """With no more prefilled than without a proxy."""
    (long,), (short,) = sessions("/a", tokens=1200), sessions("/b", seed=5, tokens=600)
    bodies = [long, short, next_turn(long, "done", "go on"), next_turn(short, "done", "go on")]
    server = start_llama("hybrid", "-np", "1", tools_last=True)
    directly = await ask_directly(server, *bodies)
    server.restart()
    await ask_directly(server, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1})
    async with running(server) as proxied:
        answers = [await proxied.ask(body) for body in bodies]
        assert proxied.proxy.engine.model.able.keeps_copies
    assert ["may_be_hot", "own_checkpoint_serves", "may_come_back", "host_memory_holds_conversation"] == proxied.reasons
    assert sum(answer.prefilled for answer in directly) >= sum(answer.prefilled for answer in answers)
