"""A second session prefills only its own tail: the exact prefix, warmed once, on every kind of model."""

import pytest

from proxy.demo.models import Kind
from proxy.demo.servers import LlamaServer
from proxy.demo.sessions import Body
from tests.conftest import StartLlama
from tests.serving.running import ask_directly, ask_server, running, sessions

ONE_SLOT = ("-np", "1")
DEFAULT_FLAGS = ()
BATCH = 512
flags = pytest.mark.parametrize("flags", [ONE_SLOT, DEFAULT_FLAGS], ids=["one-slot", "default-flags"])
KINDS: list[tuple[Kind, bool, int]] = [
    ("dense", False, 0),
    ("hybrid", False, BATCH + 5),
    ("hybrid", True, BATCH + 5),
    ("swa", False, BATCH + 5),
]
kinds = pytest.mark.parametrize(
    ("kind", "tools_last", "lost"), KINDS, ids=["dense", "hybrid", "hybrid-tools-last", "swa"]
)


@flags
@kinds
async def test_later_sessions_find_the_prefix_warm(
    start_llama: StartLlama, kind: Kind, tools_last: bool, lost: int, flags: tuple[str, ...]
) -> None:
    """Sessions in other folders prefill no token of the exact prefix, or what this kind of model can't go back to."""
    server = start_llama(kind, *flags, tools_last=tools_last)
    async with running(server) as proxied:
        answers = [await proxied.ask(body) for body in sessions("/a", "/b/longer", "/c")]
        expected = proxied.prefix.n_tokens
    assert [200, 200, 200] == [answer.status for answer in answers]
    assert 2000 < expected
    assert [True, True] == [expected - lost <= answer.reused for answer in answers[1:]], (
        expected,
        [(a.reused, a.prefilled) for a in answers],
        proxied.sources,
        proxied.reasons,
        proxied.heard.troubles,
    )
    assert 1 == len(proxied.heard.warm_ups)


@flags
async def test_tools_after_the_system_text_directly_and_proxied(
    start_llama: StartLlama, flags: tuple[str, ...]
) -> None:
    """On a hybrid model later sessions reuse nothing directly, and the prefix through the proxy."""
    bodies = sessions("/a", "/b/longer", "/c")
    server = start_llama("hybrid", *flags, tools_last=True)
    directly = await ask_directly(server, *bodies)
    server.restart()
    async with running(server) as proxied:
        answers = [await proxied.ask(body) for body in bodies]
        expected = proxied.prefix.n_tokens
    assert [0, 0] == [answer.reused for answer in directly[1:]]
    assert [True, True] == [expected - BATCH - 5 <= answer.reused for answer in answers[1:]]


@flags
@kinds
async def test_the_first_session_pays_next_to_nothing(
    start_llama: StartLlama, kind: Kind, tools_last: bool, lost: int, flags: tuple[str, ...]
) -> None:
    """The first session prefills, warm-up included, at most 8 tokens more than it would directly."""
    del lost
    (body,) = sessions("/a")
    server = start_llama(kind, *flags, tools_last=tools_last)
    (directly,) = await ask_directly(server, body)
    server.restart()
    async with running(server) as proxied:
        answer = await proxied.ask(body)
    assert 1 == len(proxied.heard.warm_ups)
    assert directly.prefilled + 8 >= proxied.heard.prefilled + answer.prefilled


def every_tail() -> list[Body]:
    """Sessions whose stable text is followed by all kinds of text."""
    return [
        *sessions("/a"),
        *sessions("/b", project_context="write tests first"),
        *sessions("/c"),
        *sessions("/d", project_context="be brief"),
    ]


@flags
@pytest.mark.parametrize(("kind", "lost"), [("dense", 0), ("hybrid", 64 + 5)])
async def test_tokens_that_merge_across_the_cut(
    start_llama: StartLlama, kind: Kind, lost: int, flags: tuple[str, ...]
) -> None:
    """Where the vocabulary merges the end of the stable text with what follows, nothing is lost to another tail."""
    server = start_llama(kind, *flags, "-ub", "64", merge_trap=True)
    async with running(server) as proxied:
        answers = [await proxied.ask(body) for body in every_tail()]
        known = proxied.prefix
    first = proxied.sources.index("warm-up")
    assert (1 if proxied.able_to_do_better_alone else 0) == first
    assert known.n_tokens <= answers[first].reused
    assert [True, True, True] == [known.n_tokens - lost <= answer.reused for answer in answers[1:]]
    assert [] == [reason for reason in proxied.heard.troubles if reason.startswith("claim:")]


@pytest.mark.parametrize("merge_trap", [False, True])
async def test_the_exact_prefix_is_what_all_sessions_begin_with(start_llama: StartLlama, merge_trap: bool) -> None:
    """The warmed tokens begin every prompt, whatever its tail, and hardly a token more is common to all."""
    server = start_llama("dense", "-np", "1", merge_trap=merge_trap)
    async with running(server) as proxied:
        await proxied.ask(every_tail()[0])
        known = list(proxied.prefix.tokens)
    prompts = [await prompt_tokens(server, body) for body in every_tail()]
    assert [known] * 4 == [prompt[: len(known)] for prompt in prompts]
    shared = next(place for place, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1)
    assert shared - 4 <= len(known) <= shared


async def prompt_tokens(server: LlamaServer, body: Body) -> list[int]:
    told = await ask_server(server, "/apply-template", body)
    content = {"content": told["prompt"], "add_special": True, "parse_special": True}
    tokens: list[int] = (await ask_server(server, "/tokenize", content))["tokens"]
    return tokens
