"""The index survives everything, and what it can't vouch for is never deleted on its word."""

import multiprocessing
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.checkpoints.index import INDEX_NAME, LOCK_NAME, Index
from tests.checkpoints.index_directory import NOW
from tests.checkpoints.state_files import KEY, OTHER_KEY, checkpoint


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
