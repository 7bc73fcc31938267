"""The index of checkpoints: in memory for requests, in ``DIR/index.json`` for the next start.

Owns ``DIR``: its lock, its index file, and what is kept aside of index files that can't be used. The way
of a request only touches memory; ``flush`` writes, in a thread. Each write is whole or not at all.

It never stands in a request's way and never causes a loss:

- corrupt (or empty, or with entries that don't fit) → kept aside, the entries that fit are used, not
  *trusted*: nothing may be deleted on its word in this run;
- missing → empty and trusted; the Pi extension's → kept aside, then as missing;
- of a newer version of ours, or ``DIR`` is another proxy's → read-only, nothing is written;
- the disk is full, or ``DIR`` can't be written → it goes on in memory, said once until a write succeeds.

Methods that change it are for its one owner and don't block; ``open`` and ``flush`` do I/O, in a thread.
"""

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

from proxy.checkpoints.index_file import IndexRead, IndexState, read_index, write_index
from proxy.checkpoints.private_file import write_privately
from proxy.checkpoints.record import Checkpoint
from proxy.checkpoints.slot_directory import sync_directory

INDEX_NAME = "index.json"
EXTENSION_NAME = "index.pi-extension.json"
LOCK_NAME = "lock"
LOCK_WAIT_S = 0.5
"""A command that works on the files holds the lock for moments; another proxy holds it for life."""
LOCK_PAUSE_S = 0.02


