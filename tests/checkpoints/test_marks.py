"""A restore that nobody saw the end of names its checkpoint at the next start."""

import multiprocessing
import os
from pathlib import Path

import pytest

from proxy.checkpoints import marks
from proxy.checkpoints.marks import forget, left_over_marks, set_mark
from tests.checkpoints.state_files import KEY


def _die_restoring(directory: Path) -> None:
    set_mark(directory, KEY, "server-1")
    os.kill(os.getpid(), 9)


@pytest.fixture
def left_over(tmp_path: Path) -> Path:
    """A directory in which a proxy was killed during a restore."""
    other = multiprocessing.get_context("spawn").Process(target=_die_restoring, args=(tmp_path,))
    other.start()
    other.join(30)
    assert other.exitcode == -9
    return tmp_path


def test_a_restore_that_ended_leaves_nothing(tmp_path: Path) -> None:
    """After the server's answer there is no suspicion."""
    mark = set_mark(tmp_path, KEY, "server-1")
    mark.clear()
    mark.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_proxy_leaves_its_suspect(left_over: Path) -> None:
    """The next start learns which checkpoint it was and which server had it."""
    assert [(mark.key, mark.server) for mark in left_over_marks(left_over)] == [(KEY, "server-1")]


def test_a_suspicion_stays_until_it_is_dealt_with(left_over: Path) -> None:
    """Looking doesn't clear; forgetting does."""
    for mark in left_over_marks(left_over) and left_over_marks(left_over):
        forget(mark)
        forget(mark)
    assert left_over_marks(left_over) == []


def test_a_restore_in_progress_is_no_suspicion(tmp_path: Path) -> None:
    """Another proxy that looks in the middle of our restore sees nothing left over."""
    mark = set_mark(tmp_path, KEY, "")
    assert left_over_marks(tmp_path) == []
    mark.clear()


def test_two_restores_of_one_checkpoint_have_a_mark_each(tmp_path: Path) -> None:
    """The end of one doesn't clear the other's."""
    first, second = set_mark(tmp_path, KEY, ""), set_mark(tmp_path, KEY, "")
    first.clear()
    assert [second.path] == list(tmp_path.iterdir())
    second.clear()


def test_the_mark_is_durable_before_the_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File and name are synced when ``set_mark`` returns."""
    synced: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(fd), sync(fd))[1])  # type: ignore[func-returns-value]
    set_mark(tmp_path, KEY, "").clear()
    assert len(synced) == 2


def test_a_mark_that_could_not_be_made_durable_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is an error for the caller and no suspicion later."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            set_mark(tmp_path, KEY, "")
    assert list(tmp_path.iterdir()) == []


def test_other_names_are_no_marks(tmp_path: Path) -> None:
    """What isn't a mark of ours is not read, links neither; no directory means no marks."""
    (tmp_path / "restoring-theirs").write_bytes(b"x")
    (tmp_path / f"restoring-{KEY}.1-1").symlink_to(tmp_path / "restoring-theirs")
    (tmp_path / f"restoring-{KEY}.1-2").mkdir()
    assert left_over_marks(tmp_path) == []
    assert marks.left_over_marks(tmp_path / "nowhere") == []
