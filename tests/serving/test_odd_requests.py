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
    (first,) = sessions("/a")
    server = start_llama("dense", "-np", "1")
    async with running(server) as proxied:
        for turn, body in enumerate(turns(first, 6)):
            system, *rest = body["messages"]
            text = system["content"].replace(" ", f" x{turn} ", 1)
            await proxied.ask({**body, "messages": [{**system, "content": text}, *rest]})
    assert 4 == proxied.heard.troubles.count("prompt_rewritten")
