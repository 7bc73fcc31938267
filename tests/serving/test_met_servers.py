"""Servers as they are met: what the probe leaves in them, and what is done on one that was not probed."""

from pathlib import Path

import pytest

from proxy.demo.models import Kind
from proxy.demo.sessions import next_turn
from proxy.llama.client import Auth
from proxy.llama.probe import Probed
from proxy.serving.acquaintance import Acquaintance
from tests.conftest import StartLlama
from tests.serving.running import Answer, ask_directly, ask_server, running, sessions

MOST_LEFT = 1
"""Tokens, where slots can't be erased."""


@pytest.mark.parametrize("acts", [False, True], ids=["displaced", "erased"])
async def test_the_probe_leaves_no_slot_occupied(start_llama: StartLlama, tmp_path: Path, *, acts: bool) -> None:
    """Where slots share a buffer it would take room from the windows of others."""
    server = start_llama("swa", "--cache-ram", "0", *(("--slot-save-path", str(tmp_path)) if acts else ()))
    async with running(server) as proxied:
        await proxied.ask(*sessions("/a"))
        used = proxied.last.slot
        shown = await ask_server(server, "/slots")
        assert proxied.proxy.engine.model.was_probed
    left = [slot.get("n_prompt_tokens", 0) for slot in shown if slot["id"] != used]
    assert 3 == len(left)
    assert (0 if acts else MOST_LEFT) >= max(left)


async def test_what_somebody_left_just_after_the_probe_is_not_emptied(
    start_llama: StartLlama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ran in a slot that is new to us, too: its length tells."""
    server = start_llama("hybrid", "-np", "2", "--slot-save-path", str(tmp_path))
    foreign = sessions("/z", seed=9)[0]
    told: list[Answer] = []
    tidy = Acquaintance._after_probe

    async def beside(self: Acquaintance, found: Probed, auth: Auth) -> None:
        told.extend(await ask_directly(server, foreign))
        await tidy(self, found, auth)

    monkeypatch.setattr(Acquaintance, "_after_probe", beside)
    async with running(server) as proxied:
        await proxied.ask(*sessions("/a"))
        (later,) = await ask_directly(server, next_turn(foreign, told[0].text, "go on"))
    assert later.reused >= told[0].prefilled


@pytest.mark.parametrize("persist", [False, True], ids=["host-memory", "files"])
@pytest.mark.parametrize(
    ("kind", "tools_last", "goes_back"),
    [("dense", False, None), ("hybrid", True, False), ("swa", False, None)],
    ids=["dense", "tools-last", "swa"],
)
async def test_a_server_that_was_not_probed_prefills_no_more_than_directly(
    start_llama: StartLlama, tmp_path: Path, kind: Kind, tools_last: bool, goes_back: bool | None, persist: bool
) -> None:
    """It was in use already: what a warm-up would take the place of is not known before its answers have told."""
    (first,), (same,), (other,) = sessions("/a"), sessions("/a", user="what is this"), sessions("/b")
    bodies = [first, same, next_turn(first, "done", "go on"), other, same]
    server = start_llama(kind, "-np", "1", "--slot-save-path", str(tmp_path), tools_last=tools_last)
    (used,) = sessions("/z", seed=9)
    *_, directly = [await ask_directly(server, used, *bodies)]
    server.restart()
    await ask_directly(server, used)
    async with running(server, persist=persist, slot_dir=tmp_path, dir=tmp_path / "index") as proxied:
        answers = [await proxied.ask(body) for body in bodies]
        ours = proxied.heard.prefilled + sum(answer.prefilled for answer in answers)
        assert goes_back is proxied.proxy.engine.model.able.rolls_back
        assert not proxied.proxy.engine.model.was_probed
    assert sum(answer.prefilled for answer in directly[1:]) >= ours
