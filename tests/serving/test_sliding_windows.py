"""Sliding windows with `--swa-full` on a real server: what came back with its window only is not gone back in.

Without a proxy the server does, where that is less than a window, and what it says then is not what the model says.
"""

from pathlib import Path

import pytest

from proxy.demo.servers import LlamaServer
from proxy.demo.sessions import Body, next_turn
from tests.conftest import StartLlama
from tests.serving.running import Answer, ask_directly, distance, running, sessions, telling
from tests.serving.test_logprobs import QUIET
from tests.variants import DEFAULT, ONE_SLOT, long

FULL = ("-fa", "off", "--swa-full")
slots = pytest.mark.parametrize("flags", [("-np", "1"), ()], ids=["one-slot", "default-flags"])
files = pytest.mark.parametrize("persist", [False, True], ids=["host-memory", "files"])
SLACK = 8
AT_LENGTH = " and then the next thing" * 60
TITLE: Body = {
    "messages": [{"role": "system", "content": "tell what this is about."}, {"role": "user", "content": AT_LENGTH}],
    "max_tokens": 4,
    "temperature": 0,
}


def sequence() -> list[Body]:
    """Two sessions and a title in turns, and edits of what lies a short and a long way back."""
    first, second = sessions("/a", "/b")
    taught = next_turn(first, "done", "go on")
    later = next_turn(taught, "done", f"go on{AT_LENGTH}")
    edited = next_turn(first, "done", "no, the other way")
    others = [TITLE, later, second, TITLE, edited, next_turn(second, "done", "go on"), TITLE, second, first]
    bodies = [first, taught, *others]
    return [{**telling(body), "max_tokens": 1} for body in bodies]


async def cold(server: LlamaServer, bodies: list[Body]) -> list[Answer]:
    return await ask_directly(server, *({**body, "cache_prompt": False} for body in bodies))


async def compare(server: LlamaServer, bodies: list[Body], warm: list[Answer], said: list[str]) -> None:
    """Answers are those of the server started anew, that goes on from nothing."""
    server.restart()
    apart = [distance(one, other) for one, other in zip(await cold(server, bodies), warm, strict=True)]
    assert max(apart) < QUIET, [*zip((f"{one:.6f}" for one in apart), said, strict=True)]


@slots
@files
async def test_answers_are_those_of_a_cold_server(
    start_llama: StartLlama, tmp_path: Path, flags: tuple[str, ...], *, persist: bool
) -> None:
    """Whatever had to come back from host memory or a file before."""
    server = start_llama("swa", *flags, *FULL, "--slot-save-path", str(tmp_path))
    stored = {"slot_dir": tmp_path, "dir": tmp_path / "index"} if persist else {}
    async with running(server, persist=persist, **stored) as proxied:
        warm = [await proxied.ask(body) for body in sequence()]
    assert {"resume", "hit"} <= {*proxied.sources}
    await compare(server, sequence(), warm, proxied.sources)
    assert [] == [reason for reason in proxied.heard.troubles if reason.startswith("claim:")]


@pytest.mark.parametrize("flags", [ONE_SLOT, long(DEFAULT)], ids=["one-slot", "default-flags"])
async def test_the_first_answer_that_comes_back_changed(start_llama: StartLlama, flags: tuple[str, ...]) -> None:
    """Nobody knew: it is seen when its conversation is brought back, which is then not gone on from."""
    first, other = sessions("/a", "/b")
    changed = next_turn(first, "something else", "go on")
    bodies = [telling(body) for body in (first, TITLE, changed, other)]
    server = start_llama("swa", *flags, *FULL)
    async with running(server) as proxied:
        warm = [await proxied.ask(body) for body in bodies]
        assert proxied.proxy.engine.model.answers_change
        assert warm[2].reused >= proxied.prefix.n_tokens
    await compare(server, bodies, warm, proxied.sources)


@pytest.mark.parametrize("acts", [False, True], ids=["displaced", "erased"])
async def test_host_memory_that_is_too_small_gives_no_wrong_answer(
    start_llama: StartLlama, tmp_path: Path, *, acts: bool
) -> None:
    """What has lost its place there is not gone on from in another conversation's window."""
    more = ("--slot-save-path", str(tmp_path)) if acts else ()
    server = start_llama("swa", "-np", "1", *FULL, "--cache-ram", "2", *more)
    (first,) = sessions("/a", tokens=500, user=AT_LENGTH)
    second, third = sessions("/b", "/c", tokens=500, user=f"tell me{AT_LENGTH}")
    later = [next_turn(body, "done", f"go on{AT_LENGTH * 2}") for body in (second, first)]
    bodies = [{**telling(body), "max_tokens": 1} for body in (first, second, later[0], third, later[1])]
    async with running(server) as proxied:
        warm = [await proxied.ask(body) for body in bodies]
    await compare(server, bodies, warm, proxied.reasons)


