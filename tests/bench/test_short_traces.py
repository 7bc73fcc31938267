"""Whole conversations on a real server through the real proxy: no token is prefilled twice."""

import pytest

from bench.prefill import config
from bench.runs import run
from bench.traces import SHORT, TRACES
from proxy.demo.servers import ServerBinary

NEEDED = 0.98
# Sub-agents at once in four slots: whether the bound is met depends on when one ends and another begins, and so on what
# else the machine does.
CASES = [
    pytest.param(trace, kind, flags, marks=[pytest.mark.long] if (trace, flags) == ("c", "default") else [])
    for trace in "acd"
    for kind in ("dense", "hybrid")
    for flags in ("one", "default")
]


@pytest.mark.parametrize(("trace", "kind", "flags"), CASES)
def test_hardly_any_token_is_prefilled_twice(trace: str, kind: str, flags: str, llama_binary: ServerBinary) -> None:
    """With checkpoints at least 98 % of what is prefilled had never been prefilled before."""
    outcome = run(trace, TRACES[trace], SHORT, config(kind, flags), "PERSIST=1", llama_binary)
    told = "\n".join(map(str, outcome.requests))
    assert outcome.lost == 0, told
    assert outcome.efficiency >= NEEDED, f"{outcome.efficiency:.3f}: {outcome.excess} tokens too many\n{told}"


SELDOM = 0.95
KINDS = ("dense", "hybrid", "hybrid-last", "swa-full", "swa")


@pytest.mark.long
@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", ["one", "default"])
def test_what_is_promised_of_all_of_them(trace: str, kind: str, flags: str, llama_binary: ServerBinary) -> None:
    """A bound for each, and where there is none because the server can't go back: never more than directly."""
    outcome = run(trace, TRACES[trace], SHORT, config(kind, flags), "PERSIST=1", llama_binary)
    told = "\n".join(map(str, outcome.requests))
    assert outcome.lost == 0, told
    assert outcome.efficiency >= _promised(trace, kind), f"{outcome.efficiency:.3f}: {outcome.excess} too many\n{told}"
    if not _promised(trace, kind):
        directly = run(trace, TRACES[trace], SHORT, config(kind, flags), "direct", llama_binary)
        assert outcome.excess <= directly.excess + 8 * outcome.n_prefixes + 24 * outcome.n_resumes, told


def _promised(trace: str, kind: str) -> float:
    if kind == "swa" or (trace in "fg" and kind.startswith("hybrid")):
        return 0.0
    return NEEDED if trace in "abcd" and kind != "swa-full" else SELDOM
