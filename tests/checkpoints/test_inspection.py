"""A file is proven before a server gets it: every way of being wrong has its verdict."""

import dataclasses
import os
import socket
from pathlib import Path

import pytest
import xxhash

from proxy.checkpoints import inspection
from proxy.checkpoints.inspection import Expected, FileVerdict, digest, inspect, read_head, seal_of
from proxy.checkpoints.key import final_name
from proxy.checkpoints.state_file import Header, NotRead
from tests.checkpoints.state_files import KEY, STATE, TOKENS, expected_of, head, state_file
from tests.permissions import permissions_count

WHOLE_BYTES = len(head()) + len(STATE)
PLACES = [0, 1, 4, len(head()) - 1, len(head()) + 7, WHOLE_BYTES // 2, WHOLE_BYTES - 1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return state_file(tmp_path / final_name(KEY))


def _unseal(expected: Expected, path: Path) -> Expected:
    """The same checksum, but a stat that is no longer the file's: everything is read again."""
    assert expected.seal is not None
    return dataclasses.replace(expected, seal=dataclasses.replace(expected.seal, mtime_ns=1))


def test_a_file_as_it_was_saved_is_whole(path: Path) -> None:
    """The right file is proven, and its seal says what was proven."""
    found = inspect(path, expected_of(path))
    assert (FileVerdict.WHOLE, seal_of(path)) == (found.verdict, found.seal)


@pytest.mark.parametrize("length", [*PLACES[:-1], WHOLE_BYTES - 1, WHOLE_BYTES - 16])
def test_a_file_cut_short_is_damaged(path: Path, length: int) -> None:
    """Wherever it is cut, the recorded size tells."""
    expected = expected_of(path)
    os.truncate(path, length)
    assert inspect(path, expected).verdict is FileVerdict.SIZE
    assert FileVerdict.SIZE.is_damage


def test_appended_bytes_are_damage(path: Path) -> None:
    """A server takes a file with more at its end; we don't."""
    expected = expected_of(path)
    path.write_bytes(path.read_bytes() + b"\0")
    assert inspect(path, expected).verdict is FileVerdict.SIZE


@pytest.mark.parametrize("place", PLACES)
def test_one_flipped_byte_is_damage(path: Path, place: int) -> None:
    """One byte anywhere, at the same size, is found."""
    expected = expected_of(path)
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0x40
    path.write_bytes(raw)
    found = inspect(path, _unseal(expected, path)).verdict
    assert found is not FileVerdict.WHOLE
    assert found.is_damage or found is FileVerdict.FORMAT_VERSION


def test_a_change_that_keeps_the_size_is_found_by_the_checksum(path: Path) -> None:
    """A state that is wrong below a right head is told by its bytes."""
    expected = expected_of(path)
    state_file(path, state=STATE[::-1])
    assert inspect(path, _unseal(expected, path)).verdict is FileVerdict.CHECKSUM


def test_another_state_of_the_same_size_put_in_its_place_is_found(path: Path) -> None:
    """A file that was replaced is read again even if its size and time are the same: another inode."""
    expected = expected_of(path)
    other = state_file(path.with_name("other"), state=STATE[::-1])
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    assert inspect(path, expected).verdict is FileVerdict.CHECKSUM


def test_an_unchanged_file_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While size, mtime and inode are as proven, a restore doesn't wait for a digest."""
    expected = expected_of(path)
    monkeypatch.setattr(inspection, "_sealed", None)
    assert inspect(path, expected).verdict is FileVerdict.WHOLE


def test_a_touched_file_with_the_same_bytes_gets_a_new_seal(path: Path) -> None:
    """A copied-back file is whole, and the answer carries the seal to remember."""
    expected = expected_of(path)
    os.utime(path, ns=(5, 5))
    found = inspect(path, expected)
    assert (FileVerdict.WHOLE, seal_of(path)) == (found.verdict, found.seal)


def test_a_file_written_just_now_is_read_again_at_its_next_use(path: Path) -> None:
    """Two writes within one tick of the clock look alike: such a stat is not relied on."""
    path.write_bytes(path.read_bytes())
    expected, written = expected_of(path), path.stat().st_mtime_ns
    path.write_bytes(head() + STATE[::-1])
    os.utime(path, ns=(written, written))
    assert inspect(path, expected).verdict is FileVerdict.CHECKSUM


def test_other_tokens_are_damage(path: Path) -> None:
    """A file that holds another prefix of the same length never stands in for ours."""
    expected = dataclasses.replace(expected_of(path), tokens=(*TOKENS[:-1], 1))
    assert inspect(path, expected).verdict is FileVerdict.TOKENS


def test_another_format_version_is_told_apart_from_damage(path: Path) -> None:
    """After an upgrade of the server the file is no longer its format's, and not broken either."""
    expected = dataclasses.replace(expected_of(path), format_version=4)
    assert inspect(path, expected).verdict is FileVerdict.FORMAT_VERSION
    assert not FileVerdict.FORMAT_VERSION.is_damage


def test_a_model_file_under_our_name_is_damage(path: Path) -> None:
    """Any other kind of file is told by its magic."""
    path.write_bytes(b"GGUF" + path.read_bytes()[4:])
    assert inspect(path, Expected(TOKENS)).verdict is FileVerdict.NOT_A_STATE_FILE


def test_an_empty_file_is_damage(path: Path) -> None:
    """Nothing is not a state, even where no size is known."""
    path.write_bytes(b"")
    assert inspect(path, Expected()).verdict is FileVerdict.NOT_A_STATE_FILE


def test_a_huge_count_in_the_head_does_not_ask_for_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged count is told by the file's size, before anything of that size is read."""
    asked: list[int] = []
    pread = os.pread

    def noted(fd: int, count: int, offset: int) -> bytes:
        asked.append(count)
        return pread(fd, min(count, 1000), offset)

    monkeypatch.setattr(os, "pread", noted)
    path.write_bytes(path.read_bytes()[:8] + b"\xff" * 4 + path.read_bytes()[12:])
    assert inspect(path, Expected()).verdict is FileVerdict.NOT_A_STATE_FILE
    assert max(asked) <= WHOLE_BYTES


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    """What is gone is told as gone."""
    assert inspect(tmp_path / final_name(KEY), Expected()).verdict is FileVerdict.MISSING


def test_a_file_in_a_missing_directory_is_not_known_to_be_gone(tmp_path: Path) -> None:
    """A directory that isn't mounted yet doesn't empty the index."""
    assert inspect(tmp_path / "away" / final_name(KEY), Expected()).verdict is FileVerdict.UNREADABLE


def test_a_symlink_is_not_followed(path: Path) -> None:
    """A link to a good file is not the file."""
    link = path.with_name("link")
    link.symlink_to(path)
    assert inspect(link, expected_of(path)).verdict is FileVerdict.NOT_REGULAR


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    """A directory under our name is told."""
    (tmp_path / final_name(KEY)).mkdir()
    assert inspect(tmp_path / final_name(KEY), Expected()).verdict is FileVerdict.NOT_REGULAR


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    """A FIFO that nobody writes to doesn't hang the restore."""
    os.mkfifo(tmp_path / final_name(KEY))
    assert inspect(tmp_path / final_name(KEY), Expected()).verdict is FileVerdict.NOT_REGULAR


def test_a_socket_is_no_file(tmp_path: Path) -> None:
    """A socket under our name is told."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert inspect(tmp_path / "s", Expected()).verdict is FileVerdict.NOT_REGULAR


def test_a_file_that_cannot_be_read_is_unreadable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read error of the disk is told and not taken for damage."""

    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    assert inspect(path, Expected()).verdict is FileVerdict.UNREADABLE
    assert not FileVerdict.UNREADABLE.is_damage


def test_a_file_without_permission_is_unreadable(path: Path) -> None:
    """A file of another user is told as such, and is no damage."""
    path.chmod(0)
    with permissions_count():
        found = inspect(path, Expected())
    assert (FileVerdict.UNREADABLE, "Permission denied") == (found.verdict, found.detail)


def test_a_file_written_to_while_it_is_read_is_not_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seal is only given for bytes that stood still."""
    sealed = inspection._sealed

    def sealed_while_written(fd: int) -> object:
        seal = sealed(fd)
        path.write_bytes(path.read_bytes() + b"more")
        return seal

    monkeypatch.setattr(inspection, "_sealed", sealed_while_written)
    assert inspect(path, Expected(TOKENS)).verdict is FileVerdict.CHANGED


def test_the_digest_is_xxh3_128_of_all_bytes(tmp_path: Path) -> None:
    """A file larger than one read is digested whole."""
    raw = bytes(range(256)) * 40_000
    (tmp_path / "large").write_bytes(raw)
    assert xxhash.xxh3_128_hexdigest(raw) == digest(tmp_path / "large")


def test_the_head_alone_tells_what_a_file_claims(path: Path, tmp_path: Path) -> None:
    """At a start, before any request, the tokens come from the file itself."""
    assert Header(2, TOKENS) == read_head(path)
    assert NotRead("missing") == read_head(tmp_path / "nothing")
