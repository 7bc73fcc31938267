"""The index survives everything, and what it can't vouch for is never deleted on its word."""

import contextlib
import errno
import multiprocessing
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.checkpoints.index import INDEX_NAME, LOCK_NAME, Index
from proxy.checkpoints.record import Checkpoint
from tests.checkpoints.index_directory import NOW, directory, names, written
from tests.checkpoints.state_files import KEY, OTHER_KEY, checkpoint

__all__ = ["directory", "written"]


@pytest.fixture
def closing() -> Iterator[list[Index]]:
    opened: list[Index] = []
    yield opened
    for index in opened:
        index.close()


def test_missing_is_empty_and_trusted(directory: Path) -> None:
    """The first start has nothing, and may clean up."""
    index = Index.open(directory, NOW)
    assert (index.is_trusted, index.is_owner, dict(index.records), index.notes) == (True, True, {}, [])
    index.close()


def test_what_was_flushed_is_there_at_the_next_start(written: Path) -> None:
    """Checkpoints outlive the proxy, and are found by key and by fingerprint."""
    index = Index.open(written, NOW)
    assert checkpoint(KEY, fingerprints=("f1",)) == index.get(KEY)
    assert index.by_fingerprint("f2") == index.get(OTHER_KEY)
    assert not index.is_dirty
    index.close()


def test_directory_and_files_are_ours_alone(written: Path) -> None:
    """Nobody else reads what was asked: 0700 and 0600."""
    assert stat.S_IMODE(written.stat().st_mode) == 0o700
    assert {0o600} == {stat.S_IMODE((written / name).stat().st_mode) for name in (INDEX_NAME, LOCK_NAME)}


def test_a_directory_that_was_open_to_others_is_closed(directory: Path) -> None:
    """An older directory of our own gets the mode that a new one has."""
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    Index.open(directory, NOW).close()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_shared_directory_is_not_closed_to_others(directory: Path) -> None:
    """A directory like /tmp keeps its mode."""
    directory.mkdir(parents=True)
    directory.chmod(0o1777)
    Index.open(directory, NOW).close()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o1777


def test_a_second_proxy_reads_and_does_not_write(written: Path) -> None:
    """Two proxies on one directory: the later one restores, and neither saves nor deletes."""
    first, raw = Index.open(written, NOW), (written / INDEX_NAME).read_bytes()
    second = Index.open(written, NOW)
    assert (first.is_owner, second.is_owner, second.notes) == (True, False, ["directory_of_another_proxy"])
    assert second.get(KEY) is not None
    second.remove(KEY)
    assert (second.flush(), raw) == (None, (written / INDEX_NAME).read_bytes())
    second.close()
    first.close()


def test_a_command_that_has_the_lock_for_a_moment_is_waited_for(written: Path) -> None:
    """A proxy that starts while somebody prunes owns its directory all the same."""
    command = Index.open(written, NOW)
    ending = threading.Timer(0.1, command.close)
    ending.start()
    started = Index.open(written, NOW)
    assert (started.is_owner, started.notes) == (True, [])
    ending.join()
    started.close()


def test_the_lock_goes_with_its_process(written: Path) -> None:
    """A proxy killed at any moment leaves the directory free for the next."""
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(written, ready, stop))
    other.start()
    assert ready.wait(30)
    held = Index.open(written, NOW)
    other.kill()
    other.join()
    free = Index.open(written, NOW)
    assert (held.is_owner, free.is_owner) == (False, True)
    held.close()
    free.close()


def _hold(
    directory: Path, ready: "multiprocessing.synchronize.Event", stop: "multiprocessing.synchronize.Event"
) -> None:
    _index = Index.open(directory, NOW)
    ready.set()
    stop.wait()


