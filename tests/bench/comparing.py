"""A random day on a real server, directly and through the proxy."""

from collections.abc import Callable

import pytest

from bench.corpus import CORPUS, SMALL, Day
from bench.prefill import config
from bench.runs import Outcome, run
from proxy.demo.servers import ServerBinary

PER_PREFIX, PER_RESUME = 8, 24


def days(are_wanted: Callable[[Day], bool]) -> list[object]:
    """Those of the corpus, as parameters of a test."""
    wanted = [day for day in CORPUS if are_wanted(day)]
    return [pytest.param(day, id=str(day), marks=[pytest.mark.long] if day.is_long else []) for day in wanted]


def compare(day: Day, llama_binary: ServerBinary) -> None:
    """Never more tokens than directly, with and without checkpoints, beyond what each prefix and resume may cost."""
    # Of the smaller window cache no file is ever reused: where that was tried, the proxy does the same without.
    ways = ("PERSIST=0",) if day.model == "swa" and not day.is_used else ("PERSIST=0", "PERSIST=1")
    direct, *proxied = (
        run(str(day), day.trace, SMALL, config(day.model, day.flags), way, llama_binary, is_used=day.is_used)
        for way in ("direct", *ways)
    )
    for outcome in proxied:
        allowed = PER_PREFIX * outcome.n_prefixes + PER_RESUME * outcome.n_resumes
        assert outcome.lost == 0
        assert direct.excess + allowed >= outcome.excess, _told(direct, outcome)


def _told(direct: Outcome, proxied: Outcome) -> str:
    lines = [f"{proxied.way}: {proxied.excess} tokens beyond need, directly {direct.excess}"]
    lines += [f"{before}\n    {after}" for before, after in zip(direct.requests, proxied.requests, strict=True)]
    return "\n".join(lines)
