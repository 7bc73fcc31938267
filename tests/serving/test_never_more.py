"""Never more than directly: what conversations cost in prefilled tokens, without files, whatever the server's flags."""

from pathlib import Path

import pytest

from proxy.demo.models import Kind
from proxy.demo.sessions import Body, next_turn
from tests.conftest import StartLlama
from tests.serving.running import ask_directly, running, sessions
from tests.variants import long

ONE_SLOT = ("-np", "1")
RULE = "run the tests before you say that it is done. "
CONTEXTS = {"short": None, "some": RULE * 30, "long": RULE * 90}
A_PREFIX = 8
"""What a new prefix may cost more."""
GO_ON, A_SESSION = 24, 64
"""Tokens of a short turn; and of a session of which all but the prefix is new."""


def turns(first: Body, count: int) -> list[Body]:
    bodies = [first]
    while len(bodies) < count:
        bodies.append(next_turn(bodies[-1], "done", "go on"))
    return bodies


async def compared(
    start_llama: StartLlama,
    kind: Kind,
    *flags: str,
    bodies: list[Body],
    slot_dir: Path | None = None,
    **traits: bool,
) -> list[int]:
    """Tokens prefilled directly, and through the proxy: in the answers and in warm-ups."""
    server = start_llama(kind, *flags, **traits)
    directly = sum(answer.prefilled for answer in await ask_directly(server, *bodies))
    server.restart()
    saved = {} if slot_dir is None else {"persist": True, "slot_dir": slot_dir, "dir": slot_dir / "index"}
    async with running(server, **saved) as proxied:
        answers = [(await proxied.ask(body)).prefilled for body in bodies]
        return [directly, sum(answers) + proxied.heard.prefilled]


@pytest.mark.parametrize("flags", [ONE_SLOT, long(())], ids=["one-slot", "default-flags"])
@pytest.mark.parametrize("tools_last", [False, True], ids=["tools-first", "tools-last"])
@pytest.mark.parametrize("context", CONTEXTS)
async def test_sessions_of_two_turns(
    start_llama: StartLlama, flags: tuple[str, ...], tools_last: bool, context: str
) -> None:
    """New sessions after others that went on: the checkpoint they go back to lies no farther back than directly."""
    first = sessions("/a", "/b", "/c", tokens=1000, project_context=CONTEXTS[context])
    bodies = [turn for body in first for turn in turns(body, 2)]
    directly, proxied = await compared(start_llama, "hybrid", *flags, bodies=bodies, tools_last=tools_last)
    assert directly + A_PREFIX >= proxied


@pytest.mark.parametrize("flags", [ONE_SLOT, ()], ids=["one-slot", "default-flags"])
async def test_two_that_take_turns_and_send_answers_back_changed(
    start_llama: StartLlama, flags: tuple[str, ...]
) -> None:
    """Each goes on near the end of its last prompt, and none is thought to be lost for it."""
    first, second = (turns(body, 4) for body in sessions("/a", "/b", tokens=1000))
    in_turns = [*first[:2], second[0], first[2], second[1], first[3], second[2]]
    server = start_llama("hybrid", *flags)
    async with running(server) as proxied:
        answers = [await proxied.ask(body) for body in in_turns]
        assert GO_ON >= max(answer.prefilled for answer in (answers[1], *answers[3:]))


@pytest.mark.parametrize("flags", [ONE_SLOT, ()], ids=["one-slot", "default-flags"])
async def test_a_session_begins_while_one_goes_on(start_llama: StartLlama, flags: tuple[str, ...]) -> None:
    """Where the prefix ends in another that has just begun, not where one in its third turn can be gone back to."""
    first, second, third = (turns(body, 3) for body in sessions("/a", "/b", "/c", tokens=1000))
    server = start_llama("hybrid", *flags)
    async with running(server) as proxied:
        for body in (*first[:2], second[0], first[2]):
            await proxied.ask(body)
        assert A_SESSION >= (await proxied.ask(third[0])).prefilled


@pytest.mark.parametrize("flags", [ONE_SLOT, ()], ids=["one-slot", "default-flags"])
@pytest.mark.parametrize("kind", ["dense", "hybrid"])
async def test_an_earlier_message_is_edited(start_llama: StartLlama, kind: Kind, flags: tuple[str, ...]) -> None:
    """A conversation that is begun again with another question goes back as far as it would directly."""
    asked, edited = (sessions("/a", tokens=1000, user=user)[0] for user in ("look at the file", "look at the test"))
    directly, proxied = await compared(start_llama, kind, *flags, bodies=[*turns(asked, 3), *turns(edited, 2)])
    assert directly + A_PREFIX >= proxied


@pytest.mark.parametrize("flags", [ONE_SLOT, ()], ids=["one-slot", "default-flags"])
async def test_an_early_message_is_edited_with_checkpoints_on_disk(
    start_llama: StartLlama, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """A restore gives less than some servers' own checkpoints of earlier turns, and more than others'."""
    told = turns(sessions("/a", tokens=1000)[0], 4)
    edited = {**told[2], "messages": [*told[2]["messages"][:-1], {"role": "user", "content": RULE * 9}]}
    directly, proxied = await compared(
        start_llama, "hybrid", *flags, "--slot-save-path", str(tmp_path), bodies=[*told, edited], slot_dir=tmp_path
    )
    assert directly + A_PREFIX >= proxied


ODD: list[tuple[Kind, tuple[str, ...]]] = [
    ("dense", ("--no-cache-prompt",)),
    ("hybrid", ("--no-cache-prompt",)),
    ("dense", ("--slot-prompt-similarity", "0")),
    ("hybrid", ("--slot-prompt-similarity", "0")),
    ("hybrid", ("--ctx-checkpoints", "0")),
]


@pytest.mark.parametrize(
    ("kind", "flags"), ODD, ids=lambda value: " ".join(value) if isinstance(value, tuple) else value
)
async def test_where_there_is_little_to_gain(start_llama: StartLlama, kind: Kind, flags: tuple[str, ...]) -> None:
    """Two installs in turns, on servers that reuse little or nothing: what is useless is not done."""
    title: Body = {"messages": [{"role": "user", "content": "a title for this"}], "max_tokens": 1}
    talks = [turns(body, 2) for folder in "abc" for seed in (1, 2) for body in sessions(folder, tokens=600, seed=seed)]
    bodies = [body for first, _ in talks for body in (first, title)] + [later for _, later in talks]
    directly, proxied = await compared(start_llama, kind, *flags, bodies=bodies)
    assert directly + 2 * A_PREFIX >= proxied
