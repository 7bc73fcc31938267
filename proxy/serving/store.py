"""The running proxy's way to its checkpoints: what there is, which may be handed to the server, what came of it.

Nothing is handed over that is not proven, as far as it can be seen from here. All that blocks runs in a thread.

Counterparts: `checkpoints` has the records and the files, `saving` makes new ones, `housekeeping` deletes,
`checkpoint_steps` makes the calls to the server.
"""

import asyncio
import time
from array import array
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from proxy.checkpoints import slot_directory
from proxy.checkpoints.index import Index
from proxy.checkpoints.inspection import Expected, FileVerdict, Inspection, inspect, proof
from proxy.checkpoints.key import final_name, is_key
from proxy.checkpoints.listing import Listed, listing
from proxy.checkpoints.marks import Mark, forget, left_over_marks, set_mark
from proxy.checkpoints.record import Checkpoint
from proxy.request.fingerprint import ModelIdentity
from proxy.serving.housekeeping import Cleaned, Housekeeping
from proxy.serving.reporting import Reporter
from proxy.serving.saving import Saving
from proxy.serving.shelf import Shelf, identity_text
from proxy.settings import Settings
from proxy.slots.holding import Need
from proxy.slots.restoring import Disk

__all__ = ["Store", "identity_text"]

MAX_STRIKES = 3
SAME_REQUEST_S = 1.0
FLUSH_S = 60.0
"""How long what was learned of uses may be only in memory."""


