"""The running proxy's way to its checkpoints: which may be handed to the server, how a new one becomes one of them.

Owns the index, the slot directory (where it can be seen) and what was learned about files since the start: which are
useless on this server process, which could not be saved and are left alone for a while. All that blocks runs in a
thread. Nothing is handed over that is not proven, as far as it can be seen from here.

Counterparts: `checkpoints` has the records and the files, `executor` makes the calls to the server.
"""

import asyncio
import itertools
import os
import shutil
import time
from array import array
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from proxy.checkpoints import cleanup, slot_directory
from proxy.checkpoints.index import Index
from proxy.checkpoints.inspection import Expected, FileVerdict, Inspection, inspect
from proxy.checkpoints.key import final_name, temporary_name
from proxy.checkpoints.marks import Mark, forget, left_over_marks, set_mark
from proxy.checkpoints.record import Checkpoint
from proxy.llama.client import SlotFile
from proxy.request.fingerprint import ModelIdentity
from proxy.serving.reporting import Reporter
from proxy.settings import Settings
from proxy.slots.planner import Disk

SAVE_BACK_OFF_S = 600.0
"""After a failed save the same checkpoint isn't tried again for this long."""
MAX_STRIKES = 3
_serials = itertools.count(1)


def identity_text(identity: ModelIdentity) -> str:
    """Which weights, as it goes into a checkpoint's key."""
    settled = identity.settled()
    return f"{settled.file}|{settled.meta}|{settled.model_path}"


