"""What is soaked: one llama-server behind a door, one proxy process in front of it, both on ports that stay the same.

Owns how they are started and where their files are. The proxy runs as shipped, with `PERSIST=1` and so little room for
checkpoints that clean-up has work.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.soak.door import Door, door
from proxy.demo.models import Kind, model_path
from proxy.demo.processes import free_port
from proxy.demo.proxies import ProxyProcess
from proxy.demo.servers import LlamaServer
from tests.load.traces import CONTEXT, EXACT

KINDS: tuple[Kind, ...] = ("dense", "hybrid")
SLOTS = 4
FLAGS: dict[str, tuple[str, ...]] = {"default flags": (), "a buffer for each": ("-np", str(SLOTS), "--no-kv-unified")}
MOST_GENERATED = 300
"""Where a request does not say: one that says nothing would have its slot until the context is full."""
MAX_GB = 0.012
"""Room for some ten checkpoints of the tiny models."""


@dataclass(frozen=True, slots=True)
class House:
    """The running whole."""

    server: LlamaServer
    door: Door
    proxy: ProxyProcess
    admin_url: str
    slot_dir: Path
    index_dir: Path

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}"


def described(seed: int) -> tuple[Kind, str]:
    """Model and flags that a seed stands for."""
    return KINDS[seed % 2], list(FLAGS)[seed // 2 % 2]


@asynccontextmanager
async def housed(seed: int, home: Path, ask_first: Callable[[LlamaServer], Awaitable[None]]) -> AsyncIterator[House]:
    """Server, door and proxy while the block runs; all end with it. Who wants to ask an undisturbed server is first."""
    kind, flags = described(seed)
    slot_dir, admin_port = home / "slots", free_port()
    slot_dir.mkdir()
    server = LlamaServer(
        model_path(kind), *EXACT, *FLAGS[flags], "-n", str(MOST_GENERATED), "--slot-save-path", str(slot_dir),
        ctx=CONTEXT, log_path=home / "server.log",
    )  # fmt: skip
    await asyncio.to_thread(server.start)
    try:
        await ask_first(server)
        await asyncio.to_thread(server.restart)
        async with door(server.port, random.Random(seed)) as between:
            files = ["--persist", "--slot-dir", str(slot_dir), "--max-gb", str(MAX_GB)]
            proxy = ProxyProcess(
                f"http://127.0.0.1:{between.port}/v1", home, "--admin-port", str(admin_port), *files
            )  # fmt: skip
            await asyncio.to_thread(proxy.__enter__)
            try:
                yield House(server, between, proxy, f"http://127.0.0.1:{admin_port}", slot_dir, home / "index")
            finally:
                await asyncio.to_thread(proxy.stop)
    finally:
        await asyncio.to_thread(server.close)