def test_a_full_disk_is_said_once_and_the_index_goes_on(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file stays whole, memory goes on, and when there is room again everything is written."""
    index, raw = Index.open(written, NOW), (written / INDEX_NAME).read_bytes()
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _full)
        index.touch(KEY, NOW)
        assert index.flush() == "No space left on device"
        index.touch(KEY, NOW + 1)
        assert index.flush() is None
        assert raw == (written / INDEX_NAME).read_bytes()
        assert {INDEX_NAME, LOCK_NAME} == names(written)
    assert index.is_dirty
    index.close()
    again = Index.open(written, NOW)
    assert _known(again, KEY).last_used_at == NOW + 1
    again.close()


@pytest.mark.parametrize("step", range(4))
def test_killed_at_any_step_of_a_write_the_old_or_the_new_index_is_there(
    written: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a write ends, the next start finds a whole index and can write."""
    index = Index.open(written, NOW)
    index.remove(OTHER_KEY)
    left = iter(range(step, -1, -1))
    with monkeypatch.context() as death, contextlib.suppress(KeyboardInterrupt):
        for place, name in ((os, "fdopen"), (os, "fsync"), (Path, "replace")):
            death.setattr(place, name, _dying(getattr(place, name), left))
        index.flush()
    index._changes_written = index._changes  # the dead write nothing more
    index.close()
    again = Index.open(written, NOW)
    assert again.is_trusted
    assert set(again.records) in ({KEY, OTHER_KEY}, {KEY})
    again.touch(KEY, NOW)
    assert again.close() is None


def _dying(function: Callable[..., object], left: Iterator[int]) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        if next(left) == 0:
            raise KeyboardInterrupt
        return function(*arguments)

    return call


def test_a_write_that_the_disk_ends_half_way_leaves_the_old_index(written: Path) -> None:
    """With room for a part of the file only, the old one stays whole and no part is left."""
    raw = (written / INDEX_NAME).read_bytes()
    other = multiprocessing.get_context("spawn").Process(target=_write_too_much, args=(written, len(raw)))
    other.start()
    other.join(30)
    assert other.exitcode == 0
    assert raw == (written / INDEX_NAME).read_bytes()
    assert {INDEX_NAME, LOCK_NAME} == names(written)


def _write_too_much(directory: Path, limit: int) -> None:
    index = Index.open(directory, NOW)
    for n in range(1000):
        index.put(checkpoint(f"{n:016x}"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    assert index.flush() == "File too large"
    assert len(index.records) >= 1000


def _full(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _known(index: Index, key: str) -> Checkpoint:
    record = index.get(key)
    assert record is not None
    return record


def test_nothing_is_written_when_nothing_has_changed(written: Path) -> None:
    """A start and an end without a request leave the file alone."""
    before = (written / INDEX_NAME).stat()
    Index.open(written, NOW).close()
    assert before == (written / INDEX_NAME).stat()


def test_a_use_only_touches_memory(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a request does no I/O; the flush does."""
    index = Index.open(written, NOW)
    with monkeypatch.context() as nothing:
        nothing.setattr(os, "open", None)
        index.touch(KEY, NOW + 5)
        index.remove(OTHER_KEY)
    assert (_known(index, KEY).last_used_at, _known(index, KEY).uses) == (NOW + 5, 1)
    assert index.is_dirty
    assert index.flush() is None
    assert not index.is_dirty
    index.close()


def test_what_changes_while_a_flush_runs_is_written_by_the_next(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change in mid-write is not taken for written."""
    index = Index.open(written, NOW)
    write = Index._write
    index.touch(KEY, NOW)
    with monkeypatch.context() as slow:
        slow.setattr(Index, "_write", lambda self, raw: (self.touch(KEY, NOW + 9), write(self, raw)))
        index.flush()
    assert index.is_dirty
    index.close()


def test_a_fingerprint_points_at_its_last_checkpoint(closing: list[Index], directory: Path) -> None:
    """A rendering that changed moves its fingerprint; removing the old checkpoint doesn't take it away."""
    index = Index.open(directory, NOW)
    closing.append(index)
    index.put(checkpoint(KEY, fingerprints=("f",)))
    index.put(checkpoint(OTHER_KEY, fingerprints=("f",)))
    index.remove(KEY)
    assert index.by_fingerprint("f") == index.get(OTHER_KEY)
    index.put(checkpoint(OTHER_KEY, fingerprints=("g",)))
    assert index.by_fingerprint("f") is None
    assert index.by_fingerprint("") is None


def test_the_most_recent_checkpoint_is_of_that_model_only(closing: list[Index], directory: Path) -> None:
    """What is restored at a start belongs to the model, LoRA and server that are there."""
    index = Index.open(directory, NOW)
    closing.append(index)
    index.put(checkpoint(KEY, last_used_at=5.0))
    index.put(checkpoint(OTHER_KEY, last_used_at=9.0, model="another"))
    index.put(checkpoint("0" * 16, last_used_at=3.0))
    assert index.most_recent("model", "", "") == index.get(KEY)
    assert index.most_recent("model", "adapter", "") is None
