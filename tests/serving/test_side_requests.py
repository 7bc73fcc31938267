"""What an agent asks beside its conversation is not prepared, and costs the conversation nothing."""

import pytest

from proxy.demo.models import Kind
from proxy.demo.sessions import Body, next_turn
from proxy.slots.holding import Talk, Unknown
from tests.conftest import StartLlama
from tests.serving.running import ask_directly, running, sessions
from tests.variants import DEFAULT, ONE_SLOT, long

flags = pytest.mark.parametrize("flags", [("-np", "1"), ()], ids=["one-slot", "default-flags"])
OWN_WORDS = 5
"""Tokens that begin an answer: these conversations go on with other words than the model's, and a hybrid model's state
was kept before them."""
kinds = pytest.mark.parametrize("kind", ["dense", "hybrid"])


def side_request(system: str, user: str) -> Body:
    """A compaction, a title: a short system text of its own, no tools, perhaps a huge user message."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": "tiny", "messages": messages, "stream": True, "max_completion_tokens": 8, "temperature": 0}


def rewritten(body: Body, turn: int) -> Body:
    """The same conversation with other words in the middle of its stable text."""
    system, *rest = body["messages"]
    half = len(system["content"]) // 2
    text = system["content"][:half] + f" turn {turn} " + system["content"][half:]
    return {**body, "messages": [{**system, "content": text}, *rest]}


@flags
@kinds
async def test_compaction_and_title(start_llama: StartLlama, kind: Kind, flags: tuple[str, ...]) -> None:
    """They are never warmed, and the conversation goes on afterwards with everything it had cached."""
    (first,) = sessions("/a")
    second = next_turn(first, "look", "go on with the next file")
    third = next_turn(second, "done", "and the last one")
    compaction = side_request("sum up the conversation.", "read the file and say what it does. " * 100)
    title = side_request("write a title.", "find the test")
    bodies = [first, second, compaction, title, third]
    server = start_llama(kind, *flags)
    directly = await ask_directly(server, *bodies)
    server.restart()
    async with running(server) as proxied:
        answers = [await proxied.ask(body) for body in bodies]
    assert (["warm-up"] == proxied.sources[:1]) == (1 == len(proxied.heard.warm_ups))
    assert ["none", "none"] == proxied.sources[2:4]
    assert answers[1].prompt_tokens - OWN_WORDS <= answers[-1].reused
    assert [True] * 3 == [d.prefilled >= a.prefilled for d, a in zip(directly[2:], answers[2:], strict=True)]


@pytest.mark.parametrize("flags", [ONE_SLOT, long(DEFAULT)], ids=["one-slot", "default-flags"])
async def test_a_stable_text_that_changes_with_each_turn(start_llama: StartLlama, flags: tuple[str, ...]) -> None:
    """After three changes in one conversation nothing more is warmed for it, and that is said once."""
    (body,) = sessions("/a")
    bodies: list[Body] = []
    for turn in range(8):
        bodies.append(rewritten(body, turn))
        body = next_turn(body, "done", "go on")
    server = start_llama("dense", *flags)
    directly = await ask_directly(server, *bodies)
    server.restart()
    async with running(server) as proxied:
        answers = [await proxied.ask(body) for body in bodies]
    spent = sum(answer.prefilled for answer in answers) + proxied.heard.prefilled
    assert sum(answer.prefilled for answer in directly) + 8 * len(bodies) >= spent
    assert 3 >= len(proxied.heard.warm_ups), proxied.reasons


@pytest.mark.parametrize(
    ("own", "reason", "slots"),
    [
        ({"cache_prompt": False}, "cache_prompt_off", 1),
        ({"id_slot": 0}, "own_slot", 1),
        ({"lora": []}, "own_lora", 1),
        ({"n": 2}, "several_answers", 2),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_requests_with_a_mind_of_their_own(start_llama: StartLlama, own: Body, reason: str, slots: int) -> None:
    """They are forwarded as they are, what their slots held is believed no more, and no hit is claimed of it.

    Of several answers the prompt is known, not which answer is in which slot.
    """
    bodies = sessions("/a", "/b", "/c")
    server = start_llama("dense", "-np", str(slots))
    async with running(server) as proxied:
        await proxied.ask(bodies[0])
        before = len(proxied.heard.warm_ups)
        (asked,) = sessions("/elsewhere", seed=5)
        answer = await proxied.ask({**asked, **own})
        between = (len(proxied.heard.warm_ups), proxied.reasons[-1])
        held = [belief.holds for belief in proxied.proxy.engine.model.ledger.slots]
        after = [await proxied.ask(body) for body in bodies[1:]]
        expected = proxied.prefix.n_tokens
    assert 200 == answer.status
    assert (before, reason) == between
    known = [holding for holding in held if isinstance(holding, Talk) and holding.is_whole]
    assert ([], slots) == (known, len(held)) if slots > 1 else isinstance(held[0], Unknown), held
    assert [200, 200] == [answer.status for answer in after]
    assert after[-1].reused >= expected
    assert [] == [reason for reason in proxied.heard.troubles if reason.startswith("claim:")]
