"""Requests that are unlike the others, and must neither be worse off nor make others worse off."""

from pathlib import Path

import pytest

from proxy.demo.sessions import Body, next_turn
from tests.conftest import StartLlama
from tests.serving.running import ask_directly, running, sessions

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def turns(first: Body, count: int) -> list[Body]:
    """A conversation, one request a turn."""
    bodies = [first]
    for turn in range(count):
        bodies.append(next_turn(bodies[-1], "done", f"go on with file {turn}"))
    return bodies


@pytest.mark.parametrize("flags", [("-np", "1"), ()], ids=["one-slot", "default-flags"])
async def test_a_switch_that_changes_no_token(start_llama: StartLlama, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The conversation goes on as it would directly; its state is not replaced by a restored prefix."""
    (first,) = sessions("/a")
    first_turns = turns(first, 4)
    switched = [{**body, "parallel_tool_calls": bool(turn % 2)} for turn, body in enumerate(first_turns)]
    slots = tmp_path / "slots"
    slots.mkdir()
    server = start_llama("hybrid", *flags, "--slot-save-path", str(slots))
    directly = await ask_directly(server, *switched)
    server.restart()
    async with running(server, persist=True, slot_dir=slots, dir=tmp_path / "index") as proxied:
        answers = [await proxied.ask(body) for body in switched]
    assert ["continue"] * 4 == proxied.sources[1:]
    assert [True] * 4 == [mine.prefilled <= his.prefilled for mine, his in zip(answers[1:], directly[1:], strict=True)]


async def test_a_picture_for_a_text_only_model(start_llama: StartLlama) -> None:
    """The server refuses it, as directly; rendering goes on for everybody else."""
    (first, second) = sessions("/a", "/b")
    system, user = first["messages"]
    odd = {**first, "messages": [system, {**user, "content": [PICTURE]}]}
    server = start_llama("hybrid", "-np", "1")
    (directly,) = await ask_directly(server, odd)
    server.restart()
    async with running(server) as proxied:
        refused = await proxied.ask(odd)
        served = await proxied.ask(second)
        assert proxied.proxy.engine.model.renders
    assert (directly.status, directly.data) == (refused.status, refused.data)
    assert 200 == served.status
    assert served.reused >= proxied.prefix.n_tokens


async def test_tools_that_no_server_understands(start_llama: StartLlama) -> None:
    """Every rendering of such a request fails; one that is not odd tells that the server can render all the same."""
    (first, second) = sessions("/a", "/b")
    server = start_llama("dense", "-np", "1")
    async with running(server) as proxied:
        refused = await proxied.ask({**first, "tools": [1]})
        await proxied.ask(second)
        assert proxied.proxy.engine.model.renders
    assert 400 <= refused.status
    assert "warm-up" == proxied.sources[-1]


async def test_a_prompt_that_is_rewritten_each_turn_is_told_once(start_llama: StartLlama) -> None:
    """From the third change in a conversation on the reporter is told, and says it once."""
    (first,) = sessions("/a", tokens=600)
    server = start_llama("dense", "-np", "1")
    async with running(server) as proxied:
        for turn, body in enumerate(turns(first, 6)):
            system, *rest = body["messages"]
            text = system["content"].replace(" ", f" x{turn} ", 1)
            await proxied.ask({**body, "messages": [{**system, "content": text}, *rest]})
    assert 4 == proxied.heard.troubles.count("prompt_rewritten")


async def test_two_installs_that_take_turns_rewrite_nothing(start_llama: StartLlama) -> None:
    """Conversations that keep their prompts, each another one's, are no alarm however often they take turns."""
    talks = [turns(first, 4) for seed in (1, 2) for first in sessions("/a", seed=seed, tokens=600)]
    server = start_llama("dense", "-np", "1", "--cache-ram", "0")
    async with running(server) as proxied:
        for bodies in zip(*(talk[1:] for talk in talks), strict=True):
            for body in bodies:
                await proxied.ask(next_turn(body, "so", "go on"))
    assert ["mid_conversation"] * 8 == proxied.reasons
    assert 0 == proxied.heard.troubles.count("prompt_rewritten")


@pytest.mark.parametrize("flags", [("--no-cache-prompt",), ("--slot-prompt-similarity", "0")], ids=" ".join)
async def test_a_server_that_makes_nothing_of_its_slots(start_llama: StartLlama, flags: tuple[str, ...]) -> None:
    """The probe sees it, nothing is warmed at all, and that is said once."""
    server = start_llama("dense", *flags)
    async with running(server) as proxied:
        for body in sessions("/a", "/b"):
            assert 200 == (await proxied.ask(body)).status
    assert ["reuse_useless"] * 2 == proxied.reasons
    assert (0, ["reuse_useless"]) == (proxied.heard.begun_warm_ups, proxied.heard.troubles)


async def test_a_server_that_caches_no_prompt_and_was_not_probed(start_llama: StartLlama, tmp_path: Path) -> None:
    """What nothing comes of is not tried for ever, and costs no more than one warm-up."""
    server = start_llama("dense", "-np", "1", "--no-cache-prompt", "--slot-save-path", str(tmp_path))
    first, *others = sessions(*(f"/{name}" for name in "abcdefghij"))
    await ask_directly(server, first)
    async with running(server, persist=True, slot_dir=tmp_path, dir=tmp_path / "index") as proxied:
        for body in others:
            assert 200 == (await proxied.ask(body)).status
    assert "reuse_useless" == proxied.reasons[-1]
    assert 1 == len(proxied.heard.warm_ups)


async def test_a_slot_beyond_the_last(start_llama: StartLlama) -> None:
    """Nothing is prepared, and that is said: the server would take the number modulo."""
    server = start_llama("dense", "-np", "1")
    async with running(server, slot=7) as proxied:
        await proxied.ask(sessions("/a")[0])
    assert ["other_slot"] == proxied.reasons
    assert "slot_out_of_range" in proxied.heard.troubles


async def test_a_key_in_the_query(start_llama: StartLlama) -> None:
    """Only the path of a target is logged."""
    server = start_llama("dense", "-np", "1")
    async with running(server) as proxied:
        url = f"{proxied.base_url}/chat/completions?key=secret"
        async with proxied.client.post(url, json=sessions("/a")[0]) as answer:
            await answer.read()
        await proxied.heard.until(lambda: len(proxied.heard.requests) > 0)
    assert "/v1/chat/completions" == proxied.last.path
