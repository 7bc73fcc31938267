"""Files are kept, put aside and deleted so that nothing good is lost at any step."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.checkpoints import slot_directory
from proxy.checkpoints.cleanup import FileSeen
from proxy.checkpoints.inspection import FileVerdict, inspect
from proxy.checkpoints.key import bad_name, companion_name, final_name, temporary_name
from proxy.checkpoints.slot_directory import delete, discard, live_pids, promote, quarantine, scan
from tests.checkpoints.state_files import KEY, OTHER_KEY, STATE, expected_of, state_file

NOW = 1_700_000_000.0
OLD_STATE = STATE[::-1]


@pytest.fixture
def final(tmp_path: Path) -> Path:
    return tmp_path / final_name(KEY)


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    return state_file(tmp_path / temporary_name(KEY, 7, 1))


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def _companion(path: Path) -> Path:
    return path.with_name(companion_name(path.name))


def test_a_checked_file_gets_its_name(temporary: Path, final: Path) -> None:
    """After the promotion the file stands under its final name only."""
    promote(temporary, final, NOW)
    assert [final.name] == _names(final.parent)


def test_the_seal_of_the_temporary_file_is_that_of_the_final_one(temporary: Path, final: Path) -> None:
    """What was proven before the rename needs no second reading after it."""
    expected = expected_of(temporary)
    promote(temporary, final, NOW)
    assert expected == expected_of(final)


def test_the_companion_goes_along(temporary: Path, final: Path) -> None:
    """What a patched server wrote beside the temporary file stands beside the final one."""
    _companion(temporary).write_bytes(b"new")
    _companion(final).write_bytes(b"old")
    promote(temporary, final, NOW)
    assert {final.name, _companion(final).name} == set(_names(final.parent))
    assert _companion(final).read_bytes() == b"new"


def test_an_old_companion_does_not_stay_beside_a_new_state(temporary: Path, final: Path) -> None:
    """A pair that nobody has proven never comes into being."""
    state_file(final, state=OLD_STATE)
    _companion(final).write_bytes(b"old")
    promote(temporary, final, NOW)
    assert [final.name] == _names(final.parent)


@pytest.mark.parametrize("step", range(8))
def test_killed_at_any_step_the_old_or_the_new_file_is_there(
    temporary: Path, final: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a promotion ends, the final name has a whole state and never a foreign companion."""
    state_file(final, state=OLD_STATE)
    _companion(final).write_bytes(b"old")
    _companion(temporary).write_bytes(b"new")
    _die_at(step, monkeypatch)
    with contextlib.suppress(KeyboardInterrupt):
        promote(temporary, final, NOW)
    state = final.read_bytes()[-len(STATE) :]
    companion = _companion(final).read_bytes() if _companion(final).exists() else None
    assert (state, companion) in {(OLD_STATE, b"old"), (OLD_STATE, None), (STATE, None), (STATE, b"new")}


