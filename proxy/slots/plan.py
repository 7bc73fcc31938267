"""A plan: the steps to take before a request is forwarded, as a frozen value, and what is expected of them.

The planner makes plans, the executor carries them out in order; a step that fails ends the plan and the request goes
on as it is. There are no other ways to change what the server holds.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from proxy.slots.holding import Talk


@dataclass(frozen=True, slots=True)
class Copy:
    """Have the server copy a slot's content to its host memory; the slot keeps it."""

    slot: int


@dataclass(frozen=True, slots=True)
class Clear:
    """Empty a slot whose content has a copy or is worth nothing."""

    slot: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Have the server read a checkpoint file into a slot."""

    slot: int
    key: str


@dataclass(frozen=True, slots=True)
class Warm:
    """Prefill the exact prefix; the server chooses the slot."""

    key: str


@dataclass(frozen=True, slots=True)
class Save:
    """Write what was just warmed to a checkpoint file."""

    key: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Prefill an exact prefix with one more token, and copy that to host memory."""

    key: str


@dataclass(frozen=True, slots=True)
class Anchor:
    """Prefill the request's own prompt with another last token, and copy that to host memory."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Have the server load this anchor and copy it again: behind all else in host memory it is in nobody's way."""

    anchor: Talk


Step = Copy | Clear | Restore | Warm | Save | Keep | Anchor | Requeue


class Source(StrEnum):
    """How a request's prefix came to be warm."""

    HIT = "hit"
    CONTINUE = "continue"
    RESTORE = "restore"
    WARM_UP = "warm-up"
    RESUME = "resume"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do before forwarding, why, and how many prompt tokens should then come from the cache."""

    source: Source
    reason: str
    steps: tuple[Step, ...] = ()
    expected_cache_n: int = 0
    """0 claims nothing."""
    slot: int | None = field(default=None)
    """Where the server is expected to put the request."""


def nothing(reason: str) -> Plan:
    """Forward as it is."""
    return Plan(Source.NONE, reason)
