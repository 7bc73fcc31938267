"""An index that is corrupt, from the future or of somebody else costs nothing that it can't vouch for."""

from pathlib import Path

import pytest

from proxy.checkpoints.index import EXTENSION_NAME, INDEX_NAME, LOCK_NAME, Index
from proxy.checkpoints.index_file import write_index
from tests.checkpoints.index_directory import NOW, names
from tests.checkpoints.state_files import KEY, OTHER_KEY, checkpoint

ASIDE = f"{INDEX_NAME}.corrupt-{int(NOW)}"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"{}", b"\0\0", b'{"schema":1,"checkpoints":3}'])
def test_a_corrupt_index_is_kept_aside_and_not_trusted(directory: Path, raw: bytes) -> None:
    """Nothing is deleted on the word of a file that lies, and the file isn't lost."""
    directory.mkdir(parents=True)
    (directory / INDEX_NAME).write_bytes(raw)
    index = Index.open(directory, NOW)
    assert (index.is_trusted, index.is_owner, dict(index.records), len(index.notes)) == (False, True, {}, 1)
    assert (directory / ASIDE).read_bytes() == raw
    index.close()


def test_truncated_at_any_byte_nothing_raises_and_no_byte_is_lost(directory: Path) -> None:
    """Wherever a write of somebody else's ended, the start goes well and the file is kept."""
    raw = write_index([checkpoint(KEY), checkpoint(OTHER_KEY)]).rstrip()
    directory.mkdir(parents=True)
    for length in range(len(raw)):
        (directory / INDEX_NAME).write_bytes(raw[:length])
        index = Index.open(directory, NOW + length)
        assert not index.is_trusted
        assert (directory / f"{INDEX_NAME}.corrupt-{int(NOW) + length}").read_bytes() == raw[:length]
        index.close()


def test_the_start_after_a_corrupt_one_is_clean(directory: Path) -> None:
    """One bad file switches clean-up off for one run."""
    directory.mkdir(parents=True)
    (directory / INDEX_NAME).write_bytes(b"{")
    Index.open(directory, NOW).close()
    index = Index.open(directory, NOW + 1)
    assert (index.is_trusted, index.notes) == (True, [])
    index.close()


def test_two_corrupt_files_in_one_second_are_both_kept(directory: Path) -> None:
    """What is kept aside is never overwritten."""
    directory.mkdir(parents=True)
    for raw in (b"first", b"second"):
        (directory / INDEX_NAME).write_bytes(raw)
        Index.open(directory, NOW).close()
    assert {b"first", b"second"} == {path.read_bytes() for path in directory.glob(f"{INDEX_NAME}.corrupt-*")}


def test_entries_that_fit_are_used_beside_one_that_does_not(written: Path) -> None:
    """One bad entry costs the trust and that entry; the rest is written again."""
    path = written / INDEX_NAME
    path.write_bytes(path.read_bytes().replace(b'"n_tokens":64', b'"n_tokens":-1', 1))
    index = Index.open(written, NOW)
    assert (index.is_trusted, len(index.records), index.is_dirty) == (False, 1, True)
    index.close()
    again = Index.open(written, NOW + 1)
    assert (again.is_trusted, len(again.records)) == (True, 1)
    again.close()


def test_an_index_from_the_future_is_not_touched(directory: Path) -> None:
    """A newer version's index is neither renamed nor written, whatever we learn."""
    directory.mkdir(parents=True)
    raw = b'{"schema":999,"checkpoints":{}}'
    (directory / INDEX_NAME).write_bytes(raw)
    index = Index.open(directory, NOW)
    index.put(checkpoint())
    assert (index.is_trusted, index.is_owner, index.flush()) == (False, False, None)
    index.close()
    assert {INDEX_NAME, LOCK_NAME} == names(directory)
    assert (directory / INDEX_NAME).read_bytes() == raw


def test_the_index_of_the_extension_is_kept_aside(directory: Path) -> None:
    """Who comes from the extension loses nothing and starts empty, clean-up allowed."""
    directory.mkdir(parents=True)
    (directory / INDEX_NAME).write_bytes(b'{"version":2,"entries":{"16ba":{}}}')
    index = Index.open(directory, NOW)
    assert (index.is_trusted, index.is_owner, dict(index.records)) == (True, True, {})
    assert (directory / EXTENSION_NAME).read_bytes() == b'{"version":2,"entries":{"16ba":{}}}'
    index.close()


def test_a_second_proxy_leaves_a_corrupt_index_where_it_is(directory: Path) -> None:
    """Keeping aside is the owner's business."""
    first = Index.open(directory, NOW)
    (directory / INDEX_NAME).write_bytes(b"{")
    second = Index.open(directory, NOW)
    assert not second.is_trusted
    assert {INDEX_NAME, LOCK_NAME} == names(directory)
    second.close()
    first.close()


def test_a_directory_that_cannot_be_made_leaves_an_index_in_memory(tmp_path: Path) -> None:
    """Without a place on disk there is an index for this run, and it is said."""
    (tmp_path / "file").write_bytes(b"")
    index = Index.open(tmp_path / "file" / "index", NOW)
    index.put(checkpoint())
    assert (index.is_owner, len(index.notes), index.flush()) == (False, 2, None)
    assert index.get(KEY) is not None
    index.close()


def test_an_index_that_cannot_be_read_is_not_trusted_and_not_overwritten(directory: Path) -> None:
    """What we couldn't read we don't replace."""
    (directory / INDEX_NAME).mkdir(parents=True)
    index = Index.open(directory, NOW)
    index.put(checkpoint())
    assert (index.is_trusted, index.is_owner, index.flush()) == (False, False, None)
    index.close()
    assert (directory / INDEX_NAME).is_dir()
