"""Saving: when a checkpoint may be written, under what name, and what it takes for a file to become one.

The server writes to a temporary name; what it wrote is checked (as long as it said, exactly these tokens), made durable
and renamed; then the index is written. Where the slot directory can't be seen, the server writes to the final name and
what was known of that name ends before.
"""

import asyncio
import itertools
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from proxy.checkpoints import cleanup, slot_directory
from proxy.checkpoints.inspection import Expected, FileVerdict, Inspection, inspect, read_head
from proxy.checkpoints.key import final_name, temporary_name
from proxy.checkpoints.record import Checkpoint
from proxy.checkpoints.state_file import Header
from proxy.llama.replies import SlotFile
from proxy.request.fingerprint import ModelIdentity
from proxy.serving.shelf import Shelf, identity_text

SAVE_BACK_OFF_S = 600.0
"""After a failed save, or a clean-up that took it, the same checkpoint isn't saved again for this long."""
TOO_LARGE = "max_gb_below_one_checkpoint"
BLIND = "slot_dir_does_not_show_the_file"
ADAPTERS = "adapters_changed"
REFUSALS = {
    ADAPTERS: "LoRA adapters were changed while the server ran, and it goes on with what it holds of the old ones; "
    "restart it with those that are wanted",
    TOO_LARGE: "MAX_GB is less than one checkpoint",
    BLIND: "SLOT_DIR does not show what the server wrote; it must be the server's --slot-save-path",
    "disk_almost_full": "SLOT_DIR has less free than twice what it takes",
    "disk_below_a_tenth": "less than a tenth of the disk of SLOT_DIR would stay free",
}
_serials = itertools.count(1)


class Saving:
    """Makes files into checkpoints."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def may_save(self, key: str) -> bool:
        """Whether a checkpoint of this key is wanted; no I/O."""
        shelf = self._shelf
        return shelf.is_owner and not shelf.is_blind and time.monotonic() >= shelf.not_before.get(key, 0.0)

    async def refusal(self, identity: ModelIdentity, n_tokens: int) -> str | None:
        """Why a checkpoint of this many tokens is not saved now."""
        if self._shelf.directory is None:
            return None
        try:
            usage = await asyncio.to_thread(shutil.disk_usage, self._shelf.directory)
        except OSError as error:
            return f"slot_dir: {error.strerror}"
        return cleanup.room_for(
            free_bytes=usage.free,
            total_bytes=usage.total,
            expected_bytes=self._expected_bytes(identity, n_tokens),
            max_bytes=self._shelf.max_bytes,
        )

    async def begin(self, key: str) -> str:
        """The name that the server is told to write to."""
        shelf = self._shelf
        if shelf.directory is not None:
            return temporary_name(key, os.getpid(), next(_serials))
        # Written straight over what may be there, so what is known of that ends here, on disk too.
        if shelf.index is not None and shelf.index.get(key) is not None:
            shelf.index.remove(key)
            await shelf.flush()
        return final_name(key)

    async def finish(
        self,
        key: str,
        name: str,
        told: SlotFile,
        tokens: Sequence[int] | None,
        n_tokens: int,
        identity: ModelIdentity,
        build: str,
    ) -> Checkpoint | str:
        """Check what was written and make it a checkpoint; returns why it is none.

        `n_tokens` is how many the slot was believed to hold, `tokens` which, where that is known.
        """
        shelf = self._shelf
        if not told.n_tokens or told.n_tokens != n_tokens:
            return f"n_saved={told.n_tokens}, not {n_tokens}"
        shelf.bytes_per_token[identity_text(identity)] = told.n_bytes / n_tokens
        if 0 < shelf.max_bytes < told.n_bytes:
            return TOO_LARGE
        found = Inspection(FileVerdict.WHOLE)
        if shelf.directory is not None:
            checked = await self._keep(
                shelf.directory, key, name, Expected(tokens, told.n_bytes, check_companion=False)
            )
            if isinstance(checked, str):
                return checked
            found = checked
        record = _record(key, told, identity, build, found)
        shelf.useless.discard(key)
        shelf.suspects.discard(key)
        shelf.made_here.add(key)
        shelf.is_current(key)
        if shelf.index is not None:
            shelf.index.put(record)
        await shelf.flush()
        return record

    async def _keep(self, directory: Path, key: str, name: str, expected: Expected) -> Inspection | str:
        path = directory / name
        found = await asyncio.to_thread(inspect, path, expected)
        if found.verdict in (FileVerdict.MISSING, FileVerdict.UNREADABLE):
            # Each further try would leave a file that we can't find again.
            self._shelf.is_blind = True
            return BLIND
        if found.verdict is not FileVerdict.WHOLE:
            return f"{found.verdict.value} {found.detail}".strip()
        try:
            await asyncio.to_thread(slot_directory.promote, path, directory / final_name(key), time.time())
        except OSError as error:
            return error.strerror or "rename"
        return found

    async def give_up(self, key: str, name: str) -> None:
        """A save failed: away with the fragment, and not again for a while."""
        self._shelf.not_before[key] = time.monotonic() + SAVE_BACK_OFF_S
        await self.discard(name)

    async def discard(self, name: str) -> int | None:
        """Remove a temporary file where it can be seen; returns its format version, if it was a state file."""
        if self._shelf.directory is None:
            return None
        path = self._shelf.directory / name
        head = await asyncio.to_thread(read_head, path)
        with suppress(OSError):
            await asyncio.to_thread(slot_directory.discard, path)
        return head.format_version if isinstance(head, Header) else None

    def _expected_bytes(self, identity: ModelIdentity, n_tokens: int) -> int:
        """From the latest file of the same model; 0 where there was none."""
        model = identity_text(identity)
        if (rate := self._shelf.bytes_per_token.get(model)) is None and self._shelf.index is not None:
            known = self._shelf.index.most_recent(model, identity.lora, identity.server_id)
            rate = known.size_bytes / known.n_tokens if known and known.n_tokens else None
        return int((rate or 0.0) * n_tokens)


def _record(key: str, told: SlotFile, identity: ModelIdentity, build: str, found: Inspection) -> Checkpoint:
    now = time.time()
    return Checkpoint(
        key=key,
        model_id=identity.model_id,
        model=identity_text(identity),
        lora=identity.lora,
        server_id=identity.server_id,
        n_tokens=told.n_tokens,
        size_bytes=told.n_bytes,
        created_at=now,
        last_used_at=now,
        seal=found.seal,
        companion=found.companion,
        format_version=found.header.format_version if found.header else 0,
        build=build,
    )
