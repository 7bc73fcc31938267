"""The doctor's look at the disk: the slot directory, who else may enter it, room, and the proxy's own directory.

Changes nothing, and creates nothing. What others may do is judged from modes alone, so it is the same whoever asks.
"""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from proxy.checkpoints.cleanup import room_for
from proxy.checkpoints.index import INDEX_NAME, LOCK_NAME
from proxy.checkpoints.index_file import IndexRead, IndexState, read_index
from proxy.commands.findings import Finding, advice, ok, wrong
from proxy.commands.shown import size
from proxy.serving.saving import REFUSALS, TOO_LARGE
from proxy.settings import Settings

WRITES = stat.S_IWOTH | stat.S_IXOTH
READS = stat.S_IROTH | stat.S_IXOTH


def file_checks(settings: Settings, *, is_held_by_ours: bool) -> list[Finding]:
    """What there is to say of both directories; nothing where nothing is saved."""
    if not settings.persist:
        return []
    found = [*_own_directory(settings, is_held_by_ours=is_held_by_ours)]
    if settings.slot_dir is not None:
        path = settings.slot_dir
        found += _unusable(path) or [_permissions(path), _room(settings, path)]
    return found


def read_own_index(settings: Settings) -> IndexRead | None:
    """The index as it lies there; None where there is none that can be read."""
    try:
        return read_index((settings.dir / INDEX_NAME).read_bytes())
    except OSError:
        return None


# The slot directory


def _unusable(path: Path) -> list[Finding]:
    """What is wrong with it; nothing if it can be used."""
    if not path.is_dir():
        return [
            wrong(
                "slot directory",
                f"SLOT_DIR={path} is no directory",
                f"create it, start llama-server with --slot-save-path {path}, or correct SLOT_DIR",
            )
        ]
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return [
            wrong(
                "slot directory",
                f"SLOT_DIR={path} can't be read and written by this user (uid {os.geteuid()})",
                f"give it a group that both users are in: chgrp GROUP {path}; chmod 2770 {path}",
            )
        ]
    return []


def others_may(modes: Sequence[int]) -> tuple[bool, bool]:
    """Whether users outside owner and group may read, and write, in a directory: modes from the root down to it."""
    *above, own = modes
    can_reach = all(mode & stat.S_IXOTH for mode in above)
    can_replace = any(mode & WRITES == WRITES and not mode & stat.S_ISVTX for mode in above)
    return can_reach and own & READS == READS, can_reach and (own & WRITES == WRITES or can_replace)


def _permissions(path: Path) -> Finding:
    real = path.resolve()
    may_read, may_write = others_may([one.stat().st_mode for one in (*reversed(real.parents), real)])
    if may_write:
        words = f"any user of this machine can write in {path}: who can do that changes what the model says"
        return wrong("permissions", words, f"chmod o-rwx {path}, and let nobody write in the directories above it")
    if may_read:
        words = f"any user of this machine can read {path}: checkpoints hold your agent's system prompt"
        return advice("permissions", words, f"chmod o-rwx {path}")
    return ok("permissions", "only owner and group enter the slot directory")


def _room(settings: Settings, path: Path) -> Finding:
    usage = shutil.disk_usage(path)
    index = read_own_index(settings)
    largest = max((one.size_bytes for one in index.records), default=0) if index else 0
    max_bytes = int(settings.max_gb * 1e9)
    why = room_for(free_bytes=usage.free, total_bytes=usage.total, expected_bytes=largest, max_bytes=max_bytes)
    if why is None:
        return ok("disk", f"{size(usage.free)} of {size(usage.total)} free")
    if why == TOO_LARGE:
        words = f"MAX_GB={settings.max_gb:g} is less than one checkpoint ({size(largest)}): none is saved"
        return wrong("disk", words, f"set MAX_GB to {2 * largest / 1e9:.3g} or more, or 0 for no limit")
    words = f"{REFUSALS[why]} ({size(usage.free)} of {size(usage.total)} free): no checkpoint is saved"
    return wrong("disk", words, f"make room there, or put --slot-save-path and SLOT_DIR elsewhere (now {path})")


# The proxy's own directory


def _own_directory(settings: Settings, *, is_held_by_ours: bool) -> Iterator[Finding]:
    path = settings.dir
    nearest = next(one for one in (path, *path.parents) if one.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        how = "written" if nearest == path else "created"
        words = f"DIR={path} can't be {how}: checkpoints are forgotten when the proxy ends"
        yield wrong("index", words, "set DIR to a directory of the proxy's own user")
        return
    if not is_held_by_ours and is_held(settings):
        words = f"another proxy holds DIR={path}, and it does not answer at ADMIN_HOST and ADMIN_PORT"
        yield wrong("index", words, "give each proxy a DIR of its own, or end the other one")
        return
    index = read_own_index(settings)
    if index is None or index.state in (IndexState.GOOD, IndexState.FOREIGN):
        count = len(index.records) if index else 0
        yield ok("index", f"{count} checkpoint(s) known")
    elif index.state is IndexState.NEWER:
        yield wrong("index", f"the index is of a newer pi-prefix-cache ({index.reason})", "update, or set another DIR")
    else:
        words = f"the index is damaged ({index.reason}); it is set aside at the next start"
        yield advice("index", words, "nothing; checkpoints that it forgets are built again")


def is_held(settings: Settings) -> bool:
    """Whether a proxy holds the lock on DIR, which is tried for a moment only."""
    with suppress(FileNotFoundError, PermissionError):
        fd = os.open(settings.dir / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
        finally:
            os.close(fd)
    return False
