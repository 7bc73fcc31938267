"""What a request and a holding have in common, in tokens."""

from dataclasses import replace

import pytest

from proxy.slots.holding import Holding, Nothing, Unknown, continues_talk, only_prefix, share
from tests.slots.beliefs import PREFIX_TOKENS, bare, need, talk


@pytest.mark.parametrize(
    ("holding", "expected"),
    [
        (Nothing(), 0),
        (Unknown(500), None),
        (bare("P"), PREFIX_TOKENS),
        (bare("Q"), 0),
        (talk("ab"), 220),  # continued: its answer too
        (talk("abc"), 300),  # a retry: all of the prompt
        (talk("abx"), 200),
        (talk("abcd"), 300),
        (talk("xyz"), PREFIX_TOKENS),  # no message alike, the same prefix
        (talk("xyz", "Q"), 0),
        (talk("xyz", ""), 0),
    ],
    ids=repr,
)
def test_shared_tokens(holding: Holding, expected: int | None) -> None:
    """Exact for a prefix and a continuation, in proportion to the messages in between, never below the prefix."""
    assert expected == share(need("abc"), holding)


@pytest.mark.parametrize(("n_tokens", "expected"), [(0, PREFIX_TOKENS), (260, 260)])
def test_one_that_was_cut_off_and_is_repeated_shares_what_is_known_of_it(n_tokens: int, expected: int) -> None:
    """Nobody has counted its prompt: the prefix at least, or as much as the slot was seen to hold."""
    cut_off = replace(talk("abc", is_whole=False), n_prompt=0, n_tokens=n_tokens)
    assert expected == share(need("abc"), cut_off)


def test_two_requests_without_a_prefix_share_none() -> None:
    """No prefix is not a prefix that both have."""
    assert 0 == share(need("abc", ""), talk("xyz", ""))


@pytest.mark.parametrize(
    ("holding", "expected"),
    [
        (talk("ab"), True),
        (talk("abc"), False),
        (talk("abcd"), False),
        (talk("ax"), False),
        (talk(""), False),
        (bare(), False),
        (Nothing(), False),
        (Unknown(), False),
    ],
    ids=repr,
)
def test_what_a_request_continues(holding: Holding, expected: bool) -> None:
    """A conversation whose messages are a proper prefix of the request's."""
    assert expected is continues_talk(need("abc"), holding)


def test_the_prompt_is_at_least_as_long_as_the_prefix_that_it_begins_with() -> None:
    """Tools are no message: a short request with many of them is longer than its text."""
    assert PREFIX_TOKENS == need("").n_tokens
    assert 300 == need("abc").n_tokens


@pytest.mark.parametrize(
    ("key", "n_tokens", "expected"),
    [("P", PREFIX_TOKENS, (PREFIX_TOKENS, PREFIX_TOKENS, 0)), ("H", 200, (200, 200, 0))],
    ids=["prefix", "head"],
)
def test_a_prompt_that_is_a_prefix_only(key: str, n_tokens: int, expected: tuple[int, int, int]) -> None:
    """Its length, and what it shares with its own and with another install's conversation."""
    wanted = replace(need("ab"), head_key="H", head_tokens=200, common=(("Q", 60),))
    bare_need = only_prefix(wanted, key, n_tokens)
    own, other = replace(talk("ax"), head_key="H", head_tokens=200), talk("x", "R")
    assert expected == (bare_need.n_tokens, share(bare_need, own), share(bare_need, other))
    assert 60 == share(bare_need, talk("x", "Q"))