def _die_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process "die" before its n-th change or fsync."""
    left = iter(range(step, -1, -1))

    def dying(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if next(left) == 0:
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    for name in ("replace", "unlink"):
        monkeypatch.setattr(Path, name, dying(getattr(Path, name)))
    monkeypatch.setattr(os, "fsync", dying(os.fsync))


def test_the_file_is_durable_before_its_name(temporary: Path, final: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are synced before the rename and the directory after it."""
    steps: list[str] = []

    def noted(step: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            steps.append(step)
            return function(*arguments)

        return call

    monkeypatch.setattr(Path, "replace", noted("rename", Path.replace))
    monkeypatch.setattr(slot_directory, "sync_file", noted("file", slot_directory.sync_file))
    monkeypatch.setattr(slot_directory, "sync_directory", noted("names", slot_directory.sync_directory))
    promote(temporary, final, NOW)
    assert steps == ["file", "rename", "names"]


def test_a_symlink_under_the_final_name_is_put_aside(temporary: Path, final: Path, tmp_path: Path) -> None:
    """Somebody's link is neither followed nor lost."""
    target = state_file(tmp_path / "theirs", state=OLD_STATE)
    final.symlink_to(target)
    promote(temporary, final, NOW)
    assert not final.is_symlink()
    assert (tmp_path / bad_name(KEY, int(NOW))).readlink() == target
    assert target.read_bytes()[-len(STATE) :] == OLD_STATE


def test_a_quarantined_file_goes_aside_with_its_companion(final: Path) -> None:
    """Both are renamed, none is deleted."""
    raw = state_file(final).read_bytes()
    _companion(final).write_bytes(b"companion")
    name = quarantine(final, NOW)
    assert name == bad_name(KEY, int(NOW))
    assert {name, companion_name(name)} == set(_names(final.parent))
    assert final.with_name(name).read_bytes() == raw


def test_a_second_quarantine_in_the_same_second_keeps_the_first(final: Path) -> None:
    """No file put aside is ever overwritten by the next."""
    for content in (b"first", b"second"):
        final.write_bytes(content)
        quarantine(final, NOW)
    assert {path.read_bytes() for path in final.parent.iterdir()} == {b"first", b"second"}


def test_a_directory_can_be_put_aside(final: Path) -> None:
    """Whatever stands under our name, it is out of the way afterwards."""
    final.mkdir()
    assert bad_name(KEY, int(NOW)) == quarantine(final, NOW)


def test_only_our_names_are_put_aside(tmp_path: Path) -> None:
    """A foreign name, one that is aside already, or a missing file is left alone."""
    for name in ("theirs.bin", bad_name(KEY, 5)):
        (tmp_path / name).write_bytes(b"x")
        assert quarantine(tmp_path / name, NOW) is None
    assert quarantine(tmp_path / final_name(KEY), NOW) is None
    assert {"theirs.bin", bad_name(KEY, 5)} == set(_names(tmp_path))


def test_a_fragment_is_discarded_with_its_companion(temporary: Path) -> None:
    """A failed save leaves nothing."""
    _companion(temporary).write_bytes(b"part")
    discard(temporary)
    discard(temporary)
    assert _names(temporary.parent) == []


def test_only_temporary_files_are_discarded(final: Path) -> None:
    """A checkpoint is never discarded by mistake."""
    discard(state_file(final))
    assert final.exists()


def test_a_scan_sees_our_names_as_they_are(temporary: Path, final: Path, tmp_path: Path) -> None:
    """Foreign names don't appear; a link appears as a link, a hard link as one."""
    (tmp_path / "theirs.bin").write_bytes(b"x")
    final.symlink_to(temporary)
    (tmp_path / final_name(OTHER_KEY)).hardlink_to(temporary)
    seen = {file.name: file for file in scan(tmp_path)}
    assert {temporary.name, final.name, final_name(OTHER_KEY)} == set(seen)
    assert not seen[final.name].is_regular
    assert seen[temporary.name].links == 2


def test_a_file_that_is_as_it_was_seen_is_deleted(final: Path) -> None:
    """The plan is carried out."""
    state_file(final)
    assert [final.name] == delete(final.parent, scan(final.parent))
    assert not final.exists()


def test_a_file_saved_again_since_it_was_seen_is_kept(final: Path, temporary: Path) -> None:
    """A plan made before the save doesn't delete the new file."""
    state_file(final, state=OLD_STATE)
    seen = [file for file in scan(final.parent) if file.name == final.name]
    promote(temporary, final, NOW)
    assert delete(final.parent, seen) == []
    assert final.exists()


@pytest.mark.parametrize("how", ["symlink", "hard link", "directory"])
def test_what_became_a_link_since_it_was_seen_is_kept(final: Path, tmp_path: Path, how: str) -> None:
    """The last look before the unlink counts."""
    seen = FileSeen(final.name, 3, 1.0)
    target = tmp_path / "theirs"
    target.write_bytes(b"abc")
    match how:
        case "symlink":
            final.symlink_to(target)
        case "hard link":
            final.hardlink_to(target)
        case _:
            final.mkdir()
    found = [file for file in scan(tmp_path) if file.name == final.name]
    assert delete(tmp_path, [seen, *found]) == []
    assert os.path.lexists(final)


def test_a_foreign_name_is_never_deleted(tmp_path: Path) -> None:
    """Even if a plan named it."""
    (tmp_path / "theirs.bin").write_bytes(b"abc")
    status = (tmp_path / "theirs.bin").stat()
    seen = FileSeen("theirs.bin", 3, status.st_mtime, status.st_ino)
    assert delete(tmp_path, [seen]) == []
    assert (tmp_path / "theirs.bin").exists()


def test_live_processes_are_told_from_dead_ones() -> None:
    """A fragment's process is looked up; our own pid says nothing, it may be a predecessor's."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        names = [temporary_name(KEY, pid, 1) for pid in (other.pid, os.getpid(), 0, 9_999_999_999)]
        files = [FileSeen(name, 1, 1.0) for name in names]
        assert {other.pid} == live_pids(files)
        other.communicate()
    assert live_pids(files) == set()


def test_deleted_between_check_and_use_is_told_by_the_next_look(final: Path) -> None:
    """A file that vanished after it was proven is missing, no error."""
    expected = expected_of(state_file(final))
    assert inspect(final, expected).verdict is FileVerdict.WHOLE
    final.unlink()
    assert inspect(final, expected).verdict is FileVerdict.MISSING
