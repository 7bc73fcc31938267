"""The ways to a server that are compared: directly, through this proxy, through another one.

Owns: how each is started in front of a running llama-server and what its log tells. Everything ends with the block.
"""

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from proxy.demo.processes import end, free_port, spawn
from proxy.demo.proxies import ProxyProcess
from proxy.demo.servers import LlamaServer

HEARTH = Path("~/.cache/pi-prefix-cache-dev/hearth/bin/hearth")
START_S = 30.0

WAYS = ("direct", "PERSIST=0", "PERSIST=1", "hearth")


class NotHereError(RuntimeError):
    """This way can't be gone here; the message says why."""


@dataclass(frozen=True, slots=True)
class Served:
    """Where clients ask, and what was logged of them so far."""

    base_url: str
    log: Callable[[], list[dict[str, Any]]] = field(default=list)


@contextmanager
def served(way: str, server: LlamaServer, home: Path, slots: Path, *flags: str) -> Iterator[Served]:
    """Go this way to a running server; `flags` are for our proxy."""
    if way == "direct":
        yield Served(server.base_url)
    elif way == "hearth":
        with _hearth(server, home, slots) as base_url:
            yield Served(base_url)
    else:
        persist = ("--persist", "1", "--slot-dir", str(slots)) if way == "PERSIST=1" else ()
        with ProxyProcess(server.base_url, home, *persist, *flags) as proxy:
            yield Served(proxy.base_url, lambda: _lines(proxy.log_path))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines() if line.startswith(b"{")]


def hearth_program() -> Path:
    """The other proxy, from its own virtual environment, or wherever HEARTH says."""
    program = Path(os.environ.get("HEARTH") or shutil.which("hearth") or HEARTH).expanduser()
    if not program.is_file():
        raise NotHereError(
            f"hearth-llm isn't installed: python3 -m venv {HEARTH.parents[1]} && "
            f"{HEARTH.parents[1]}/bin/pip install hearth-llm==0.1.1"
        )
    return program


@contextmanager
def _hearth(server: LlamaServer, home: Path, slots: Path) -> Iterator[str]:
    port, log = free_port(), home / "hearth.log"
    where = ["--upstream", server.url, "--port", str(port), "--cache-dir", str(slots)]
    process = spawn([str(hearth_program()), "serve", *where], log, dict(os.environ))
    try:
        deadline = time.monotonic() + START_S
        while not _accepts(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise NotHereError(f"hearth didn't start: {log.read_text(errors='replace')[-400:]}")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        end(process)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
