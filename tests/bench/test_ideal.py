"""The ideal counts each token of each distinct beginning once."""

import random

from hypothesis import given
from hypothesis import strategies as st

from bench.ideal import Ideal, shared

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def test_a_first_prompt_is_needed_whole() -> None:
    """Nothing was computed before it."""
    assert Ideal().asked([1, 2, 3]) == 3


def test_a_shared_beginning_is_needed_once() -> None:
    """The second prompt needs what follows the first divergence."""
    ideal = Ideal()
    ideal.asked([1, 2, 3])
    assert ideal.asked([1, 2, 4, 5]) == 2
    assert ideal.total == 5


def test_what_was_generated_is_computed_but_for_the_last_token() -> None:
    """An answer that is sent back costs one token."""
    ideal = Ideal()
    ideal.asked([1, 2], [3, 4])
    assert ideal.asked([1, 2, 3, 4]) == 1


def test_a_prompt_seen_before_needs_one_token() -> None:
    """There is nothing to sample from otherwise."""
    ideal = Ideal()
    ideal.asked([1, 2])
    assert ideal.asked([1, 2]) == 1


def test_a_restart_leaves_what_could_be_kept() -> None:
    """All but the kept beginning is new again."""
    ideal = Ideal()
    ideal.asked([1, 2, 3, 4])
    ideal.restarted([[1, 2]])
    assert ideal.asked([1, 2, 3, 4]) == 2


@given(tokens, tokens)
def test_shared_is_the_longest_common_beginning(one: list[int], other: list[int]) -> None:
    """What is found in halves is what a loop finds."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    assert one[:count] == shared(one, other)


@given(st.lists(tokens, min_size=1, max_size=6), st.randoms())
def test_the_order_hardly_matters(prompts: list[list[int]], choose: random.Random) -> None:
    """In another order the same prompts need as much, one token a repeated or contained prompt apart."""
    shuffled = choose.sample(prompts, len(prompts))
    totals = []
    for order in (prompts, shuffled):
        ideal = Ideal()
        for prompt in order:
            ideal.asked(prompt)
        totals.append(ideal.total)
    assert len(prompts) > abs(totals[0] - totals[1])
