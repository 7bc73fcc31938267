"""Files of ours in `DIR`: nobody else reads them, each write is whole or not at all. Blocking; call it in a thread."""

import os
from pathlib import Path

from proxy.checkpoints.slot_directory import sync_directory


def write_privately(path: Path, raw: bytes, temporary: Path) -> None:
    """Put a file in the place of another, durable before it has its name; raises OSError and leaves no remains.

    `temporary` is a name beside it that nobody else uses.
    """
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(fd)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
