"""Keys are the same for the same state and different for every other; names are read back or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.checkpoints.key import (
    FileKind,
    OwnName,
    bad_name,
    checkpoint_key,
    companion_name,
    final_name,
    is_key,
    main_name,
    parse_name,
    temporary_name,
)

KEY = "0123456789abcdef"
texts = st.text(max_size=20) | st.sampled_from(["\ud800", "\udfff", "\0", "?"])
token_lists = st.lists(st.integers(0, 2**31 - 1), max_size=20)


def test_a_key_stays_what_it_was_in_earlier_versions() -> None:
    """The same model and tokens give this key in every version of ours, or users rebuild everything."""
    assert checkpoint_key("model", "lora", "server", [1, 2, 3]) == "5b94f1cc5fb7860e"


@given(texts, texts, texts, token_lists)
def test_a_key_is_16_hex_digits_whatever_the_identity(model: str, lora: str, server_id: str, tokens: list[int]) -> None:
    """Any text, lone surrogates included, and any tokens give a key."""
    assert is_key(checkpoint_key(model, lora, server_id, tokens))


@given(st.tuples(texts, texts, texts, token_lists), st.tuples(texts, texts, texts, token_lists))
def test_keys_differ_when_anything_differs(
    a: tuple[str, str, str, list[int]], b: tuple[str, str, str, list[int]]
) -> None:
    """Two states have the same key only if model, LoRA, server and tokens are all the same."""
    assert (a == b) == (checkpoint_key(*a) == checkpoint_key(*b))


def test_parts_that_run_together_are_told_apart() -> None:
    """Text moved from one part of the identity to the next makes another key."""
    assert checkpoint_key("ab", "c", "", [1]) != checkpoint_key("a", "bc", "", [1])


def test_tuple_and_list_of_the_same_tokens_have_one_key() -> None:
    """The key doesn't depend on how the tokens are held."""
    assert checkpoint_key("m", "", "", [5, 6]) == checkpoint_key("m", "", "", (5, 6))


@given(st.integers(0, 2**31), st.integers(0, 10**9), st.integers(0, 10**11))
def test_our_names_are_read_back(pid: int, serial: int, bad_at: int) -> None:
    """Every name that we make is parsed to what it was made of."""
    assert OwnName(KEY, FileKind.FINAL) == parse_name(final_name(KEY))
    assert OwnName(KEY, FileKind.TEMPORARY, pid=pid, serial=serial) == parse_name(temporary_name(KEY, pid, serial))
    assert OwnName(KEY, FileKind.BAD, bad_at=bad_at) == parse_name(bad_name(KEY, bad_at))


@pytest.mark.parametrize("name", [final_name(KEY), temporary_name(KEY, 7, 1), bad_name(KEY, 99)])
def test_a_companion_is_told_from_its_state_file(name: str) -> None:
    """A companion's name leads back to the name that it belongs to."""
    own = parse_name(companion_name(name))
    assert own is not None
    assert own.is_companion
    assert name == main_name(companion_name(name))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "index.json",
        f"pi-prefix-{KEY}",
        f"pi-prefix-{KEY}.bin2",
        f"pi-prefix-{KEY}.bin\n",
        f"xpi-prefix-{KEY}.bin",
        f"pi-prefix-{KEY.upper()}.bin",
        f"pi-prefix-{KEY}0.bin",
        f"pi-prefix-{KEY[:-1]}.bin",
        f"pi-prefix-{KEY}.bin.tmp-1",
        f"pi-prefix-{KEY}.bin.tmp-01-1",
        f"pi-prefix-{KEY}.bin.tmp--1-1",
        f"pi-prefix-{KEY}.bin.tmp-1-1.bad-3",
        f"pi-prefix-{KEY}.bin.bad-",
        f"pi-prefix-{KEY}.bin.bad-007",
        f"pi-prefix-{KEY}.bin.ckpt.ckpt",
        f"pi-prefix-{KEY}.ckpt",
        f"pi-prefix-{KEY}.bin.bad-\u0663",
        f"sub/pi-prefix-{KEY}.bin",
    ],
)
def test_names_of_others_are_refused(name: str) -> None:
    """A name that we would not have written is never taken for ours."""
    assert parse_name(name) is None
