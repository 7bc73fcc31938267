"""What `/status` says, as typed records: the schema of that JSON is these classes, and each field's words are here.

Owns the shape alone; counterpart: `snapshot` fills it. No text of any prompt, no key, no path but SLOT_DIR has a
place in it.
`VERSION` grows when a field goes or changes its meaning; new fields may come at any time.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from proxy.serving.history import Advice, Day, Past

VERSION = 1
_documented = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class ProxyStatus:
    """This proxy."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    version: str
    started_at: float
    """Seconds since 1970."""
    upstream: str
    """The server's address."""
    observes_only: bool
    persists: bool
    """Whether checkpoints are saved and restored."""
    slot_dir: str
    """Where it looks for them; empty where it can't see them."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The llama-server behind it. The three-valued fields are true (seen to work), false (seen not to), null."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    state: str
    """ready, sleeping, locked (wants a key that isn't configured here), loading, unreachable, unknown."""
    build: str
    model: str
    slots: int
    context_tokens: int
    """Of one slot; 0 where that is not known."""
    prompt_ms_per_token: float
    """What prefilling a token costs, measured; 0 before the first measurement."""
    rolls_back: bool | None
    restores: bool | None
    keeps_copies: bool | None
    shows_slots: bool | None
    acts_on_slots: bool | None
    renders_exactly: bool | None
    """Whether renderings have the server's own token counts."""
    longest_prefix_tokens: int
    """Of the prefixes known now; 0 for none."""


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot, as far as the proxy knows; it doesn't ask the server for this."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    slot: int
    holds: str
    """nothing, prefix, conversation, leftover (of the proxy's own probing), unknown (somebody else's work)."""
    checkpoint: str
    """Key of the prefix that its content begins with."""
    prefix_tokens: int
    other_tokens: int
    """Those after the prefix, or all where it is unknown what they are."""
    free_tokens: int | None
    is_working: bool
    is_estimate: bool
    """While a request runs its tokens are estimated from its size."""
    source: str
    """Of the request that runs in it."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Requests that are here now."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    running: int
    """Passed to the server."""
    waiting: int
    """For a free slot."""


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """One checkpoint on disk."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    key: str
    model: str
    tokens: int
    size_bytes: int
    created_at: float
    last_used_at: float
    uses: int
    verdict: str
    """Of the last verification: good, another word, or nothing."""


@dataclass(frozen=True, slots=True)
class DiskStatus:
    """All checkpoints together."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    checkpoints: int
    size_bytes: int
    may_delete: bool
    """Whether this proxy may: not beside another one on the same directory."""
    sees_files: bool | None
    """Whether what the server saves was seen to appear in SLOT_DIR."""


@dataclass(frozen=True, slots=True)
class Status:
    """All of it."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    version: int
    """Of this schema."""
    now: float
    proxy: ProxyStatus
    server: ServerStatus
    slots: list[SlotStatus]
    queue: QueueStatus
    today: Day
    requests: list[Past]
    """The last ones, newest first."""
    remembered: int
    """How many requests are remembered in all."""
    disk: DiskStatus
    checkpoints: list[CheckpointStatus]
    """The most recently used first; the page gets no more than some."""
    advice: list[Advice]
    """Newest first."""


def schema() -> dict[str, Any]:
    """The JSON Schema of `/status`."""
    return TypeAdapter(Status).json_schema(mode="serialization")
