"""The head of a state file is read, or told why not; nothing in it is believed beyond its length."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.checkpoints.state_file import MAGIC, Header, NotRead, header_bytes, is_of, read_header
from tests.checkpoints.state_files import STATE, TOKENS, head


def test_tokens_and_version_are_read() -> None:
    """The head says which format and which tokens, whatever follows it."""
    assert Header(4, TOKENS) == read_header(head(version=4) + STATE)


def test_the_older_plain_list_is_read() -> None:
    """Builds before the wrapped list wrote the bare token ids."""
    raw = struct.pack("<3I3i", MAGIC, 1, 3, 7, 8, 9)
    assert Header(1, (7, 8, 9)) == read_header(raw)


@pytest.mark.parametrize("length", [0, 1, 11, 12, 13, 20, len(head()) - 1])
def test_a_head_cut_short_is_told(length: int) -> None:
    """A head that isn't all there is never read as a shorter list."""
    assert NotRead("too_short") == read_header(head()[:length])


def test_another_magic_is_told() -> None:
    """A file of another kind is none."""
    assert NotRead("magic") == read_header(b"GGUF" + head()[4:])


@pytest.mark.parametrize(
    "payload",
    [
        (-1,),
        (-1, 1),
        (-1, 1, 0),
        (-1, 2, 1, 5, 0),  # another form of the list
        (-1, 1, 2, 5, 0),  # says two tokens, holds one
        (-1, 1, 1, 5, 1),  # something behind the tokens: media
        (5, -1, 6),
        (-1, 1, 1, -7, 0),
    ],
)
def test_a_payload_that_is_not_understood_is_told(payload: tuple[int, ...]) -> None:
    """What we can't read we don't vouch for."""
    raw = struct.pack(f"<3I{len(payload)}i", MAGIC, 2, len(payload), *payload)
    assert NotRead("payload") == read_header(raw)


def test_a_huge_count_does_not_ask_for_memory() -> None:
    """A damaged count is told from the length alone."""
    raw = struct.pack("<3I", MAGIC, 2, 2**32 - 1) + bytes(64)
    assert NotRead("too_short") == read_header(raw)
    assert header_bytes(raw) == 12 + 4 * (2**32 - 1)


def test_equal_means_every_token_and_no_more() -> None:
    """A file with one token more, less or other is not the expected one."""
    header = Header(2, (1, 2, 3))
    assert is_of(header, [1, 2, 3])
    assert not any(is_of(header, other) for other in ([1, 2], [1, 2, 3, 4], [1, 2, 4], []))


@given(st.lists(st.integers(0, 2**31 - 1), max_size=50), st.integers(0, 2**32 - 1))
def test_any_tokens_are_read_back(tokens: list[int], version: int) -> None:
    """Every list of tokens survives the layout."""
    assert Header(version, tuple(tokens)) == read_header(head(tokens, version))


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_give_an_answer(raw: bytes, has_magic: bool) -> None:
    """Nothing that can stand in a file makes the reader raise."""
    data = struct.pack("<I", MAGIC) + raw if has_magic else raw
    assert isinstance(read_header(data), Header | NotRead)
