"""Prove that a state file is whole and right before a server gets it.

Owns the looking: regular, readable, as large as recorded, of the right format, these tokens, these bytes.
llama-server itself aborts on many damaged files and loads wrong state from others without a word, so
nothing reaches it on trust. Follows no symlink and waits on no FIFO. Everything here is synchronous and may
take as long as the disk does: call it in a thread. What a verdict means for a request is the engine's
business; moving files is ``slot_directory``'s.
"""

import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import xxhash

from proxy.checkpoints.key import companion_name, final_name
from proxy.checkpoints.record import Checkpoint, Seal
from proxy.checkpoints.state_file import FIXED_BYTES, Header, NotRead, header_bytes, is_of, read_header

UNSETTLED = 0  # in a seal's mtime_ns: the stat proves nothing
_SETTLED_NS = 50_000_000
_READ_BYTES = 4 * 2**20
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileVerdict(Enum):
    """What an inspection found; the first that applies, in this order."""

    MISSING = "missing"
    NOT_REGULAR = "not_regular"  # a symlink, a directory, a FIFO
    UNREADABLE = "unreadable"
    SIZE = "size"
    NOT_A_STATE_FILE = "not_a_state_file"
    FORMAT_VERSION = "format_version"  # written by another format than this server's: not damaged
    TOKENS = "tokens"
    CHECKSUM = "checksum"
    COMPANION = "companion"  # what a patched server wrote beside it isn't what it was
    CHANGED = "changed"  # somebody wrote to it while we read
    WHOLE = "whole"

    @property
    def is_damage(self) -> bool:
        """Whether the file is to be put aside: it can never become right by waiting."""
        return self not in {self.WHOLE, self.MISSING, self.UNREADABLE, self.FORMAT_VERSION, self.CHANGED}


@dataclass(frozen=True, slots=True)
class Expected:
    """What a file must be before a server gets it; an empty part is not compared."""

    tokens: Sequence[int] | None = None
    size_bytes: int | None = None
    format_version: int = 0  # that the running server writes; 0: not known
    seal: Seal | None = None
    companion: Seal | None = None
    check_companion: bool = True  # False while nothing is recorded yet: right after a save


@dataclass(frozen=True, slots=True)
class Inspection:
    """What an inspection found; the seals are set when the file is whole."""

    verdict: FileVerdict
    detail: str = ""
    header: Header | None = None
    seal: Seal | None = None
    companion: Seal | None = None


def inspect(path: Path, expected: Expected) -> Inspection:
    """Prove that a state file is whole and holds what is expected; never raises ``OSError``.

    The bytes are digested only when size, mtime or inode differ from the seal: at most once per change.
    """
    try:
        with opened(path) as fd:
            return _inspect_open(fd, path, expected)
    except OSError as error:
        return Inspection(_verdict_of(error, path), error.strerror or str(error))


def proof(directory: Path, record: Checkpoint) -> str:
    """Whether a checkpoint's file still is what was saved: `WHOLE`, or why not in words; reads all of it."""
    expected = Expected(None, record.size_bytes, record.format_version, record.seal, record.companion)
    found = inspect(directory / final_name(record.key), expected)
    if found.verdict is FileVerdict.CHECKSUM and record.seal is not None:
        its_own = found.detail.partition(",")[0]
        return f"damaged: its checksum is {its_own}, recorded was {record.seal.checksum}"
    words = f"{found.verdict.value}{f' ({found.detail})' if found.detail else ''}"
    return f"damaged: {words}" if found.verdict.is_damage else words


WHOLE = FileVerdict.WHOLE.value


def read_head(path: Path) -> Header | NotRead:
    """The tokens and format version that a state file claims; never raises ``OSError``."""
    try:
        with opened(path) as fd:
            return _header(fd, os.fstat(fd).st_size)
    except OSError as error:
        return NotRead(_verdict_of(error, path).value)


def seal_of(path: Path) -> Seal:
    """Digest a file as it is now."""
    with opened(path) as fd:
        return _sealed(fd)


def digest(path: Path) -> str:
    """The xxh3-128 of a file's bytes, 32 hex digits."""
    return seal_of(path).checksum


