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

FULL = ("-fa", "off", "--swa-full")
slots = pytest.mark.parametrize("flags", [("-np", "1"), ()], ids=["one-slot", "default-flags"])
files = pytest.mark.parametrize("persist", [False, True], ids=["host-memory", "files"])
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
    server.restart()
    expected = await cold(server, sequence())
    apart = [distance(one, other) for one, other in zip(expected, warm, strict=True)]
    assert max(apart) < QUIET, [*zip((f"{one:.6f}" for one in apart), proxied.sources, strict=True)]
    assert [] == [reason for reason in proxied.heard.troubles if reason.startswith("claim:")]


async def test_without_a_proxy_they_are_not(start_llama: StartLlama) -> None:
    """What makes all this necessary; a server that does better makes it needless."""
    server = start_llama("swa", "-np", "1", *FULL)
    bodies = sequence()[:5]
    warm = await ask_directly(server, *bodies)
    apart = [distance(one, other) for one, other in zip(await cold(server, bodies), warm, strict=True)]
    assert max(apart[:3]) < QUIET < 10 * QUIET < apart[4]
