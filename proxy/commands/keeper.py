"""Whoever keeps the checkpoints now: the running proxy, or else this command, on the files themselves.

A running proxy holds the lock on `DIR`, so only it changes what is there. Without one the files are read without a
lock, and changed under the lock that the proxy would take.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter

from proxy.checkpoints import slot_directory
from proxy.checkpoints.index import INDEX_NAME
from proxy.checkpoints.index_file import IndexState, read_index
from proxy.checkpoints.inspection import proof
from proxy.checkpoints.listing import Listed, listing
from proxy.checkpoints.record import Checkpoint
from proxy.commands.admin_client import AdminClient, NobodyThereError
from proxy.errors import PrefixCacheError
from proxy.serving.housekeeping import Cleaned
from proxy.serving.reporting import Reporter
from proxy.serving.store import Store
from proxy.settings import Settings

T = TypeVar("T")
LONG_S = 600.0
"""For a checkpoint of many gigabytes to be read whole."""
LISTED, CLEANED = TypeAdapter(list[Listed]), TypeAdapter(Cleaned)


class NothingKeptError(PrefixCacheError):
    """There are no checkpoints to look at."""


class Keeper(Protocol):
    """Looks after checkpoints."""

    @property
    def where(self) -> str:
        """Who was asked, for people."""
        ...

    def listed(self) -> list[Listed]:
        """Everything there is."""
        ...

    def proof(self, key: str) -> str:
        """Whether a file still is what was saved."""
        ...

    def delete(self, key: str) -> str:
        """Delete a checkpoint; why not, or nothing."""
        ...

    def prune(self, *, is_dry_run: bool) -> Cleaned:
        """Delete what the limits say."""
        ...


def keeper(settings: Settings) -> Keeper:
    """Who keeps them now."""
    client = AdminClient.of(settings)
    if client is not None:
        try:
            # One that runs without PERSIST has no part in what lies on the disk.
            if client.status()["proxy"].get("persists"):
                return Beside(client)
        except NobodyThereError:
            pass
    return Files(settings)


@dataclass(frozen=True, slots=True)
class Beside:
    """The running proxy keeps them."""

    client: AdminClient

    @property
    def where(self) -> str:
        """Who was asked."""
        return f"the proxy at {self.client.address}"

    def listed(self) -> list[Listed]:
        """Everything there is."""
        return LISTED.validate_python(self.client.ask("/checkpoints").json["checkpoints"])

    def proof(self, key: str) -> str:
        """Whether a file still is what was saved."""
        answer = self.client.ask(f"/checkpoints/{quote(key)}", timeout_s=LONG_S)
        return str(answer.json.get("proof", "")) if answer.status == HTTPStatus.OK else ""

    def delete(self, key: str) -> str:
        """Delete a checkpoint."""
        return self.client.ask(f"/checkpoints/{quote(key)}/delete", "POST").error

    def prune(self, *, is_dry_run: bool) -> Cleaned:
        """Delete what the limits say."""
        answer = self.client.ask("/prune", "GET" if is_dry_run else "POST", LONG_S)
        return CLEANED.validate_python(answer.json)


class Files:
    """Nobody keeps them: this command looks at the files, and changes them under the lock."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.model_copy(update={"persist": True})
        if not settings.dir.is_dir():
            raise NothingKeptError(f"DIR={settings.dir} is no directory: no proxy has kept checkpoints there")

    @property
    def where(self) -> str:
        """Which files."""
        return str(self._settings.dir / INDEX_NAME)

    def listed(self) -> list[Listed]:
        """Everything there is."""
        directory = self._settings.slot_dir
        try:
            files = None if directory is None else slot_directory.scan(directory)
        except OSError as error:
            raise NothingKeptError(f"SLOT_DIR={directory} can't be read: {error.strerror}") from error
        return listing(self._records(), files)

    def proof(self, key: str) -> str:
        """Whether a file still is what was saved."""
        record = next((one for one in self._records() if one.key == key), None)
        directory = self._settings.slot_dir
        return "" if record is None or directory is None else proof(directory, record)

    def delete(self, key: str) -> str:
        """Delete a checkpoint."""
        return self._with_store(lambda store: store.delete(key)) or ""

    def prune(self, *, is_dry_run: bool) -> Cleaned:
        """Delete what the limits say."""
        return self._with_store(lambda store: store.prune(is_dry_run=is_dry_run))

    def _records(self) -> Sequence[Checkpoint]:
        path = self._settings.dir / INDEX_NAME
        try:
            read = read_index(path.read_bytes())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise NothingKeptError(f"{path} can't be read: {error.strerror}") from error
        if read.state is IndexState.NEWER:
            raise NothingKeptError(f"{path} is of a newer pi-prefix-cache: {read.reason}")
        return read.records

    def _with_store(self, work: Callable[[Store], Awaitable[T]]) -> T:
        async def run() -> T:
            store = Store(self._settings, Reporter())
            await store.open()
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())
