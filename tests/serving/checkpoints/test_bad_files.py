"""A file that is not what was saved never reaches the server: the request is served cold, and the next one is built."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.checkpoints.key import FileKind
from proxy.checkpoints.state_file import FIXED_BYTES
from proxy.llama.client import LlamaClient
from proxy.serving.store import Store
from tests.conftest import StartLlama
from tests.permissions import permissions_count
from tests.serving.checkpoints.persisting import (
    QUIET,
    Calls,
    Place,
    reasons,
)
from tests.serving.checkpoints.prepared import PROBES, ask_new, recovers, started
from tests.serving.running import distance

pytestmark = pytest.mark.usefixtures("unwatched")

Spoil = Callable[[Path], None]


def cut(share: float, extra: int = 0) -> Spoil:
    """Cut a file to this share of its size, and so many bytes more or less."""

    def spoil(path: Path) -> None:
        os.truncate(path, int(path.stat().st_size * share) + extra)

    return spoil


def flip(share: float, extra: int = 0) -> Spoil:
    """Turn one byte around, there."""

    def spoil(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        raw[int((len(raw) - 1) * share) + extra] ^= 0xFF
        path.write_bytes(raw)

    return spoil


def as_link(path: Path) -> None:
    target = path.parent.parent / "elsewhere.bin"
    path.rename(target)
    path.symlink_to(target)


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES: dict[str, Spoil] = {
    "cut-to-1": cut(0, 1),
    "cut-in-head": cut(0, FIXED_BYTES - 1),
    "cut-in-tokens": cut(0, 400),
    "cut-to-half": cut(0.5),
    "cut-by-64": cut(1, -64),
    "cut-by-16": cut(1, -16),
    "cut-by-1": cut(1, -1),
    "flip-magic": flip(0),
    "flip-version": flip(0, 4),
    "flip-count": flip(0, 8),
    "flip-token": flip(0, 400),
    "flip-after-tokens": flip(0.1),
    "flip-middle": flip(0.5),
    "flip-last": flip(1),
    "empty": empty,
    "symlink": as_link,
    "directory": as_directory,
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_file_is_put_aside_unread(
    start_llama: StartLlama, place: Place, calls: Calls, damage: str
) -> None:
    """It is renamed, never given to the server, and built anew; the request gets the answer of a cold server."""
    server, cold = await started(start_llama, place)
    pid, before = server.pid, calls.restores
    DAMAGES[damage](place.checkpoint)
    async with place.proxy(server) as proxied:
        answer = await ask_new(proxied)
        assert ["warm-up"] == proxied.sources
    assert QUIET > distance(cold, answer)
    assert (pid, True) == (server.pid, server.is_running)
    assert 0 == calls.restores - before - PROBES
    assert 1 == len(place.files(FileKind.BAD))
    assert await recovers(place, server)


async def test_a_symlinks_target_is_left_alone(start_llama: StartLlama, place: Place) -> None:
    """What somebody linked to under our name is not ours: neither read nor written nor removed."""
    server, _ = await started(start_llama, place)
    as_link(place.checkpoint)
    target = place.home / "elsewhere.bin"
    before = target.read_bytes()
    async with place.proxy(server, ttl_days=0, keep_recent=0) as proxied:
        await ask_new(proxied)
    assert before == target.read_bytes()
    assert place.checkpoint.is_file()
    assert not place.checkpoint.is_symlink()


async def test_an_unreadable_file_is_not_restored(start_llama: StartLlama, place: Place, calls: Calls) -> None:
    """What can't be read can't be proven; it is left where it is until there is a new one."""
    with permissions_count():
        server, cold = await started(start_llama, place)
        before = calls.restores
        place.checkpoint.chmod(0)
        async with place.proxy(server) as proxied:
            answer = await ask_new(proxied)
            assert ["warm-up"] == proxied.sources
        assert QUIET > distance(cold, answer)
        assert 0 == calls.restores - before - PROBES
        assert not place.files(FileKind.BAD)
        assert await recovers(place, server)


async def test_a_file_deleted_between_check_and_use_costs_one_attempt(
    start_llama: StartLlama, place: Place, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's refusal is taken for an answer; the prefix is built anew."""
    server, cold = await started(start_llama, place)
    before, mark, path = calls.restores, Store.mark, place.checkpoint

    async def delete(store: Store, *told: str) -> object:
        await asyncio.to_thread(path.unlink)
        return await mark(store, *told)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "mark", delete)
        async with place.proxy(server) as proxied:
            answer = await ask_new(proxied)
            assert ["warm-up"] == proxied.sources
            assert ["restore_failed"] == reasons(proxied, ["restore"])
    assert 1 == calls.restores - before - PROBES
    assert QUIET > distance(cold, answer)
    assert await recovers(place, server)


async def test_a_file_of_which_the_server_reads_something_else_is_put_aside(
    start_llama: StartLlama, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exchanged between the proof and the restore: what the server says it has read is not the prefix."""
    server, cold = await started(start_llama, place)
    restore = LlamaClient.restore

    async def of_another(client: LlamaClient, slot: int, name: str, *told: Any) -> Any:
        done = await restore(client, slot, name, *told)
        return done if ".tmp-" in name else replace(done, n_tokens=done.n_tokens - 1)

    with monkeypatch.context() as patched:
        patched.setattr(LlamaClient, "restore", of_another)
        async with place.proxy(server) as proxied:
            answer = await ask_new(proxied)
            assert ["warm-up"] == proxied.sources
    assert QUIET > distance(cold, answer)
    assert 1 == len(place.files(FileKind.BAD))
    assert await recovers(place, server)


async def test_a_file_deleted_behind_our_back_costs_no_attempt(
    start_llama: StartLlama, place: Place, calls: Calls
) -> None:
    """Where the directory is visible, a file that is gone is noticed before the server is asked for it."""
    server, _ = await started(start_llama, place)
    place.checkpoint.unlink()
    before = calls.restores
    async with place.proxy(server) as proxied:
        await ask_new(proxied)
    assert 0 == calls.restores - before - PROBES
    assert await recovers(place, server)
