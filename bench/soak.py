"""The tests of random use, for as long as you like: `python -m bench.soak --minutes N`.

In turns until the time is up: random traces, a crowd of fifty clients, a stranger who uses the same server. Each has a
seed of its own, so that whatever goes wrong can be seen again with `--only KIND --seed N`. Without `--minutes` each is
run in its full length once: 200 traces, ten minutes of crowd, ten minutes of stranger. Needs the tests' packages.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import structlog
from rich.console import Console

from proxy.demo.models import Kind, model_path
from proxy.demo.servers import LlamaServer, NoServerError, find_server
from tests.load.crowd import members
from tests.load.crowded import CLIENTS, crowded
from tests.load.disturbed import disturbed
from tests.load.traces import CONTEXT, EXACT, Setting, llama_flags, trace
from tests.serving.running import running

TRACES = 200
MINUTES = 10.0
KINDS: tuple[Kind, ...] = ("dense", "hybrid")
Check = Callable[[int, float], list[str]]


def main() -> int:
    """Soak; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, help="all together; by default each in its full length")
    parser.add_argument("--only", choices=tuple(CHECKS), help="this one only")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    wanted = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    tell, failed = Console(), 0
    try:
        find_server()
    except NoServerError as missing:
        tell.print(str(missing), markup=False)
        return 1
    for name, seed, seconds in _rounds(wanted.minutes, wanted.only, wanted.seed):
        began = time.monotonic()
        wrong = CHECKS[name](seed, seconds)
        tell.print(f"{name} {seed}: {'FAILED' if wrong else 'fine'} after {time.monotonic() - began:.0f} s")
        for line in wrong:
            tell.print(line, markup=False, highlight=False)
        failed += bool(wrong)
    tell.print(f"{failed} failed")
    return min(failed, 1)


def _rounds(minutes: float | None, only: str | None, seed: int) -> Iterator[tuple[str, int, float]]:
    """What to run, with which seed and for how many seconds."""
    names = [only] if only else list(CHECKS)
    if minutes is None:
        for name in names:
            lengths = [0.0] * TRACES if name == "trace" else [MINUTES * 60 / len(KINDS)] * len(KINDS)
            yield from ((name, seed + at, seconds) for at, seconds in enumerate(lengths))
        return
    until, at = time.monotonic() + minutes * 60, seed
    while (left_s := until - time.monotonic()) > 0:
        for name in names:
            yield name, at, min(60.0, left_s / len(names))
        at += 1


def _trace(seed: int, _: float) -> list[str]:
    setting = Setting(seed)
    played = _on_server(
        setting.kind, lambda home: llama_flags(setting, home), lambda server, home: trace(server, setting, home)
    )
    return [str(played)] if played.complaints else []


def _crowd(seed: int, seconds: float) -> list[str]:
    async def check(server: LlamaServer, home: Path) -> list[str]:
        async with running(server, **_persistent(home)) as proxied:
            return await crowded(proxied, server, members(CLIENTS, seed), seconds)

    return list(_on_server(KINDS[seed % 2], lambda home: ("--slot-save-path", str(home)), check))


def _stranger(seed: int, seconds: float) -> list[str]:
    async def check(server: LlamaServer, home: Path) -> list[str]:
        return await disturbed(server, seconds, seed, **_persistent(home))

    return list(_on_server(KINDS[seed % 2], lambda home: (*EXACT, "--slot-save-path", str(home)), check))


def _persistent(home: Path) -> dict[str, Any]:
    return {"persist": True, "slot_dir": home, "dir": home / "index"}


def _on_server(kind: Kind, flags: Callable[[Path], tuple[str, ...]], check: Callable[..., Any]) -> Any:
    """Run a check on a server of its own; an error is what went wrong, too."""
    with TemporaryDirectory(prefix="pi-prefix-cache-soak-") as made:
        home = Path(made)
        with LlamaServer(model_path(kind), *flags(home), ctx=CONTEXT) as server:
            return asyncio.run(check(server, home))


CHECKS: dict[str, Check] = {"trace": _trace, "crowd": _crowd, "stranger": _stranger}

if __name__ == "__main__":
    sys.exit(main())
