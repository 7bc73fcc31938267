"""Answers from a prepared slot are those of a server without a proxy: the log-probabilities tell.

With flash attention, llama-server on a CPU attends to 64 tokens of a prompt and more at once by one kernel and to fewer
by another, and the two round differently. How a prompt was cut decides, then, and anything cached is a cut: without any
proxy, on the tiny dense model with its random weights, the prompt whole and its last 37 tokens apart are 0.09 to 0.18
apart, while 64 tokens apart make 3e-5. So with default flags answers are compared with those of a server where the same
tokens were prefilled first by hand; without flash attention, where no cut matters, with those of a cold one.
"""

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.models import Kind, model_path
from proxy.demo.servers import LlamaServer
from proxy.demo.sessions import Body, next_turn
from proxy.llama.client import LlamaClient
from tests.conftest import StartLlama
from tests.llama.calling import calling
from tests.serving.running import Answer, ask_directly, ask_server, distance, running, sessions, telling

EXACT = ("-fa", "off")
slots = pytest.mark.parametrize("flags", [("-np", "1"), ()], ids=["one-slot", "default-flags"])
QUIET = 5e-4
WRONG = 1e-3
kinds = pytest.mark.parametrize("kind", ["dense", "hybrid", "swa"])


def conversation(first: Body, other: Body) -> list[Body]:
    """A first session, one in another folder and its second turn."""
    return [telling(first), telling(other), telling(next_turn(other, "look at the first file", "go on"))]


async def after(server: LlamaServer, prefix: list[int], *bodies: Body) -> list[Answer]:
    """What the server says once it has prefilled nothing but this."""
    told = {"prompt": prefix, "n_predict": 0, "cache_prompt": False, "grammar": 'root ::= ""'}
    await ask_server(server, "/completion", told)
    return await ask_directly(server, *bodies)


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
@slots
async def test_answers_through_the_proxy_are_those_of_the_server_with_its_own_flags(
    start_llama: StartLlama, kind: Kind, flags: tuple[str, ...]
) -> None:
    """With flash attention too, an answer is the one that the same prefix, prefilled directly, leads to."""
    first, *others = conversation(*sessions("/a", "/b"))
    server = start_llama(kind, *flags)
    async with running(server) as proxied:
        warm = [await proxied.ask(body) for body in (first, *others)]
        prefix = list(proxied.prefix.tokens)
    server.restart()
    # A first session that was left alone is a cold one.
    begin = [*await after(server, prefix, first)] if warm[0].reused else await ask_directly(server, first)
    expected = [*begin, *await after(server, prefix, *others)]
    assert [True, True] == [len(prefix) <= answer.reused for answer in warm[1:]]
    assert [8, 8, 8] == [len(answer.logprobs) for answer in warm]
    apart = [distance(one, other) for one, other in zip(expected, warm, strict=True)]
    assert max(apart) < QUIET, apart


@slots
async def test_answers_of_a_window_are_those_after_the_same_calls(
    start_llama: StartLlama, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There an anchor cuts a prompt in more than two: each call of ours is made again, without a proxy."""
    bodies, made = conversation(*sessions("/a", "/b")), list[tuple[str, tuple[Any, ...], dict[str, Any]] | None]()
    for name in ("prefill", "copy", "displace"):
        monkeypatch.setattr(LlamaClient, name, noted(name, made))
    server = start_llama("swa", *flags)
    async with running(server) as proxied:
        warm = [await noting(proxied.ask(body), made) for body in bodies]
    assert any("prefill" == call[0] for call in made if call)
    monkeypatch.undo()
    server.restart()
    expected = list[Answer]()
    async with calling(server.port) as client:
        for call in made:
            if call is None:
                expected += await ask_directly(server, bodies[len(expected)])
            else:
                await getattr(client, call[0])(*call[1], **call[2])
    assert [answer.reused for answer in warm] == [answer.reused for answer in expected]
    assert max(distance(one, other) for one, other in zip(expected, warm, strict=True)) < QUIET


def noted(name: str, made: list[Any]) -> Any:
    real = getattr(LlamaClient, name)

    async def call(client: LlamaClient, *told: Any, **named: Any) -> Any:
        made.append((name, told, named))
        return await real(client, *told, **named)

    return call


async def noting(asked: Awaitable[Answer], made: list[Any]) -> Answer:
    answer = await asked
    made.append(None)
    return answer


@kinds
@slots
async def test_answers_through_the_proxy_are_those_of_a_cold_server(
    start_llama: StartLlama, kind: Kind, flags: tuple[str, ...]
) -> None:
    """Warmed, continued and gone back in, a slot gives the log-probabilities of a server that has nothing cached."""
    bodies = conversation(*sessions("/a", "/b"))
    server = start_llama(kind, *EXACT, *flags)
    cold = await ask_directly(server, *({**body, "cache_prompt": False} for body in bodies))
    server.restart()
    async with running(server) as proxied:
        warm = [await proxied.ask(body) for body in bodies]
    assert [proxied.sources[0] == "warm-up", True, True] == [answer.reused > 0 for answer in warm]
    assert [8, 8, 8] == [len(answer.logprobs) for answer in warm]
    apart = [distance(one, other) for one, other in zip(cold, warm, strict=True)]
    assert max(apart) < QUIET, apart


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
async def test_a_wrong_state_shows(start_llama: StartLlama, kind: Kind, tmp_path: Path) -> None:
    """The state of other weights in place of the right one moves the log-probabilities by more than ever allowed."""
    (body,) = map(telling, sessions("/a"))
    server = start_llama(kind, *EXACT, "-np", "1", "--slot-save-path", str(tmp_path), seed=8)
    prompt = await ask_server(server, "/apply-template", body)
    tokens = (await ask_server(server, "/tokenize", {"content": prompt["prompt"], "parse_special": True}))["tokens"]
    await ask_server(server, "/completion", {"prompt": tokens[:-10], "n_predict": 0, "grammar": 'root ::= ""'})
    await ask_server(server, "/slots/0?action=save", {"filename": "wrong.bin"})
    server.restart(model=model_path(kind))
    (right,) = await ask_directly(server, body)
    await ask_server(server, "/slots/0?action=restore", {"filename": "wrong.bin"})
    (wrong,) = await ask_directly(server, body)
    assert len(tokens) - 10 == wrong.reused
    assert distance(right, wrong) > WRONG


def test_the_measure_takes_no_difference_for_none() -> None:
    """Answers that agree are no distance apart, answers whose likeliest token differs are."""
    one = Answer(logprobs=[{"a": -1.0, "b": -2.0, "c": -3.0}])
    other = Answer(logprobs=[{"b": -1.0, "a": -2.0, "c": -3.0}])
    assert (0.0, 1.0) == (distance(one, one), distance(one, other))
