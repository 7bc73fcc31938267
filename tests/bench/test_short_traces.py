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
