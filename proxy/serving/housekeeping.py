"""Housekeeping while the proxy runs: delete what the limits say, never what somebody is about to use.

What may go is decided by `checkpoints.cleanup` from one look at the directory; this owns the order of things. Between
the decision and the first deletion a file may have been chosen for a restore, so it is asked once more, on the event
loop, and what still goes leaves the index in the same breath: from then on nobody chooses it.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.checkpoints import cleanup, slot_directory
from proxy.checkpoints.cleanup import FileSeen
from proxy.checkpoints.index import Index
from proxy.checkpoints.key import FileKind, parse_name
from proxy.serving.saving import SAVE_BACK_OFF_S
from proxy.serving.shelf import Shelf


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a clean-up has deleted, or would delete."""

    files: tuple[str, ...] = ()
    size_bytes: int = 0
    refusal: str = ""
    """Why there was none."""


class Housekeeping:
    """Cleans up, one clean-up at a time."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._busy = asyncio.Lock()

    async def clean_up(self) -> None:
        """Delete what the limits say; says nothing where there is nothing to do."""
        await self.prune(is_wanted=self._shelf.settings.cleanup)

    async def prune(self, *, is_wanted: bool = True, is_dry_run: bool = False) -> Cleaned:
        """Delete what the limits say, or only tell what that would be."""
        index, directory = self._shelf.index, self._shelf.directory
        refusal = self._refusal(index, is_wanted=is_wanted)
        if refusal or index is None or directory is None:
            return Cleaned(refusal=refusal or "persistence_off")
        async with self._busy:
            try:
                going = await self._due(index, directory)
                return _told(going if is_dry_run else await self._clean(index, directory, going))
            except OSError as error:
                words = f"{directory} can't be cleaned up: {error.strerror}"
                self._shelf.report.trouble("cleanup", words)
                return Cleaned(refusal="slot_dir_unreadable")

    async def delete(self, key: str) -> str | None:
        """Delete one checkpoint because a person wants it gone; returns why not."""
        index, directory = self._shelf.index, self._shelf.directory
        if index is None:
            return "persistence_off"
        if not index.is_owner:
            return "directory_of_another_proxy"
        async with self._busy:
            if key in self._shelf.in_use:
                return "in_use"
            is_known = index.get(key) is not None
            index.remove(key)
            if directory is None:
                return "only_forgotten" if is_known else "unknown"  # its file can't be seen from here
            try:
                gone = await asyncio.to_thread(_delete_one, directory, key)
            except OSError:
                return "only_forgotten" if is_known else "unknown"
        if not gone and not is_known:
            return "unknown"
        self._shelf.report.cleaned([key])
        return None

    async def _due(self, index: Index, directory: Path) -> list[FileSeen]:
        """What the limits say may go now."""
        shelf, settings = self._shelf, self._shelf.settings
        limits = cleanup.Limits(settings.ttl_days, settings.keep_recent, shelf.max_bytes)
        used = {key: record.last_used_at for key, record in index.records.items()}
        planned = await asyncio.to_thread(_plan, directory, used, limits, shelf.protected)
        return [file for file in planned if _key(file) not in shelf.protected]

    async def _clean(self, index: Index, directory: Path, going: Sequence[FileSeen]) -> list[FileSeen]:
        """Delete these; returns which of them are gone."""
        shelf, used = self._shelf, [*index.records]
        records = {key: index.get(key) for key in _checkpoints(going) if key in used}
        for key in records:
            index.remove(key)
            shelf.not_before[key] = time.monotonic() + SAVE_BACK_OFF_S
        deleted, has_files, missing = await asyncio.to_thread(_delete, directory, going, used)
        for key, record in records.items():
            if record is not None and key not in missing and index.get(key) is None:
                index.put(record)  # it changed under our eyes and was left
        # A directory that shows nothing at all may just not be mounted yet.
        gone = [key for key in missing if key in records or (has_files and key not in shelf.protected)]
        for key in gone:
            index.remove(key)
        if gone:
            shelf.report.cleaned(gone)
        return [file for file in going if file.name in deleted]

    def _refusal(self, index: Index | None, *, is_wanted: bool) -> str | None:
        return cleanup.refusal(
            is_persisting=self._shelf.settings.persist,
            has_slot_dir=self._shelf.directory is not None,
            is_wanted=is_wanted,
            is_index_trusted=index is not None and index.is_trusted,
            is_owner=index is not None and index.is_owner,
        )


def _told(files: Sequence[FileSeen]) -> Cleaned:
    return Cleaned(tuple(file.name for file in files), sum(file.size_bytes for file in files))


def _key(file: FileSeen) -> str:
    own = parse_name(file.name)
    return own.key if own and own.kind is not FileKind.BAD else ""


def _checkpoints(files: Sequence[FileSeen]) -> set[str]:
    """Keys of the state files among these, companions and what was put aside left out."""
    names = [own for file in files if (own := parse_name(file.name)) is not None]
    return {own.key for own in names if own.kind is FileKind.FINAL and not own.is_companion}


def _delete_one(directory: Path, key: str) -> list[str]:
    """Delete a key's checkpoint and what was put aside of it; not what is being written."""
    names = {file: parse_name(file.name) for file in slot_directory.scan(directory)}
    going = [file for file, own in names.items() if own and own.key == key and own.kind is not FileKind.TEMPORARY]
    return slot_directory.delete(directory, going)


def _plan(
    directory: Path, last_used: Mapping[str, float], limits: cleanup.Limits, protected: frozenset[str]
) -> list[FileSeen]:
    files = slot_directory.scan(directory)
    return cleanup.plan_cleanup(
        files,
        last_used,
        now=time.time(),
        limits=limits,
        current=protected,
        in_use=protected,
        live_pids=slot_directory.live_pids(files),
    )


def _delete(directory: Path, going: Sequence[FileSeen], keys: Iterable[str]) -> tuple[list[str], bool, set[str]]:
    """Delete; tells what is gone, whether any file of ours is left, and which of the keys have none."""
    deleted = slot_directory.delete(directory, going)
    left = slot_directory.scan(directory)
    return deleted, bool(left), set(cleanup.keys_without_file(left, keys))