class Store:
    """Checkpoints on disk."""

    def __init__(self, settings: Settings, reporter: Reporter) -> None:
        self.settings = settings
        self.report = reporter
        self.index: Index | None = None
        self.in_use: set[str] = set()
        """Keys of files that the server is reading or writing."""
        self.current = ""
        self._useless: set[str] = set()
        """Keys that failed on this server process."""
        self._not_before: dict[str, float] = {}
        self._busy = asyncio.Lock()

    @property
    def is_on(self) -> bool:
        """Whether anything is saved or restored."""
        return self.settings.persist and self.index is not None

    @property
    def directory(self) -> Path | None:
        """The server's slot directory as seen from here."""
        return self.settings.slot_dir

    async def open(self) -> None:
        """Read the index; what is wrong with it is said, and nothing else is affected."""
        if not self.settings.persist:
            return
        self.index = await asyncio.to_thread(Index.open, self.settings.dir, time.time())
        for note in self.index.notes:
            self.report.trouble(f"index:{note}", f"{self.settings.dir / 'index.json'}: {note}")
        if self.directory is None:
            self.report.trouble(
                "slot_dir_unset",
                "SLOT_DIR is not set: checkpoints can't be proven before they are restored, and nothing is cleaned up",
            )

    async def close(self) -> None:
        """Write what has changed."""
        if self.index is not None:
            await asyncio.to_thread(self.index.close)

    async def met(self, marker: str) -> None:
        """A server process was met: nothing is useless yet, and a restore that nobody saw the end of is judged."""
        self._useless.clear()
        if not self.is_on or self.index is None or not self.index.is_owner:
            return
        for mark in await asyncio.to_thread(left_over_marks, self.settings.dir):
            if mark.server != marker:
                self.report.trouble(f"suspect:{mark.key}", f"the server died while it restored {final_name(mark.key)}")
                await self.put_aside(mark.key)
            await asyncio.to_thread(forget, mark)

    # What can be done

    def disk(self, key: str) -> Disk:
        """What checkpoints can do for a prefix; no I/O."""
        if not self.is_on or self.index is None or not key:
            return Disk()
        record = self.index.get(key)
        usable = record is not None and key not in self._useless and record.strikes < MAX_STRIKES
        may_save = self.index.is_owner and time.monotonic() >= self._not_before.get(key, 0.0)
        return Disk(has_checkpoint=usable, may_save=may_save)

    def record(self, key: str) -> Checkpoint | None:
        """What is known of a checkpoint."""
        return self.index.get(key) if self.index is not None else None

    def latest(self, identity: ModelIdentity) -> Checkpoint | None:
        """The most recently used checkpoint of a model."""
        if not self.is_on or self.index is None:
            return None
        return self.index.most_recent(identity_text(identity), identity.lora, identity.server_id)

    # Restoring

    async def prove(self, key: str, tokens: "array[int]", format_version: int | None) -> str | None:
        """The name of a file that may be handed over; None (and the reason dealt with) where it may not."""
        record = self.record(key)
        if record is None or self.index is None:
            return None
        if self.directory is None:
            return final_name(key)
        path = self.directory / final_name(key)
        expected = Expected(
            tokens=tokens,
            size_bytes=record.size_bytes,
            format_version=format_version or record.format_version,
            seal=record.seal,
            companion=record.companion,
        )
        found = await asyncio.to_thread(inspect, path, expected)
        if found.verdict is FileVerdict.WHOLE:
            if found.seal != record.seal:
                self.index.put(replace(record, seal=found.seal, companion=found.companion))
            return path.name
        await self._unfit(key, found)
        return None

    async def _unfit(self, key: str, found: Inspection) -> None:
        verdict = found.verdict
        self.report.unfit(final_name(key), verdict.value, found.detail)
        self._useless.add(key)
        if self.index is None or not self.index.is_owner:
            return
        if verdict is FileVerdict.MISSING:
            self.index.remove(key)
        elif verdict.is_damage:
            await self.put_aside(key)

    async def put_aside(self, key: str) -> None:
        """Never hand this file over again: rename it, forget it."""
        self._useless.add(key)
        if self.index is None or not self.index.is_owner:
            return
        self.index.remove(key)
        if self.directory is not None:
            with suppress(OSError):
                await asyncio.to_thread(slot_directory.quarantine, self.directory / final_name(key), time.time())
        await self.flush()

    def useless(self, key: str) -> None:
        """Don't restore this one again on this server process."""
        self._useless.add(key)

    def struck(self, key: str, verdict: str) -> None:
        """A checkpoint failed its verification."""
        self._useless.add(key)
        if self.index is not None and (record := self.index.get(key)) is not None:
            self.index.put(record.struck(verdict))

    def proven(self, key: str, logprobs: dict[int, float]) -> None:
        """A checkpoint was verified on the server, or just made: these are its log-probabilities."""
        if self.index is not None and (record := self.index.get(key)) is not None:
            told = record.logprobs or tuple(sorted(logprobs.items()))
            self.index.put(replace(record.verified("good"), logprobs=told))

    def used(self, key: str, fingerprint: str) -> None:
        """A request was served from this checkpoint's tokens."""
        self.current = key
        if self.index is not None and (record := self.index.get(key)) is not None:
            self.index.put(record.used(time.time()).pointed_at(fingerprint))

    async def mark(self, key: str, marker: str) -> Mark | None:
        """Note on disk that the server is about to read this file; None where that can't be noted."""
        try:
            return await asyncio.to_thread(set_mark, self.settings.dir, key, marker)
        except OSError:
            return None

    # Saving

    def refusal(self, identity: ModelIdentity, n_tokens: int) -> str | None:
        """Why a checkpoint of this many tokens is not saved now (one `statvfs`)."""
        if self.directory is None:
            return None
        try:
            usage = shutil.disk_usage(self.directory)
        except OSError as error:
            return f"slot_dir: {error.strerror}"
        return cleanup.room_for(
            free_bytes=usage.free,
            total_bytes=usage.total,
            expected_bytes=self._expected_bytes(identity, n_tokens),
            max_bytes=self._max_bytes,
        )

    def begin_save(self, key: str) -> str:
        """The name that the server is told to write to."""
        self.in_use.add(key)
        if self.directory is not None:
            return temporary_name(key, os.getpid(), next(_serials))
        # Written straight over what may be there, so what is known of that ends here.
        if self.index is not None:
            self.index.remove(key)
        return final_name(key)

    async def finish_save(
        self, key: str, name: str, told: SlotFile, tokens: "array[int]", identity: ModelIdentity, build: str
    ) -> str | None:
        """Check what was written and make it a checkpoint; returns why it is none."""
        found = Inspection(FileVerdict.WHOLE)
        if told.n_tokens != len(tokens):
            return f"n_saved={told.n_tokens}, not {len(tokens)}"
        if self.directory is not None:
            path = self.directory / name
            expected = Expected(tokens=tokens, size_bytes=told.n_bytes, check_companion=False)
            found = await asyncio.to_thread(inspect, path, expected)
            if found.verdict is not FileVerdict.WHOLE:
                return f"{found.verdict.value} {found.detail}".strip()
            try:
                await asyncio.to_thread(slot_directory.promote, path, self.directory / final_name(key), time.time())
            except OSError as error:
                return error.strerror or "rename"
        now = time.time()
        record = Checkpoint(
            key=key,
            model_id=identity.model_id,
            model=identity_text(identity),
            lora=identity.lora,
            server_id=identity.server_id,
            n_tokens=len(tokens),
            size_bytes=told.n_bytes,
            created_at=now,
            last_used_at=now,
            seal=found.seal,
            companion=found.companion,
            format_version=found.header.format_version if found.header else 0,
            build=build,
        )
        if self.index is not None:
            self.index.put(record)
        self._useless.discard(key)
        return None

    async def give_up_save(self, key: str, name: str) -> None:
        """A save failed: away with the fragment, and not again for a while."""
        self._not_before[key] = time.monotonic() + SAVE_BACK_OFF_S
        if self.directory is not None:
            with suppress(OSError):
                await asyncio.to_thread(slot_directory.discard, self.directory / name)

    def end_save(self, key: str) -> None:
        """The server no longer writes this file."""
        self.in_use.discard(key)

    async def forget_probe(self, name: str) -> None:
        """Remove what the probe wrote, where it can be seen."""
        if self.directory is not None:
            with suppress(OSError):
                await asyncio.to_thread(slot_directory.discard, self.directory / name)

    # Housekeeping

    async def flush(self) -> None:
        """Write the index."""
        if self.index is None:
            return
        failure = await asyncio.to_thread(self.index.flush)
        if failure:
            self.report.trouble("index_not_written", f"{self.settings.dir / 'index.json'} can't be written: {failure}")

    async def clean_up(self) -> None:
        """Delete what the limits say; says nothing where there is nothing to do."""
        index, directory = self.index, self.directory
        if index is None or directory is None or self._refuses_cleanup(index):
            return
        async with self._busy:
            limits = cleanup.Limits(self.settings.ttl_days, self.settings.keep_recent, self._max_bytes)
            last_used = {key: record.last_used_at for key, record in index.records.items()}
            protected = frozenset({self.current, *self.in_use})
            try:
                gone = await asyncio.to_thread(_clean, directory, last_used, limits, protected)
            except OSError as error:
                self.report.trouble("cleanup", f"{directory} can't be cleaned up: {error.strerror}")
                return
            for key in gone:
                index.remove(key)
            if gone:
                self.report.cleaned(gone)
            await self.flush()

    def _refuses_cleanup(self, index: Index) -> bool:
        return bool(
            cleanup.refusal(
                is_persisting=self.settings.persist,
                has_slot_dir=self.directory is not None,
                is_wanted=self.settings.cleanup,
                is_index_trusted=index.is_trusted,
                is_owner=index.is_owner,
            )
        )

    @property
    def _max_bytes(self) -> int:
        return int(self.settings.max_gb * 1e9)

    def _expected_bytes(self, identity: ModelIdentity, n_tokens: int) -> int:
        """From the latest file of the same model; 0 where there is none."""
        known = self.latest(identity)
        return known.size_bytes * n_tokens // known.n_tokens if known and known.n_tokens else 0


def _clean(
    directory: Path, last_used: dict[str, float], limits: cleanup.Limits, protected: frozenset[str]
) -> list[str]:
    """Scan, plan, delete (blocking); returns the keys whose checkpoint is gone."""
    files = slot_directory.scan(directory)
    going = cleanup.plan_cleanup(
        files,
        last_used,
        now=time.time(),
        limits=limits,
        current=protected,
        in_use=protected,
        live_pids=slot_directory.live_pids(files),
    )
    slot_directory.delete(directory, going)
    return cleanup.keys_without_file(slot_directory.scan(directory), last_used)
