"""A random day on a real server, directly and through the proxy."""

from bench.corpus import SMALL, Day, random_trace
from bench.prefill import config
from bench.runs import Outcome, run
from proxy.demo.servers import ServerBinary

PER_PREFIX, PER_RESUME = 8, 24


def compare(day: Day, llama_binary: ServerBinary) -> None:
    """Never more tokens than directly, with and without checkpoints, beyond what each prefix and resume may cost."""
    # Of the smaller window cache no file is ever reused: the proxy does the same with and without.
    ways = ("PERSIST=0",) if day.model == "swa" else ("PERSIST=0", "PERSIST=1")
    direct, *proxied = (
        run(f"seed {day.seed}", random_trace(day.seed), SMALL, config(day.model, day.flags), way, llama_binary)
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