class Index:
    """The checkpoints that we know of; open it with ``Index.open``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.is_trusted = True  # may files be deleted on its word?
        self.is_owner = True  # is DIR ours to write? Another proxy's is not, nor one of a newer version
        self.notes: list[str] = []  # what there is to say about how it was opened
        self._records: dict[str, Checkpoint] = {}
        self._by_fingerprint: dict[str, str] = {}
        self._lock_fd: int | None = None
        self._changes = 0
        self._changes_written = 0
        self._failure = ""
        self._flushing = threading.Lock()

    def __repr__(self) -> str:
        return (
            f"Index({str(self.directory)!r}, {len(self._records)} checkpoints, trusted={self.is_trusted}, "
            f"owner={self.is_owner}, dirty={self.is_dirty})"
        )

    @classmethod
    def open(cls, directory: Path, now: float) -> Self:
        """Take the directory and read what is in it; never raises ``OSError``."""
        index = cls(directory)
        index._take_directory()
        index._load(now)
        return index

    @property
    def records(self) -> Mapping[str, Checkpoint]:
        """All checkpoints by key; a view."""
        return MappingProxyType(self._records)

    @property
    def is_dirty(self) -> bool:
        """Whether there is something that ``flush`` would write."""
        return self.is_owner and self._changes != self._changes_written

    def get(self, key: str) -> Checkpoint | None:
        """The checkpoint of this key."""
        return self._records.get(key)

    def by_fingerprint(self, fingerprint: str) -> Checkpoint | None:
        """The checkpoint that this fingerprint pointed at last."""
        return self._records.get(self._by_fingerprint.get(fingerprint, ""))

    def most_recent(self, model: str, lora: str, server_id: str) -> Checkpoint | None:
        """The checkpoint of this model that was used last."""
        wanted = (model, lora, server_id)
        fitting = (item for item in self._records.values() if (item.model, item.lora, item.server_id) == wanted)
        return max(fitting, key=lambda item: item.last_used_at, default=None)

    def put(self, record: Checkpoint) -> None:
        """Add a checkpoint, or replace what is known of it."""
        self._enter(record)
        self._changes += 1

    def remove(self, key: str) -> None:
        """Forget a checkpoint, if it is known."""
        record = self._records.pop(key, None)
        if record is None:
            return
        self._drop_fingerprints(record)
        self._changes += 1

    def touch(self, key: str, now: float) -> None:
        """Count a use of a checkpoint, if it is known."""
        if (record := self._records.get(key)) is not None:
            self.put(record.used(now))

    def flush(self) -> str | None:
        """Write what has changed; returns why that failed, once until it works again."""
        with self._flushing:
            if not self.is_dirty:
                return None
            changes = self._changes
            try:
                # A copy first: it is atomic for the event loop's thread, the encoding isn't.
                self._write(write_index(self._records.copy().values()))
            except OSError as error:
                return self._failed(error)
            self._changes_written = changes
            self._failure = ""
            return None

    def close(self) -> str | None:
        """Write what has changed and give the directory back."""
        failure = self.flush()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
        self.is_owner = False
        return failure

    def _enter(self, record: Checkpoint) -> None:
        if (old := self._records.get(record.key)) is not None and old.fingerprints != record.fingerprints:
            self._drop_fingerprints(old)
        self._records[record.key] = record
        for fingerprint in record.fingerprints:
            self._by_fingerprint[fingerprint] = record.key

    def _drop_fingerprints(self, record: Checkpoint) -> None:
        for fingerprint in record.fingerprints:
            if self._by_fingerprint.get(fingerprint) == record.key:
                del self._by_fingerprint[fingerprint]

    def _take_directory(self) -> None:
        """Create and lock the directory; what goes wrong leaves us read-only or in memory."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._close_to_others()
            self._lock_fd = os.open(self.directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _lock(self._lock_fd)
        except OSError as error:
            is_taken = error.errno in (errno.EWOULDBLOCK, errno.EACCES) and self._lock_fd is not None
            self.is_owner = False
            self.notes.append("directory_of_another_proxy" if is_taken else f"directory: {error.strerror}")

    def _close_to_others(self) -> None:
        """Mode 0700 for a directory that is surely ours: not one that somebody shares (sticky) or owns."""
        status = self.directory.stat()
        if status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX:
            self.directory.chmod(0o700)

    def _load(self, now: float) -> None:
        path = self.directory / INDEX_NAME
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            self.is_trusted = self.is_owner = False
            self.notes.append(f"index: {error.strerror}")
            return
        read = read_index(raw)
        for record in read.records:
            self._enter(record)
        self._judge(read, int(now))

    def _judge(self, read: IndexRead, now: int) -> None:
        """Draw the consequences of what kind of file it was."""
        match read.state:
            case IndexState.GOOD:
                return
            case IndexState.NEWER:
                self.is_trusted = self.is_owner = False
                self.notes.append(f"index: {read.reason}")
            case IndexState.CORRUPT:
                self.is_trusted = False
                self.notes.append(f"index: {read.reason}")
                self._keep_aside(f"{INDEX_NAME}.corrupt-{now}")
                self._changes += 1 if read.records else 0
            case IndexState.FOREIGN:
                self.notes.append("index: of the Pi extension")
                self._keep_aside(EXTENSION_NAME)

    def _keep_aside(self, name: str) -> None:
        """Rename the index file, over nothing; where that fails it must not be overwritten either."""
        if not self.is_owner:
            return
        try:
            (self.directory / INDEX_NAME).rename(self._free(name))
            sync_directory(self.directory)
        except OSError as error:
            self.is_trusted = self.is_owner = False
            self.notes.append(f"index: not kept aside: {error.strerror}")

    def _free(self, name: str) -> Path:
        path, serial = self.directory / name, 1
        while os.path.lexists(path):
            path, serial = self.directory / f"{name}.{serial}", serial + 1
        return path

    def _write(self, raw: bytes) -> None:
        write_privately(self.directory / INDEX_NAME, raw, self.directory / f"{INDEX_NAME}.tmp")

    def _failed(self, error: OSError) -> str | None:
        failure = error.strerror or str(error)
        is_new, self._failure = failure != self._failure, failure
        return failure if is_new else None


def _lock(descriptor: int) -> None:
    """Lock an open file against other processes; raises OSError where another one keeps it."""
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() >= until:
                raise
        time.sleep(LOCK_PAUSE_S)
