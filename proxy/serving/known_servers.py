"""What was found out about a server process, kept for the proxy that starts after this one.

A probe needs empty slots. A proxy that is restarted while conversations are in its server's slots could not ask again,
so it takes up what the one before it has found: of the same process, which has the same flags for life, and of that
alone. Kept in `DIR`, the latest few; where that can't be written the next proxy goes without. Synchronous; call it in a
thread. Counterparts: `llama.probe` finds it out, `acquaintance` says when.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from proxy.checkpoints.private_file import write_privately
from proxy.llama.identity import Process
from proxy.slots.capabilities import Capabilities

NAME = "servers.json"
MOST_SERVERS = 16
"""A router has one for each of its models."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a probe has found."""

    able: Capabilities
    prompt_ms_per_token: float
    slot_dir: str = ""
    """Where the files were seen whose version is among it."""

    def seen_from(self, slot_dir: str) -> "Found":
        """For a proxy that has this slot directory: of another one nothing is proven."""
        return self if slot_dir == self.slot_dir else replace(self, able=replace(self.able, format_version=None))


_FILE = TypeAdapter(dict[str, Found])


def keep(directory: Path, process: Process, found: Found) -> None:
    """Keep what was found, unless it is nothing, or nobody could tell this process from another one."""
    if not process.has_own_marker or found.able.rolls_back is None:
        return
    known = {marker: one for marker, one in _read(directory).items() if marker != process.marker}
    latest = [*known.items(), (process.marker, found)][-MOST_SERVERS:]
    with suppress(OSError):
        _write(directory, _FILE.dump_json(dict(latest)))


def recall(directory: Path, process: Process) -> Found | None:
    """What was found out about this very process."""
    return _read(directory).get(process.marker) if process.has_own_marker else None


def _read(directory: Path) -> dict[str, Found]:
    try:
        return _FILE.validate_json((directory / NAME).read_bytes())
    except (OSError, ValidationError):
        return {}


def _write(directory: Path, raw: bytes) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_privately(directory / NAME, raw, directory / f"{NAME}.{os.getpid()}.tmp")
