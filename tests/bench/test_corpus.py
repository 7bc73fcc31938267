"""Random days on a real server: the proxy never makes it prefill more than it would have without."""

import pytest

from bench.corpus import CORPUS, SMALL, Day, random_trace
from bench.prefill import config
from bench.runs import Outcome, run
from proxy.demo.servers import ServerBinary

PER_PREFIX, PER_RESUME = 8, 24


@pytest.mark.parametrize("day", CORPUS, ids=str)
def test_never_more_than_directly(day: Day, llama_binary: ServerBinary) -> None:
    """Beyond 8 tokens a new prefix and 24 a resume, with and without checkpoints."""
    direct, *proxied = (
        run(f"seed {day.seed}", random_trace(day.seed), SMALL, config(day.model, day.flags), way, llama_binary)
        for way in ("direct", "PERSIST=0", "PERSIST=1")
    )
    for outcome in proxied:
        allowed = PER_PREFIX * outcome.n_prefixes + PER_RESUME * outcome.n_resumes
        assert outcome.lost == 0
        assert direct.excess + allowed >= outcome.excess, _told(direct, outcome)


def _told(direct: Outcome, proxied: Outcome) -> str:
    lines = [f"{proxied.way}: {proxied.excess} tokens beyond need, directly {direct.excess}"]
    lines += [f"{before}\n    {after}" for before, after in zip(direct.requests, proxied.requests, strict=True)]
    return "\n".join(lines)
