"""A llama-server that saves its slots, and a proxy that keeps checkpoints there."""

import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from proxy.checkpoints.index_file import IndexRead, IndexState, read_index
from proxy.checkpoints.key import FileKind, final_name, parse_name
from proxy.demo.models import Kind
from proxy.demo.servers import LlamaServer
from proxy.llama.client import LlamaClient
from proxy.llama.replies import SlotFile
from tests.conftest import StartLlama
from tests.serving.running import Answer, Running, running, sessions, telling

EXACT = ("-fa", "off")
"""Without flash attention a CPU's log-probabilities don't depend on how a prompt was cut into batches."""
QUIET = 5e-4
TOKENS = 600
"""Of the system text; the tools add some 850."""


class Setup(NamedTuple):
    """A kind of model and how its server is started."""

    kind: Kind
    flags: tuple[str, ...] = ()
    tools_last: bool = False


DENSE = Setup("dense")
HYBRID = Setup("hybrid")
HYBRID_TOOLS_LAST = Setup("hybrid", tools_last=True)
SWA_FULL = Setup("swa", ("--swa-full",))
SWA = Setup("swa")
setups = pytest.mark.parametrize(
    "setup",
    [DENSE, HYBRID, HYBRID_TOOLS_LAST, SWA_FULL],
    ids=["dense", "hybrid", "hybrid-tools-last", "swa-full"],
)
both = pytest.mark.parametrize("setup", [DENSE, HYBRID], ids=["dense", "hybrid"])
slot_flags = pytest.mark.parametrize("slots", [("-np", "1"), ()], ids=["one-slot", "default-flags"])


@dataclass(slots=True)
class Place:
    """Where a test's files are."""

    home: Path
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.slots.mkdir(parents=True, exist_ok=True)

    @property
    def slots(self) -> Path:
        """The server's directory."""
        return self.home / "slots"

    @property
    def index(self) -> Path:
        """The proxy's directory."""
        return self.home / "index"

    def start(self, start: StartLlama, setup: Setup = DENSE, *flags: str, **traits: Any) -> LlamaServer:
        """A server that saves its slots here."""
        more = {"tools_last": True} if setup.tools_last else {}
        return start(setup.kind, *setup.flags, *flags, "--slot-save-path", str(self.slots), **more, **traits)

    def proxy(self, server: LlamaServer | str, **settings: Any) -> AbstractAsyncContextManager[Running]:
        """A proxy that keeps its checkpoints here."""
        told = {"persist": True, "slot_dir": self.slots, "dir": self.index, **settings}
        return running(server, **told)

    def files(self, *kinds: FileKind) -> list[Path]:
        """Files of ours in the slot directory, of these kinds (default: checkpoints)."""
        wanted = kinds or (FileKind.FINAL,)
        named = [(path, parse_name(path.name)) for path in sorted(self.slots.iterdir())]
        return [path for path, own in named if own is not None and own.kind in wanted]

    @property
    def checkpoint(self) -> Path:
        """The one checkpoint that there is."""
        (path,) = self.files()
        return path

    def known(self) -> IndexRead:
        """What the index on disk says."""
        if not (self.index / "index.json").exists():
            return IndexRead(IndexState.GOOD)
        return read_index((self.index / "index.json").read_bytes())

    def is_clean(self) -> bool:
        """No fragment, no mark, and each file of the index is there."""
        names = [path.name for path in self.files()]
        marks = list(self.index.glob("restoring-*"))
        known = [final_name(record.key) for record in self.known().records]
        return not self.files(FileKind.TEMPORARY) and not marks and set(known) <= set(names)


def crash(server: LlamaServer, *flags: str, under: Running | None = None) -> None:
    """kill -9, and start again on the same port; loading a model of normal size takes longer than a moment."""
    server.kill()
    server.start(*flags)
    if under is not None:
        under.proxy.engine.model.last_answer = -math.inf


class Calls:
    """How often the proxy called the server to save and to restore."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.saves = self.restores = 0
        save, restore = LlamaClient.save, LlamaClient.restore

        async def counted_save(*args: Any) -> SlotFile:
            self.saves += 1
            return await save(*args)

        async def counted_restore(*args: Any) -> SlotFile:
            self.restores += 1
            return await restore(*args)

        patch.setattr(LlamaClient, "save", counted_save)
        patch.setattr(LlamaClient, "restore", counted_restore)

    def __eq__(self, other: object) -> bool:
        return (self.saves, self.restores) == other

    def __repr__(self) -> str:
        return f"{self.saves} saves, {self.restores} restores"

    __hash__ = None  # type: ignore[assignment]


async def saved(place: Place, server: LlamaServer, tokens: int = TOKENS) -> Path:
    """Have a proxy make one checkpoint, and end it."""
    async with place.proxy(server) as proxied:
        await proxied.ask(sessions("/first", tokens=tokens)[0])
    return min(place.files(), key=lambda path: path.stat().st_size)


def told(folder: str, **traits: Any) -> dict[str, Any]:
    """A session's first request that is answered with log-probabilities."""
    (body,) = sessions(folder, **({"tokens": TOKENS} | traits))
    return telling(body)


def served(answer: Answer) -> tuple[int, int]:
    return answer.status, len(answer.logprobs)


def reasons(proxied: Running, wanted: Sequence[str]) -> list[str]:
    """Those of the troubles that begin with one of these words."""
    return [trouble for trouble in proxied.heard.troubles if trouble.startswith(tuple(wanted))]
