"""*Restore in progress* marks: which checkpoint was being handed over when something died?

A state file that takes the server down would do it again after every restart. So before a restore a mark
is written to our own directory and made durable; it is removed when the server has answered. A mark that
is left over names the suspect.

A mark is a small file that its owner keeps locked for as long as it lives, so that another proxy (or the
next one with the same pid, as containers have it) tells a mark in use from one left over. Inside stands
which server process it was: if that one is still alive it survived the restore, and the file is innocent.

Synchronous; call it in a thread. Functions raise ``OSError`` as the disk does.
"""

import fcntl
import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from proxy.checkpoints.slot_directory import sync_directory

_NAME = re.compile(r"restoring-(?P<key>[0-9a-f]{16})\.[0-9]+-[0-9]+")
_MAX_SERVER_BYTES = 256
_serials = itertools.count(1)


@dataclass(frozen=True, slots=True)
class LeftOver:
    """A restore that nobody saw the end of."""

    key: str
    server: str  # what identified the server process, "" where that was not known
    path: Path


class Mark:
    """A restore in progress; ``clear`` it when the server has answered, whatever the answer."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd: int | None = fd

    def __repr__(self) -> str:
        return f"Mark({self.path.name}, {'set' if self._fd is not None else 'cleared'})"

    def clear(self) -> None:
        """Remove the mark; a second call does nothing."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            self.path.unlink(missing_ok=True)
        finally:
            os.close(fd)


def set_mark(directory: Path, key: str, server: str) -> Mark:
    """Write down, durably, that this checkpoint is about to be handed to this server process."""
    path, fd = _create(directory, key)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, server.encode("utf-8", "replace")[:_MAX_SERVER_BYTES])
        os.fsync(fd)
        sync_directory(directory)
    except OSError:
        Mark(path, fd).clear()
        raise
    return Mark(path, fd)


def left_over_marks(directory: Path) -> list[LeftOver]:
    """The marks whose owner is dead; they stay until ``forget`` is called on them."""
    if not directory.is_dir():
        return []
    paths = sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))
    return [mark for path in paths if (mark := _left_over(path)) is not None]


def forget(mark: LeftOver) -> None:
    """Remove a mark that has been dealt with."""
    mark.path.unlink(missing_ok=True)


def _create(directory: Path, key: str) -> tuple[Path, int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        path = directory / f"restoring-{key}.{os.getpid()}-{next(_serials)}"
        try:
            return path, os.open(path, flags, 0o600)
        except FileExistsError:
            continue  # left over from a process that had our pid


def _left_over(path: Path) -> LeftOver | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        server = os.read(fd, _MAX_SERVER_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)
    return LeftOver(path.name.removeprefix("restoring-").partition(".")[0], server, path)
