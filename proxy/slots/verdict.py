"""Whether what was claimed of a request came true, judged from the figures in its own answer."""

from dataclasses import dataclass

from proxy.slots.plan import Plan, Source

GOOD_SHARE = 0.9
"""Reuse below this part of what was claimed is a failed claim."""

_LIKELY = {
    Source.HIT: "somebody else used the slot, or this model can't go back inside a slot "
    "(a sliding window needs --swa-full on the server, a hybrid model in-memory checkpoints)",
    Source.RESTORE: "the restored state is not usable here (a sliding window needs --swa-full on the server)",
    Source.WARM_UP: "the prefilled tokens are not what this request begins with, or another slot was chosen",
    Source.RESUME: "the conversation was no longer in the server's host memory (--cache-ram too small or 0)",
    Source.CONTINUE: "the slot no longer holds this conversation",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a claim."""

    is_kept: bool
    reason: str = ""


def judge(plan: Plan, cache_n: int | None) -> Verdict:
    """Compare the claim with the reused tokens; no claim and no figures are fine."""
    if plan.expected_cache_n <= 0 or cache_n is None:
        return Verdict(is_kept=True)
    if cache_n >= GOOD_SHARE * plan.expected_cache_n:
        return Verdict(is_kept=True)
    return Verdict(is_kept=False, reason=_LIKELY.get(plan.source, "not known"))
