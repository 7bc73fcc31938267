"""Each write of the index is whole or not at all, durable, and no more than is needed."""

import contextlib
import errno
import multiprocessing
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.checkpoints.index import INDEX_NAME, LOCK_NAME, Index
from proxy.checkpoints.record import Checkpoint
from tests.checkpoints.index_directory import NOW, names
from tests.checkpoints.state_files import KEY, OTHER_KEY, checkpoint


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


def test_an_index_is_durable_before_its_name_and_its_name_at_once(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are synced before the rename and the directory after it: a power cut leaves one of both."""
    steps: list[str] = []

    def noted(step: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            steps.append(step)
            return function(*arguments)

        return call

    index = Index.open(written, NOW)
    index.touch(KEY, NOW)
    with monkeypatch.context() as watched:
        watched.setattr(os, "fsync", noted("bytes", os.fsync))
        watched.setattr(Path, "replace", noted("rename", Path.replace))
        assert index.flush() is None
    assert ["bytes", "rename", "bytes"] == steps
    index.close()


def test_nothing_is_written_when_nothing_has_changed(written: Path) -> None:
    """A start and an end without a request leave the file alone."""

    def identity() -> tuple[int, int, int]:
        found = (written / INDEX_NAME).stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    before = identity()
    Index.open(written, NOW).close()
    assert before == identity()


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
