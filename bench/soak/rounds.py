"""The tests of random use, round after round: a trace, a crowd of fifty clients, a stranger who uses the same server.

Each round has a server of its own, a proxy in this process, and a seed, so that whatever goes wrong can be seen again
with `--only KIND --seed N`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import structlog
from rich.console import Console

from proxy.demo.models import Kind, model_path
from proxy.demo.servers import LlamaServer
from tests.load.crowd import members
from tests.load.crowded import CLIENTS, crowded
from tests.load.disturbed import disturbed
from tests.load.traces import CONTEXT, EXACT, Setting, llama_flags, trace
from tests.serving.running import running

TRACES = 200
MINUTES = 10.0
KINDS: tuple[Kind, ...] = ("dense", "hybrid")
Check = Callable[[int, float], list[str]]


def soak_rounds(console: Console, minutes: float | None, only: str | None, seed: int) -> int:
    """Rounds in turn until the time is up, or each in its full length; returns the exit status."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    failed = 0
    for name, at, seconds in _rounds(minutes, only, seed):
        began = time.monotonic()
        wrong = CHECKS[name](at, seconds)
        console.print(f"{name} {at}: {'FAILED' if wrong else 'fine'} after {time.monotonic() - began:.0f} s")
        for line in wrong:
            console.print(line, markup=False, highlight=False)
        failed += bool(wrong)
    console.print(f"{failed} failed")
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
