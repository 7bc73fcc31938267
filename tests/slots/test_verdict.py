"""Whether a claim came true."""

import pytest

from proxy.slots.plan import Plan, Source, nothing
from proxy.slots.verdict import judge


@pytest.mark.parametrize(("cache_n", "is_kept"), [(1000, True), (900, True), (899, False), (0, False), (None, True)])
def test_a_claim_is_kept_from_nine_tenths_on(cache_n: int | None, is_kept: bool) -> None:
    """An answer that says nothing about reuse disproves nothing."""
    assert is_kept is judge(Plan(Source.HIT, "", (), 1000), cache_n).is_kept


@pytest.mark.parametrize("source", [source for source in Source if source is not Source.NONE])
def test_a_failed_claim_says_which_fact_is_likely_broken(source: Source) -> None:
    """Each way of being warm has its own likely reason."""
    reasons = {judge(Plan(other, "", (), 100), 0).reason for other in Source if other is not source}
    assert judge(Plan(source, "", (), 100), 0).reason not in {"", "not known", *reasons}


def test_a_kept_claim_needs_no_reason() -> None:
    assert "" == judge(Plan(Source.HIT, "", (), 100), 100).reason


@pytest.mark.parametrize("cache_n", [0, None, 5])
def test_who_claims_nothing_is_never_wrong(cache_n: int | None) -> None:
    assert judge(nothing("may_be_hot"), cache_n).is_kept
