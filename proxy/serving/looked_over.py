"""What a doctor leaves for the proxy that starts after it: this server process was used by nobody else.

The doctor tries things in an idle server's slots and empties them again, but they keep the number of their last task:
a proxy that starts later would have to take them for used, by a conversation that may be in host memory now. So the
doctor notes in `DIR` which process it was and the numbers that it left. While they are still the same nobody has used
a slot since. Synchronous; call it in a thread.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import orjson

from proxy.checkpoints.private_file import write_privately
from proxy.slots.ledger import Look

NAME = "doctor.json"


def is_unused(looks: Sequence[Look]) -> bool:
    """Whether no slot has run anything since the server's start."""
    return all(look.task is None and not look.n_tokens and not look.is_busy for look in looks)


def note(directory: Path, marker: str, looks: Sequence[Look]) -> bool:
    """Note how the slots were left; whether it could be noted."""
    if any(look.n_tokens or look.is_busy for look in looks):
        return False
    told = {"process": marker, "tasks": _tasks(looks)}
    with suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_privately(directory / NAME, orjson.dumps(told), directory / f"{NAME}.{os.getpid()}.tmp")
        return True
    return False


def is_as_left(directory: Path, marker: str, looks: Sequence[Look]) -> bool:
    """Whether this process's slots are as a doctor has left them, and empty."""
    try:
        told = orjson.loads((directory / NAME).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return False
    if any(look.n_tokens or look.is_busy for look in looks):
        return False
    return bool(looks) and told == {"process": marker, "tasks": _tasks(looks)}


def _tasks(looks: Sequence[Look]) -> list[int | None]:
    return [look.task for look in sorted(looks, key=lambda look: look.slot)]
