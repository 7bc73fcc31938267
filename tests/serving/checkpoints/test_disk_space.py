"""Disk space: what is saved, what is not, and what a save that fails leaves behind: nothing."""

import asyncio
import resource
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from proxy.demo.servers import LlamaServer, ServerBinary
from proxy.llama.client import ControlFailed, LlamaClient
from proxy.serving import saving
from tests.conftest import StartLlama
from tests.serving.checkpoints.persisting import DENSE, Calls, Place, crash
from tests.serving.running import ask_directly, sessions

pytestmark = pytest.mark.usefixtures("unwatched")


SMALL: dict[str, Any] = {"tokens": 600}


def prefixes(*seeds: int) -> list[dict[str, Any]]:
    """First requests of other installs, each with a prefix of its own."""
    return [sessions("/folder", seed=seed, **SMALL)[0] for seed in seeds]


async def test_without_the_directory_an_entry_ends_before_its_file_is_overwritten(
    start_llama: StartLlama, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index on disk says nothing of a file that the server is writing, and names it when it is written."""
    server = place.start(start_llama, DENSE, "-np", "1")
    known: list[int] = []
    save = LlamaClient.save

    async def watched_save(client: LlamaClient, slot: int, name: str, *told: Any) -> Any:
        if not name.endswith("-0"):  # the probe's
            raw = await asyncio.to_thread(lambda: (place.index / "index.json").exists() and place.known().records)
            known.append(len(raw) if raw else 0)
        return await save(client, slot, name, *told)

    monkeypatch.setattr(LlamaClient, "save", watched_save)
    (body,) = prefixes(1)
    async with place.proxy(server, slot_dir=None) as proxied:
        await proxied.ask(body)
        (record,) = place.known().records
        crash(server, under=proxied)
        proxied.proxy.engine.store.struck(record.key, "test")
        proxied.proxy.engine.model.process = None
        await proxied.proxy.engine.acquaintance.meet_first({})
        proxied.proxy.engine.store.useless(record.key)
        await proxied.ask(body)
        assert ["warm-up", "warm-up"] == proxied.sources
        assert {"slot_dir_unset"} == set(proxied.heard.troubles)
    assert [0, 0] == known
    assert [record.key] == [known.key for known in place.known().records]


async def test_what_is_saved_unseen_is_restored_and_verified(start_llama: StartLlama, place: Place) -> None:
    """Without SLOT_DIR a new session after a crash reuses the whole prefix, too."""
    server = place.start(start_llama)
    async with place.proxy(server, slot_dir=None) as proxied:
        await proxied.ask(sessions("/one", **SMALL)[0])
        crash(server, under=proxied)
        answer = await proxied.ask(sessions("/two", **SMALL)[0])
        assert ["warm-up", "restore"] == proxied.sources
        assert proxied.prefix.n_tokens == answer.reused


async def test_a_limit_below_one_file_is_learned_from_one_save(
    start_llama: StartLlama, place: Place, calls: Calls
) -> None:
    """At most one save, then none, said once; nothing stays."""
    server = place.start(start_llama)
    async with place.proxy(server, max_gb=0.0001) as proxied:
        for body in prefixes(1, 2, 3):
            await proxied.ask(body)
        assert {f"not_saved:{saving.TOO_LARGE}"} == set(proxied.heard.troubles)
    assert 2 == calls.saves  # one is the probe's
    assert [] == list(place.slots.iterdir())


@pytest.mark.parametrize(("free", "reason"), [(0.05, "disk_below_a_tenth"), (0.5, "")])
async def test_a_disk_that_is_almost_full_is_left_alone(
    start_llama: StartLlama, place: Place, calls: Calls, monkeypatch: pytest.MonkeyPatch, free: float, reason: str
) -> None:
    """Below a tenth of free space nothing is saved, and that is said."""

    class Usage(NamedTuple):
        total: int
        used: int
        free: int

    monkeypatch.setattr("proxy.serving.saving.shutil.disk_usage", lambda _: Usage(10**12, 0, int(free * 10**12)))
    server = place.start(start_llama)
    async with place.proxy(server) as proxied:
        for body in prefixes(1, 2):
            await proxied.ask(body)
        assert {f"not_saved:{reason}"} - {"not_saved:"} == set(proxied.heard.troubles)
    assert (1 if reason else 3) == calls.saves


@pytest.fixture(params=["tmpfs", "file-limit"])
def is_tiny_disk(request: pytest.FixtureRequest, place: Place) -> Iterator[bool]:
    """A file system with room for a file and a half in place of the slot directory, where one may be mounted."""
    if request.param != "tmpfs":
        yield False
        return
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place.slots], check=False)
    yield not mounted.returncode
    if not mounted.returncode:
        subprocess.run(["umount", "--lazy", place.slots], check=True)


def let_no_file_be_larger(server: LlamaServer, size_bytes: int, home: Path) -> None:
    """Start a server anew whose writes fail at that size as on a full disk; a shell has it ignore the signal."""
    script = home / "llama-server"
    script.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec {shlex.quote(str(server.binary.path))} \"$@\"\n")
    script.chmod(0o700)
    server.binary = ServerBinary(script, server.binary.environment)
    crash(server)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


async def test_a_disk_that_fills_up_in_a_save_loses_nothing(
    start_llama: StartLlama, place: Place, is_tiny_disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's save fails: the fragment goes, the good file stays, the same is not tried again at once."""
    server = place.start(start_llama)
    (small, large) = (sessions("/a", seed=1, **SMALL)[0], sessions("/a", seed=2, tokens=1500)[0])
    if not is_tiny_disk:
        let_no_file_be_larger(server, 1_500_000, place.home)
    async with place.proxy(server) as proxied:
        await proxied.ask(small)
        good = place.checkpoint.read_bytes()
        monkeypatch.setattr("proxy.serving.saving.cleanup.room_for", lambda **_: None)
        assert 200 == (await proxied.ask(large)).status
        assert ["not_saved"] == proxied.heard.troubles
        assert good == place.checkpoint.read_bytes()
        assert place.is_clean()
        assert not proxied.proxy.engine.store.disk(proxied.last.need.prefix_key).may_save


def fails_half_way(directory: Path) -> Any:
    async def save(_: LlamaClient, slot: int, name: str, *told: Any) -> Any:
        await asyncio.to_thread((directory / name).write_bytes, b"half")
        raise ControlFailed("/slots/0", 500)

    return save


async def test_a_save_that_fails_leaves_no_fragment_wherever_it_runs(
    start_llama: StartLlama, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that writes half a file and says 500 costs the request nothing, and the half file goes."""
    server = place.start(start_llama)
    async with place.proxy(server, cleanup=False) as proxied:
        await proxied.proxy.engine.lifecycle.look()
        with monkeypatch.context() as patched:
            patched.setattr(LlamaClient, "save", fails_half_way(place.slots))
            answer = await proxied.ask(prefixes(1)[0])
        assert (200, ["warm-up"]) == (answer.status, proxied.sources)
    assert [] == list(place.slots.iterdir())


async def test_a_slot_directory_of_another_server_is_found_out(
    start_llama: StartLlama, place: Place, calls: Calls, tmp_path: Path
) -> None:
    """Where the probe's file doesn't turn up nothing is saved: each try would leave one that nobody finds again."""
    server = place.start(start_llama)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with place.proxy(server, slot_dir=elsewhere) as proxied:
        for body in prefixes(1, 2, 3):
            assert 200 == (await proxied.ask(body)).status
        assert f"not_saved:{saving.BLIND}" in proxied.heard.troubles
    assert 1 == calls.saves  # the probe's


async def test_so_it_is_on_a_server_that_could_not_be_probed(
    start_llama: StartLlama, place: Place, calls: Calls, tmp_path: Path
) -> None:
    """Its slots were in use: the first save tells, and is the last."""
    server = place.start(start_llama)
    await ask_directly(server, *prefixes(4))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with place.proxy(server, slot_dir=elsewhere) as proxied:
        for body in prefixes(1, 2, 3):
            assert 200 == (await proxied.ask(body)).status
        assert f"not_saved:{saving.BLIND}" in proxied.heard.troubles
    assert 1 == calls.saves