class Store:
    """Checkpoints on disk."""

    def __init__(self, settings: Settings, reporter: Reporter) -> None:
        self.settings = settings
        self.report = reporter
        self.shelf = Shelf(settings, reporter)
        self.saving = Saving(self.shelf)
        self._housekeeping = Housekeeping(self.shelf)

    @property
    def index(self) -> Index | None:
        """All checkpoints; None with persistence off."""
        return self.shelf.index

    @property
    def is_on(self) -> bool:
        """Whether anything is saved or restored."""
        return self.settings.persist and self.index is not None

    @property
    def directory(self) -> Path | None:
        """The server's slot directory as seen from here."""
        return self.shelf.directory

    async def open(self) -> None:
        """Read the index; what is wrong with it is said, and nothing else is affected."""
        if not self.settings.persist:
            return
        index = await asyncio.to_thread(Index.open, self.settings.dir, time.time())
        self.shelf.index = index
        for note in index.notes:
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
        self.shelf.begin_process()
        if not self.shelf.is_owner:
            return
        for mark in await asyncio.to_thread(left_over_marks, self.settings.dir):
            if mark.key in self.shelf.in_use:
                continue  # another model of the same router is reading it now
            if mark.server != marker:
                self.report.trouble(f"suspect:{mark.key}", f"the server died while it restored {final_name(mark.key)}")
                await self.put_aside(mark.key)
            await asyncio.to_thread(forget, mark)

    # What there is

    def disk(self, key: str) -> Disk:
        """What checkpoints can do for a prefix; no I/O."""
        if not self.is_on or not key:
            return Disk()
        if not is_key(key):
            # A prefix whose tokens are not known has another kind of key: what a file holds of it can't be proven.
            self.report.trouble("inexact_prefix", "no checkpoint is saved of a prefix that the server can't render")
            return Disk()
        record = self.record(key)
        is_usable = record is not None and self._is_usable(record)
        return Disk(has_checkpoint=is_usable, may_save=not is_usable and self.saving.may_save(key))

    def files(self, need: Need) -> Disk:
        """What checkpoints can do for a request: of its prefix, its head and its stems."""
        head, whole = self.disk(need.head_key), self.disk(need.prefix_key)
        stems = {key: self.disk(key) for key, _ in need.stems}
        return replace(
            whole,
            has_head=head.has_checkpoint,
            may_save_head=head.may_save,
            stems=frozenset(key for key, one in stems.items() if one.has_checkpoint),
            new_stems=frozenset(key for key, one in stems.items() if one.may_save),
        )

    def _is_usable(self, record: Checkpoint) -> bool:
        key, shelf = record.key, self.shelf
        if key in shelf.useless or key in shelf.suspects or record.strikes >= MAX_STRIKES:
            return False
        # On another server process there must be something to compare with.
        return bool(record.logprobs) or record.verdict == "good" or key in shelf.made_here

    def record(self, key: str) -> Checkpoint | None:
        """What is known of a checkpoint."""
        return self.index.get(key) if self.index is not None else None

    def latest(self, identity: ModelIdentity) -> Checkpoint | None:
        """The most recently used checkpoint of a model; of those used by one request, what all folders share."""
        if not self.is_on or self.index is None:
            return None
        whose = identity_text(identity), identity.lora, identity.server_id
        newest = self.index.most_recent(*whose)
        if newest is None:
            return None
        together = [
            record
            for record in self.index.records.values()
            if (record.model, record.lora, record.server_id) == whose
            and (record.fingerprints or not newest.fingerprints)
            and record.last_used_at >= newest.last_used_at - SAME_REQUEST_S
        ]
        return min(together, key=lambda record: record.n_tokens)

    # Restoring

    async def prove(self, key: str, tokens: "array[int] | None", format_version: int | None) -> str | None:
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
        await self._unfit(record, found)
        return None

    async def _unfit(self, record: Checkpoint, found: Inspection) -> None:
        key, verdict = record.key, found.verdict
        self.report.unfit(final_name(key), verdict.value, found.detail)
        self.shelf.useless.add(key)
        if self.index is None or not self.shelf.is_owner:
            return
        if verdict is FileVerdict.MISSING:
            self.index.remove(key)
        elif verdict.is_damage or (found.header and found.header.format_version != record.format_version != 0):
            await self.put_aside(key)

    async def put_aside(self, key: str) -> None:
        """Never hand this file over again: rename it, forget it."""
        self.shelf.suspects.add(key)
        if self.index is None or not self.shelf.is_owner:
            return
        self.index.remove(key)
        if self.directory is not None:
            with suppress(OSError):
                await asyncio.to_thread(slot_directory.quarantine, self.directory / final_name(key), time.time())
        await self.flush()

    def useless(self, key: str) -> None:
        """Don't restore this one again on this server process."""
        self.shelf.useless.add(key)

    def struck(self, key: str, verdict: str) -> None:
        """A checkpoint failed its verification."""
        self.shelf.useless.add(key)
        if self.index is not None and (record := self.index.get(key)) is not None:
            self.index.put(record.struck(verdict))

    def proven(self, key: str, logprobs: dict[int, float]) -> None:
        """A checkpoint was verified on the server, or just made: these are its log-probabilities."""
        if self.index is not None and (record := self.index.get(key)) is not None:
            told = record.logprobs or tuple(sorted(logprobs.items()))
            self.index.put(replace(record.verified("good"), logprobs=told))

    def used(self, key: str, fingerprint: str = "") -> None:
        """A request was served from this checkpoint's tokens; a stem is no request's alone, and has no fingerprint."""
        self.shelf.is_current(key)
        if self.index is not None and (record := self.index.get(key)) is not None:
            used = record.used(time.time())
            self.index.put(used.pointed_at(fingerprint) if fingerprint else used)

    async def mark(self, key: str, marker: str) -> Mark | None:
        """Note on disk that the server is about to read this file; None where that can't be noted."""
        try:
            return await asyncio.to_thread(set_mark, self.settings.dir, key, marker)
        except OSError:
            return None

    # Housekeeping

    async def forget_probe(self, name: str) -> int | None:
        """Remove what the probe wrote, where it can be seen; returns the format version that this server writes."""
        return await self.saving.discard(name)

    async def flush(self) -> None:
        """Write the index."""
        await self.shelf.flush()

    async def flush_when_due(self) -> None:
        """Write the index if that was long ago: uses are worth a write a minute, not one each."""
        if self.index is not None and self.index.is_dirty and time.monotonic() - self.shelf.flushed_at >= FLUSH_S:
            await self.flush()

    async def delete(self, key: str) -> str | None:
        """Delete one checkpoint because a person wants it gone; returns why not."""
        refusal = await self._housekeeping.delete(key)
        await self.flush()
        return refusal

    async def clean_up(self) -> None:
        """Delete what the limits say; says nothing where there is nothing to do."""
        await self._housekeeping.clean_up()
        await self.flush()

    async def prune(self, *, is_dry_run: bool) -> Cleaned:
        """Clean up because a person asks for it, `CLEANUP=0` or not; or tell what that would delete."""
        cleaned = await self._housekeeping.prune(is_dry_run=is_dry_run)
        await self.flush()
        return cleaned

    async def listed(self) -> list[Listed]:
        """Everything there is, in the index and in the slot directory."""
        files = None
        if self.directory is not None:
            with suppress(OSError):
                files = await asyncio.to_thread(slot_directory.scan, self.directory)
        return listing(self.index.records.values() if self.index is not None else (), files)

    async def proof(self, key: str) -> str:
        """Whether a checkpoint's file is what was saved: the words of an inspection, "" where none can be made."""
        record = self.record(key)
        if record is None or self.directory is None:
            return ""
        return await asyncio.to_thread(proof, self.directory, record)