def _inspect_open(fd: int, path: Path, expected: Expected) -> Inspection:
    before = os.fstat(fd)
    if expected.size_bytes is not None and before.st_size != expected.size_bytes:
        return Inspection(FileVerdict.SIZE, f"{before.st_size} bytes, not {expected.size_bytes}")
    header = _header(fd, before.st_size)
    if isinstance(header, NotRead):
        return Inspection(FileVerdict.NOT_A_STATE_FILE, header.reason)
    if expected.format_version not in (0, header.format_version):
        return Inspection(FileVerdict.FORMAT_VERSION, f"{header.format_version}, not {expected.format_version}", header)
    if expected.tokens is not None and not is_of(header, expected.tokens):
        return Inspection(FileVerdict.TOKENS, f"{len(header.tokens)} tokens, {len(expected.tokens)} expected", header)
    seal = expected.seal if expected.seal is not None and _is_as_sealed(before, expected.seal) else _sealed(fd)
    if _version(os.fstat(fd)) != _version(before):
        return Inspection(FileVerdict.CHANGED, "written to while it was read", header)
    if expected.seal is not None and seal.checksum != expected.seal.checksum:
        return Inspection(FileVerdict.CHECKSUM, f"{seal.checksum}, not {expected.seal.checksum}", header)
    companion = _companion(path.with_name(companion_name(path.name)), expected)
    if isinstance(companion, str):
        return Inspection(FileVerdict.COMPANION, companion, header)
    return Inspection(FileVerdict.WHOLE, "", header, seal, companion)


def _companion(path: Path, expected: Expected) -> Seal | str | None:
    """The companion's seal, None where there is none, or what is wrong with it."""
    if not os.path.lexists(path):
        return None  # a patched server does without, as a stock one does
    known = expected.companion
    try:
        with opened(path) as fd:
            seal = known if known is not None and _is_as_sealed(os.fstat(fd), known) else _sealed(fd)
    except OSError as error:
        return error.strerror or str(error)
    if not expected.check_companion or (known is not None and seal.checksum == known.checksum):
        return seal
    return "not the one that was saved"


def _header(fd: int, size_bytes: int) -> Header | NotRead:
    needed = header_bytes(os.pread(fd, FIXED_BYTES, 0))
    if isinstance(needed, NotRead):
        return needed
    return read_header(os.pread(fd, needed, 0)) if needed <= size_bytes else NotRead("too_short")


def _sealed(fd: int) -> Seal:
    """Digest an open file; the stat is taken before, so that a later write makes the seal stale."""
    status = os.fstat(fd)
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(min(_READ_BYTES, status.st_size + 1)))
    os.lseek(fd, 0, os.SEEK_SET)
    while count := os.readv(fd, [buffer]):
        hasher.update(buffer[:count])
    # Two writes within one tick of the kernel's clock leave the same mtime. A file written just now gets a
    # seal that no stat matches: it is digested once more at its next use.
    is_settled = time.time_ns() - status.st_mtime_ns > _SETTLED_NS
    return Seal(status.st_size, hasher.hexdigest(), status.st_ino, status.st_mtime_ns if is_settled else UNSETTLED)


def _is_as_sealed(status: os.stat_result, seal: Seal) -> bool:
    return seal.mtime_ns != UNSETTLED and _version(status) == (seal.size_bytes, seal.inode, seal.mtime_ns)


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_ino, status.st_mtime_ns


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A regular file's descriptor, to read; ``OSError`` for everything else."""
    fd = os.open(path, _OPEN_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, "not a regular file")
        yield fd
    finally:
        os.close(fd)


def _verdict_of(error: OSError, path: Path) -> FileVerdict:
    if error.errno == errno.ENOENT:
        # Without its directory (not mounted yet) a file is not known to be gone.
        return FileVerdict.MISSING if path.parent.is_dir() else FileVerdict.UNREADABLE
    # ELOOP: a symlink; ENXIO: a socket or a device without a driver.
    return FileVerdict.NOT_REGULAR if error.errno in (errno.ELOOP, errno.ENXIO) else FileVerdict.UNREADABLE
