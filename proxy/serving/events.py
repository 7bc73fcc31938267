"""What happened, as values: the reporter tells each to whoever listens, beside the log line that people read.

Owns the records only. Listeners are called in passing, on the event loop: they count or remember, and neither wait nor
fail a request. Counterparts: `reporting` makes them, `metrics` and `history` listen.
"""

from collections.abc import Callable
from dataclasses import dataclass

from proxy.serving.model import Model
from proxy.serving.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Proceeded:
    """A request is forwarded now."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Settled:
    """A request that the server answered is over and accounted for."""

    ticket: Ticket
    ms_per_token: float
    """What prefilling a token costs on this server; 0 where that is not known."""


@dataclass(frozen=True, slots=True)
class Left:
    """A request has gone its way, answered or not; an answered one is settled soon after."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class ServerMet:
    """A server process was met for the first time."""

    model: Model


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """A warm-up has ended well."""

    prompt_n: int


@dataclass(frozen=True, slots=True)
class Anchored:
    """A first turn's prompt was prefilled, to be kept in host memory."""

    prompt_n: int


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint was saved."""

    file: str


@dataclass(frozen=True, slots=True)
class CheckpointRestored:
    """A checkpoint was restored."""

    file: str


@dataclass(frozen=True, slots=True)
class CheckpointVerified:
    """A checkpoint was proven good on the server."""

    file: str


@dataclass(frozen=True, slots=True)
class CheckpointUnfit:
    """A checkpoint is not restored."""

    file: str
    verdict: str


@dataclass(frozen=True, slots=True)
class CheckpointsDeleted:
    """Checkpoints were cleaned up."""

    count: int


@dataclass(frozen=True, slots=True)
class SlotCopied:
    """A slot's content was copied to the server's host memory, or should have been."""

    has_worked: bool


@dataclass(frozen=True, slots=True)
class SlotPredicted:
    """A request landed in a slot, where one was predicted."""

    is_right: bool


@dataclass(frozen=True, slots=True)
class ClaimFailed:
    """Less was reused than was claimed."""

    source: str


@dataclass(frozen=True, slots=True)
class Troubled:
    """Something does not work as it could."""

    reason: str
    words: str
    is_bug: bool = False

    @property
    def kind(self) -> str:
        """The reason without what it is about: one of a fixed few."""
        return self.reason.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Eased:
    """A trouble is over."""

    reason: str


Event = (
    Proceeded
    | Settled
    | Left
    | ServerMet
    | WarmedUp
    | Anchored
    | CheckpointSaved
    | CheckpointRestored
    | CheckpointVerified
    | CheckpointUnfit
    | CheckpointsDeleted
    | SlotCopied
    | SlotPredicted
    | ClaimFailed
    | Troubled
    | Eased
)
Listener = Callable[[Event], None]