async def test_an_anchor_that_was_evicted_is_not_gone_on_from(start_llama: StartLlama) -> None:
    """In its place the server loads a conversation with as much in common, which is longer."""
    server = start_llama("swa", "-np", "1", *FULL, "--cache-ram", "2")
    (first,) = sessions("/a", tokens=500)
    second, third = sessions("/b", "/c", tokens=500, user=f"tell me{AT_LENGTH}")
    later = next_turn(second, "done", f"go on{AT_LENGTH}")
    bodies = [{**telling(body), "max_tokens": 1} for body in (first, second, later, TITLE, third, first)]
    async with running(server) as proxied:
        warm = [await proxied.ask(body) for body in bodies]
    await compare(server, bodies, warm, proxied.reasons)


async def test_where_nothing_ever_comes_back_that_is_given_up(start_llama: StartLlama) -> None:
    """Host memory holds none of two long conversations: after three times nothing of ours is prefilled for them."""
    server = start_llama("swa", "-np", "1", *FULL, "--cache-ram", "1")
    pair = [sessions(folder, tokens=500, user=AT_LENGTH * 3)[0] for folder in ("/a", "/b")]
    async with running(server) as proxied:
        for number in range(4):
            before = proxied.heard.prefilled
            for place, body in enumerate(pair):
                answer = await proxied.ask(telling(body))
                pair[place] = next_turn(body, answer.text, f"go on {number}")
    assert 0 == proxied.heard.prefilled - before
    assert "resume" not in proxied.sources[-2:]


@pytest.mark.parametrize("is_changed", [False, True], ids=["as-it-came", "changed"])
async def test_an_answer_that_comes_back_changed_is_seen_before_its_copy_is_loaded(
    start_llama: StartLlama, *, is_changed: bool
) -> None:
    """The first of all: no more is prefilled than behind what all share."""
    (first,), (other,) = sessions("/a"), sessions("/a", user=f"tell me{AT_LENGTH}")
    server = start_llama("swa", "-np", "1", *FULL)
    async with running(server) as proxied:
        await proxied.ask(telling(first))
        told = await proxied.ask(telling(other))  # behind the other's prefix, and so without an anchor of its own
        await proxied.ask(telling(TITLE))
        before = proxied.heard.prefilled
        answer = await proxied.ask(telling(next_turn(other, told.text[6:] if is_changed else told.text, "go on")))
        behind = answer.prompt_tokens - proxied.prefix.n_tokens
        assert behind + SLACK >= answer.prefilled + proxied.heard.prefilled - before
    assert is_changed != ("resume" == proxied.sources[-1])
    assert is_changed == proxied.proxy.engine.model.answers_change


async def test_a_prefix_that_begins_like_one_that_came_back(start_llama: StartLlama) -> None:
    """Another install's is prefilled anew: a slot less than a window farther has not all of what both share."""
    (first,), (other,) = sessions("/a", tokens=400), sessions("/b", tokens=400, seed=5)
    bodies = [telling(body) for body in (first, TITLE, first, next_turn(first, "done", "go on"), other)]
    server = start_llama("swa", "-np", "1", *FULL)
    async with running(server) as proxied:
        warm = [await proxied.ask(bodies[0])]
        assert SLACK >= warm[0].prefilled + proxied.heard.prefilled - warm[0].prompt_tokens
        proxied.heard.anchors.clear()
        warm += [await proxied.ask(body) for body in bodies[1:]]
        assert warm[0].prompt_tokens > 2 * sum(told.prompt_n for told in proxied.heard.anchors)
    assert "warm-up" == proxied.sources[-1]
    await compare(server, bodies, warm, proxied.sources)


async def test_without_a_proxy_they_are_not(start_llama: StartLlama) -> None:
    """What makes all this necessary; a server that does better makes it needless."""
    server = start_llama("swa", "-np", "1", *FULL)
    bodies = sequence()[:5]
    warm = await ask_directly(server, *bodies)
    apart = [distance(one, other) for one, other in zip(await cold(server, bodies), warm, strict=True)]
    assert max(apart[:3]) < QUIET < 10 * QUIET < apart[4]
