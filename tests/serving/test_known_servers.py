"""A proxy that is restarted while its server is in use knows what that can do: the one before it has found it out."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.llama.identity import Process
from proxy.serving.known_servers import MOST_SERVERS, NAME, Found, keep, recall
from proxy.slots.capabilities import Capabilities
from tests.conftest import StartLlama
from tests.serving.running import ask_directly, running, sessions

ABLE = Capabilities(4, 16384, shows_slots=True, rolls_back=False, keeps_copies=True, restores=True, format_version=4)
FOUND = Found(ABLE, 0.5, "/slots")


def process(marker: str, *, has_own_marker: bool = True) -> Process:
    return Process(marker, 4, 16384, "/m.gguf", "b1", is_sleeping=False, has_own_marker=has_own_marker)


async def test_a_proxy_that_is_restarted_alone_keeps_conversations_as_if_it_had_not_been(
    start_llama: StartLlama, tmp_path: Path
) -> None:
    """What the server can do is known at once: the next session's prefix is prepared, and what it displaces is kept."""
    first, second, third = sessions("/a", "/b", "/c")
    server = start_llama("hybrid", "-np", "1")
    async with running(server, dir=tmp_path) as before:
        await before.ask(first)
        able = before.proxy.engine.model.able
    assert (True, False) == (able.keeps_copies, able.rolls_back)
    async with running(server, dir=tmp_path) as after:
        await after.ask(second)
        model = after.proxy.engine.model
        # What a copy takes is measured by each.
        assert (replace(able, copy_tokens=model.able.copy_tokens), True) == (model.able, model.was_probed)
        assert ["may_be_hot"] == after.reasons  # what the slots hold is as unknown as ever
        await after.ask(third)
        assert ["Copy"] == [type(step).__name__ for step in after.last.plan.steps][:1]
        assert [] == after.heard.troubles


async def test_of_a_server_that_was_in_use_before_any_proxy_it_is_said(start_llama: StartLlama, tmp_path: Path) -> None:
    """Once, with the remedy; when the server was restarted it is no advice any more."""
    server = start_llama("dense", "-np", "1")
    await ask_directly(server, *sessions("/a"))
    async with running(server, dir=tmp_path) as proxied:
        for body in sessions("/b", "/c"):
            await proxied.ask(body)
        assert ["not_probed"] == [reason for reason in proxied.heard.troubles if reason == "not_probed"]
        assert "restart llama-server once while the proxy runs" in proxied.heard.said["not_probed"]
        assert "not_probed" in proxied.proxy.admin.history.advice
        server.restart()
        await proxied.ask(sessions("/d")[0])
        assert proxied.proxy.engine.model.able.keeps_copies
        assert "not_probed" not in proxied.proxy.admin.history.advice


def test_only_of_this_very_process(tmp_path: Path) -> None:
    """Another process, and one whose marker others have too, are not known."""
    keep(tmp_path, process("a"), FOUND)
    keep(tmp_path, process("m|4|b", has_own_marker=False), FOUND)
    assert FOUND == recall(tmp_path, process("a"))
    assert None is recall(tmp_path, process("b"))
    assert None is recall(tmp_path, process("m|4|b", has_own_marker=False))
    assert None is recall(tmp_path, process("a", has_own_marker=False))


def test_what_was_not_found_out_is_not_kept(tmp_path: Path) -> None:
    """A server that was too slow to be probed."""
    keep(tmp_path, process("a"), Found(Capabilities(4, 16384), 9.0))
    assert None is recall(tmp_path, process("a"))


def test_files_seen_elsewhere_prove_nothing_of_this_directory() -> None:
    """The version of the server's files was read in another SLOT_DIR."""
    assert 4 == FOUND.seen_from("/slots").able.format_version
    assert None is FOUND.seen_from("/other").able.format_version


def test_the_file_is_bounded_and_ours_alone(tmp_path: Path) -> None:
    """The latest processes, readable by nobody else, and nothing left beside it."""
    for number in range(MOST_SERVERS + 3):
        keep(tmp_path / "new", process(str(number)), FOUND)
    assert [None, FOUND] == [recall(tmp_path / "new", process(str(number))) for number in (2, 3)]
    assert [NAME] == [path.name for path in (tmp_path / "new").iterdir()]
    assert 0o600 == stat.S_IMODE((tmp_path / "new" / NAME).stat().st_mode)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"a": 1}', b'{"a": {"able": {"total_slots": "x"}}}', b"\xff"])
def test_a_file_that_cannot_be_read_is_as_none(tmp_path: Path, raw: bytes) -> None:
    """It is written anew."""
    (tmp_path / NAME).write_bytes(raw)
    assert None is recall(tmp_path, process("a"))
    keep(tmp_path, process("a"), FOUND)
    assert FOUND == recall(tmp_path, process("a"))


def test_where_it_cannot_be_written_nothing_fails(tmp_path: Path) -> None:
    """A file stands where the directory should be."""
    (tmp_path / "file").write_bytes(b"")
    keep(tmp_path / "file" / "index", process("a"), FOUND)
    assert None is recall(tmp_path / "file" / "index", process("a"))
