"""A record is written and read back unchanged; an entry that doesn't fit is told, not guessed at."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.checkpoints.record import MAX_FINGERPRINTS, Checkpoint, Misfit, Seal, from_json, to_json
from tests.checkpoints.state_files import KEY, checkpoint

counts = st.integers(0, 2**63 - 1)
texts = st.text(max_size=30)
numbers = st.floats(allow_nan=False, allow_infinity=False)
keys = st.text("0123456789abcdef", min_size=16, max_size=16)
seals = st.none() | st.builds(Seal, counts, texts, counts, st.integers(-(2**63), 2**63 - 1))
checkpoints = st.builds(
    Checkpoint,
    key=keys,
    model_id=texts,
    model=texts,
    lora=texts,
    server_id=texts,
    n_tokens=counts,
    size_bytes=counts,
    created_at=numbers,
    last_used_at=numbers,
    fingerprints=st.lists(texts, max_size=MAX_FINGERPRINTS, unique=True).map(tuple),
    seal=seals,
    companion=seals,
    format_version=counts,
    build=texts,
    uses=counts,
    strikes=counts,
    verdict=texts,
    logprobs=st.lists(st.tuples(st.integers(0, 2**31), numbers), max_size=10).map(tuple),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(checkpoints)
def test_a_record_is_read_back_as_it_was_written(record: Checkpoint) -> None:
    """Writing and reading a record loses nothing."""
    assert record == from_json(record.key, orjson.loads(to_json(record)))


def test_every_field_of_a_record_is_written() -> None:
    """No field can be forgotten in the round trip."""
    assert set(Checkpoint.__dataclass_fields__) == set(orjson.loads(to_json(checkpoint())))


@given(checkpoints, st.sampled_from(sorted(Checkpoint.__dataclass_fields__)), json_values)
def test_a_field_of_any_other_type_never_raises(record: Checkpoint, field: str, value: Any) -> None:
    """An entry with a field replaced by anything is either a record or a misfit with a reason."""
    entry = orjson.loads(to_json(record)) | {field: value}
    read = from_json(record.key, entry)
    assert isinstance(read, Checkpoint) or read.reason.startswith((field, "size_bytes", "checksum", "inode"))


@pytest.mark.parametrize("field", sorted(set(Checkpoint.__dataclass_fields__) - {"seal", "companion"}))
def test_an_entry_without_a_field_does_not_fit(field: str) -> None:
    """What is missing is not made up, and the reason names it."""
    entry = orjson.loads(to_json(checkpoint()))
    del entry[field]
    read = from_json(KEY, entry)
    assert isinstance(read, Misfit)
    assert read.reason.startswith(field)


@pytest.mark.parametrize("entry", [None, [], "text", 3, True])
def test_an_entry_that_is_no_object_does_not_fit(entry: object) -> None:
    """Anything but an object is a misfit."""
    assert Misfit(KEY, "not an object") == from_json(KEY, entry)


@pytest.mark.parametrize("key", ["", "../../etc/passwd", KEY.upper(), KEY + "0"])
def test_an_entry_under_a_key_that_is_none_does_not_fit(key: str) -> None:
    """A key from the file never becomes a file name unless it is one of ours."""
    assert isinstance(from_json(key, orjson.loads(to_json(checkpoint(key)))), Misfit)


@pytest.mark.parametrize("field", ["n_tokens", "size_bytes", "uses", "created_at", "logprobs"])
@pytest.mark.parametrize("value", [True, -1.5, "1", None, [[1, True]], [[True, 1.0]], [[1]], float("1e400")])
def test_numbers_of_the_wrong_kind_do_not_fit(field: str, value: object) -> None:
    """A truth value, a text, an infinity or a fraction is no count, a truth value no time."""
    entry = orjson.loads(to_json(checkpoint())) | {field: value}
    if (field, value) != ("created_at", -1.5):
        assert isinstance(from_json(KEY, entry), Misfit)


def test_an_entry_kept_under_the_key_of_another_does_not_fit() -> None:
    """A record is only believed under its own key."""
    assert isinstance(from_json("0" * 16, orjson.loads(to_json(checkpoint()))), Misfit)


def test_a_name_that_is_no_unicode_can_be_written() -> None:
    """A model id with a lone surrogate, as JSON may carry it, doesn't stop the index."""
    read = from_json(KEY, orjson.loads(to_json(checkpoint(model_id="a\ud800b"))))
    assert isinstance(read, Checkpoint)
    assert read.model_id == "a?b"


def test_fingerprints_stay_bounded_and_the_newest_is_kept() -> None:
    """However many fingerprints point at a checkpoint, the record doesn't grow and knows the last one."""
    record = checkpoint()
    for number in range(MAX_FINGERPRINTS + 5):
        record = record.pointed_at(f"f{number}")
    assert len(record.fingerprints) == MAX_FINGERPRINTS
    assert record.fingerprints[-1] == f"f{MAX_FINGERPRINTS + 4}"
    assert record == record.pointed_at("f10")


def test_strikes_are_counted_until_the_server_proves_the_checkpoint() -> None:
    """A failed verification counts, a good one wipes the slate."""
    assert checkpoint().struck("logprobs").struck("reuse").strikes == 2
    assert checkpoint().struck("logprobs").verified("good").strikes == 0


def test_a_use_is_counted_and_dated() -> None:
    """Every use moves the checkpoint to the front of what is kept."""
    used = checkpoint().used(5_000.0)
    assert (used.last_used_at, used.uses) == (5_000.0, 1)
