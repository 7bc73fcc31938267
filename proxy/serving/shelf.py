"""The shelf: what is known of checkpoints while the proxy runs, shared by those who restore, save and clean up.

Changed on the event loop only, between two `await`s. Holds the index (opened by `store`), which files the server is
reading or writing, and what was learned of files since the start.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from proxy.checkpoints.index import Index
from proxy.request.fingerprint import ModelIdentity
from proxy.serving.reporting import Reporter
from proxy.settings import Settings

CURRENT = 4
"""What a request's prefix consists of at most: two stems, that of all sessions, and that of its folder's sessions."""


def identity_text(identity: ModelIdentity) -> str:
    """Which weights, as it goes into a checkpoint's key."""
    settled = identity.settled()
    return f"{settled.file}|{settled.meta}|{settled.model_path}"


@dataclass(slots=True)
class Shelf:
    """Checkpoints in memory."""

    settings: Settings
    report: Reporter
    index: Index | None = None
    in_use: Counter[str] = field(default_factory=Counter)
    """Keys of files that the server is reading or writing, or is about to."""
    current: "deque[str]" = field(default_factory=lambda: deque(maxlen=CURRENT))
    """Keys of the prefixes that were saved or used last."""
    useless: set[str] = field(default_factory=set)
    """Keys that failed on this server process."""
    suspects: set[str] = field(default_factory=set)
    """Keys that are never restored again by this proxy, unless they are saved anew."""
    made_here: set[str] = field(default_factory=set)
    """Keys saved by this server process: what it says of them then and now can be compared."""
    not_before: dict[str, float] = field(default_factory=dict)
    """When a key may be saved again, on the monotonic clock."""
    is_blind: bool = False
    """Whether the slot directory turned out not to be the one that this server writes to."""
    bytes_per_token: dict[str, float] = field(default_factory=dict)
    """Of the latest file of each model."""
    flushed_at: float = field(default_factory=time.monotonic)

    @property
    def directory(self) -> Path | None:
        """The server's slot directory as seen from here."""
        return self.settings.slot_dir

    @property
    def max_bytes(self) -> int:
        """All checkpoints together; 0 is no limit."""
        return int(self.settings.max_gb * 1e9)

    @property
    def protected(self) -> frozenset[str]:
        """Keys whose files must not go."""
        return frozenset({*self.current, *self.in_use})

    @property
    def is_owner(self) -> bool:
        """Whether saving and deleting are ours."""
        return self.index is not None and self.index.is_owner

    @contextmanager
    def using(self, key: str) -> Iterator[None]:
        """No clean-up takes this file meanwhile."""
        self.in_use[key] += 1
        try:
            yield
        finally:
            self.in_use[key] -= 1
            if not self.in_use[key]:
                del self.in_use[key]

    def is_current(self, key: str) -> None:
        """A checkpoint was saved or used just now."""
        if key in self.current:
            self.current.remove(key)
        self.current.append(key)

    def begin_process(self) -> None:
        """Another server process: nothing is known of files on it."""
        self.useless.clear()
        self.made_here.clear()
        self.is_blind = False

    async def flush(self) -> None:
        """Write the index."""
        if self.index is None:
            return
        self.flushed_at = time.monotonic()
        failure = await asyncio.to_thread(self.index.flush)
        if failure:
            path = self.settings.dir / "index.json"
            self.report.trouble("index_not_written", f"{path} can't be written: {failure}")
