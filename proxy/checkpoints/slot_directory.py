"""The server's slot directory as we see it: keep a file, put it aside, look around, delete.

Owns the names in that directory; ``inspection`` owns the proof of what a file holds, ``cleanup`` the
decision what may go. Everything here is synchronous and may take as long as the disk does: call it in a
thread. Only ``delete`` and ``discard`` delete, and both look again before each unlink. The directory is
the server's: its mode is never changed.

Except where it says otherwise a function raises ``OSError`` as the disk does.
"""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from proxy.checkpoints.cleanup import FileSeen
from proxy.checkpoints.inspection import opened
from proxy.checkpoints.key import FileKind, bad_name, companion_name, parse_name


def promote(temporary: Path, final: Path, now: float) -> None:
    """Give a checked file its final name, durably: afterwards there is the old file or the new, never a part.

    An old companion goes first: a new state beside an old companion would be a pair nobody has proven,
    while a state without one is only slower.
    """
    new_companion = temporary.with_name(companion_name(temporary.name))
    old_companion = final.with_name(companion_name(final.name))
    has_companion = _is_regular(new_companion)
    for path in (temporary, new_companion) if has_companion else (temporary,):
        sync_file(path)
    if not _is_regular(final):
        quarantine(final, now)  # a symlink or a directory that somebody put there is not ours to replace
    if _is_regular(old_companion):
        old_companion.unlink()
    temporary.replace(final)
    if has_companion:
        new_companion.replace(old_companion)
    sync_directory(final.parent)


def quarantine(path: Path, now: float) -> str | None:
    """Put a state file and its companion aside; returns the new name, None where there is no such file.

    Renamed, not deleted, whatever it is (a symlink or a directory too), and never over another file.
    """
    own = parse_name(path.name)
    if own is None or own.kind is FileKind.BAD or not os.path.lexists(path):
        return None
    bad = _free_bad_name(path.parent, own.key, int(now))
    path.rename(path.with_name(bad))
    companion = path.with_name(companion_name(path.name))
    if os.path.lexists(companion):
        companion.rename(path.with_name(companion_name(bad)))
    sync_directory(path.parent)
    return bad


def discard(temporary: Path) -> None:
    """Remove a fragment that a failed save left, if it is there and a temporary file of our own."""
    own = parse_name(temporary.name)
    if own is None or own.kind is not FileKind.TEMPORARY:
        return
    for path in (temporary, temporary.with_name(companion_name(temporary.name))):
        if _is_regular(path):
            path.unlink(missing_ok=True)


def scan(directory: Path) -> list[FileSeen]:
    """Every entry with one of our names, as it is (links not followed)."""
    names = [path.name for path in directory.iterdir() if parse_name(path.name) is not None]
    return [file for name in names if (file := _seen(directory, name)) is not None]


def live_pids(files: Sequence[FileSeen]) -> set[int]:
    """Of the processes named in temporary files, the others that are alive.

    Our own is not among them: in a container every proxy has the same pid, also the one killed before us.
    """
    names = [parse_name(file.name) for file in files]
    pids = {own.pid for own in names if own is not None and own.kind is FileKind.TEMPORARY}
    return {pid for pid in pids - {0, os.getpid()} if _is_alive(pid)}


def delete(directory: Path, files: Sequence[FileSeen]) -> list[str]:
    """Unlink what is still exactly as it was seen; returns the names that are gone. Never raises ``OSError``."""
    gone = []
    for file in files:
        if parse_name(file.name) is None or not file.is_regular or file.links != 1:
            continue
        if _seen(directory, file.name) != file:
            continue
        try:
            (directory / file.name).unlink()
        except OSError:
            continue
        gone.append(file.name)
    return gone


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    with opened(path) as fd:
        os.fsync(fd)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, where the file system knows that."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def _free_bad_name(directory: Path, key: str, bad_at: int) -> str:
    while True:
        name = bad_name(key, bad_at)
        if not any(os.path.lexists(directory / taken) for taken in (name, companion_name(name))):
            return name
        bad_at += 1


def _seen(directory: Path, name: str) -> FileSeen | None:
    try:
        status = (directory / name).lstat()
    except OSError:
        return None
    is_regular = stat.S_ISREG(status.st_mode)
    return FileSeen(name, status.st_size, status.st_mtime, status.st_ino, status.st_nlink, is_regular)


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
