"""The index's bytes are read for what they are, and never raise."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.checkpoints.index_file import SCHEMA, IndexRead, IndexState, read_index, write_index
from tests.checkpoints.state_files import KEY, OTHER_KEY, checkpoint
from tests.checkpoints.test_record import checkpoints, json_values

RECORDS = (checkpoint(KEY), checkpoint(OTHER_KEY, fingerprints=("f1", "f2"), logprobs=((3, -0.5),)))
RAW = write_index(RECORDS)


@given(st.lists(checkpoints, max_size=5, unique_by=lambda record: record.key))
def test_all_records_are_read_back(records: list[object]) -> None:
    """Writing and reading an index loses nothing."""
    assert IndexRead(IndexState.GOOD, tuple(records)) == read_index(write_index(records))  # type: ignore[arg-type]


def test_truncated_at_any_byte_it_is_corrupt() -> None:
    """A part of an index is never taken for an index, nor for another program's."""
    found = {read_index(RAW[:length]).state for length in range(len(RAW.rstrip()))}
    assert found == {IndexState.CORRUPT}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"null",
        b"3",
        b'"text"',
        b"\xff\xfe",
        b"\0" * 100,
        b'{"schema":true,"checkpoints":{}}',
        b'{"schema":"1","checkpoints":{}}',
        b'{"schema":0,"checkpoints":{}}',
        b'{"schema":1.0,"checkpoints":{}}',
        b'{"schema":null}',
        b'{"schema":1}',
        b'{"schema":1,"checkpoints":[]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_index_is_corrupt(raw: bytes) -> None:
    """Wrong types, wrong encodings and wrong nesting are told as corrupt, an empty file too."""
    found = read_index(raw)
    assert found.state is IndexState.CORRUPT
    assert found.reason


def test_an_index_from_the_future_is_told() -> None:
    """A newer schema is neither read nor called corrupt."""
    assert read_index(b'{"schema":%d,"whatever":[]}' % (SCHEMA + 1)).state is IndexState.NEWER
    assert read_index(b'{"schema":999,"checkpoints":{}}').state is IndexState.NEWER


@pytest.mark.parametrize("raw", [b'{"version":2,"entries":{}}', b'{"16ba1104":{"file":"pi-prefix-1.bin"}}'])
def test_the_index_of_the_extension_is_told(raw: bytes) -> None:
    """An object without our schema is another program's."""
    assert read_index(raw).state is IndexState.FOREIGN


def test_an_entry_that_does_not_fit_is_dropped_and_the_others_stay() -> None:
    """One bad entry costs that entry and the trust, not the rest."""
    document = orjson.loads(RAW)
    document["checkpoints"][KEY]["n_tokens"] = "many"
    found = read_index(orjson.dumps(document))
    assert (IndexState.CORRUPT, RECORDS[1:]) == (found.state, found.records)
    assert [misfit.key for misfit in found.misfits] == [KEY]


def test_one_checkpoint_stands_on_one_line() -> None:
    """The file can be read by a person."""
    assert len(RAW.splitlines()) == 2 + len(RECORDS)


@given(st.binary(max_size=100) | json_values.map(lambda value: repr(value).encode()))
def test_any_bytes_give_an_answer(raw: bytes) -> None:
    """Nothing that can stand in a file makes the reader raise."""
    assert isinstance(read_index(raw), IndexRead)


@given(st.dictionaries(st.sampled_from(["schema", "checkpoints", KEY]), st.just(1) | json_values, max_size=3))
def test_any_object_gives_an_answer(document: dict[str, object]) -> None:
    """No well-formed object makes the reader raise either."""
    try:
        raw = orjson.dumps(document)
    except TypeError:
        return
    assert isinstance(read_index(raw), IndexRead)
