"""A ticket: one request's way through the engine, from arrival to settlement.

It is also the watcher of the passing answer. Whatever happens (answered, cut, cancelled, never forwarded) it is settled
exactly once; `settle` may be called any number of times.
"""

import asyncio
import time
from collections.abc import Callable

from multidict import CIMultiDictProxy

from proxy.llama.answer import AnswerReader, Figures
from proxy.serving.visit import Visit
from proxy.slots.holding import Holding, Need, Nothing, Talk
from proxy.slots.ledger import Look
from proxy.slots.plan import Plan, nothing


class Ticket:
    """One request in the engine."""

    def __init__(
        self,
        number: int,
        visit: Visit,
        on_began: Callable[["Ticket"], None],
        on_settled: Callable[["Ticket"], None],
        patience_s: float,
    ) -> None:
        self.number = number
        self.visit = visit
        self.plan: Plan = nothing("not_planned")
        self.need = Need()
        self.n_ended = 0
        """How many requests had left their slots when its plan was made."""
        self.fingerprint = ""
        self.places = 0
        """Slots taken at the gate."""
        self.slot: int | None = None
        self.before: Holding = Nothing()
        """What its slot was believed to hold before."""
        self.loaded: Talk | None = None
        """What the server was believed to load into its slot from host memory."""
        self.older: tuple[Talk, ...] = ()
        """What stood before that there."""
        self.arrived = time.monotonic()
        self.patience_s = patience_s
        """How long it waits for work of ours at most."""
        self.ours_ms = 0.0
        """Milliseconds that the request waited for work of ours."""
        self.queued_ms = 0.0
        """Of these, those before it was admitted: the server had no slot left."""
        self.n_rendered = 0
        """Tokens of its own rendering, where it was rendered for this very request."""
        self.n_anchored = 0
        """Tokens of its prompt that were prefilled for an anchor."""
        self.status = 0
        self.path = ""
        self.is_whole = False
        self.was_sent = False
        self.tasks: tuple[int | None, ...] = ()
        """The task number of each slot, as last seen when it was sent."""
        self.over = asyncio.Event()
        """Set when it is accounted for: whatever is still being looked up for it comes too late."""
        self.has_begun = False
        self.is_reclaimed = False
        """Its slot was given to others while the client still reads."""
        self.first_byte_ms = 0.0
        self.first_token_ms = 0.0
        """From its arrival to the first piece of its answer; headers come as soon as it has got a slot."""
        self.figures: Figures | None = None
        self.failed_with_error = False
        self.seen: Look | None = None
        """Its slot, as it was seen when the answer began."""
        self._reader: AnswerReader | None = None
        self._on_began = on_began
        self._on_settled = on_settled
        self._is_settled = False

    def __repr__(self) -> str:
        return f"<Ticket {self.number} {self.plan.source} slot={self.slot} settled={self._is_settled}>"

    @property
    def is_streamed(self) -> bool:
        """Whether its answer comes in pieces: then its headers come when it has got a slot."""
        return self.visit.request is not None and self.visit.request.stream

    def admitted(self) -> None:
        """It may have a slot."""
        self.queued_ms = (time.monotonic() - self.arrived) * 1000

    def prepared(self) -> None:
        """Everything of ours that the request waited for is done."""
        self.ours_ms = (time.monotonic() - self.arrived) * 1000

    def began(self, status: int, headers: CIMultiDictProxy[str]) -> None:
        """The upstream's headers came: a streamed request has got its slot, any other one is done."""
        self.status = status
        self.has_begun = True
        self.first_byte_ms = (time.monotonic() - self.arrived) * 1000
        self._reader = AnswerReader(headers.get("Content-Type", ""), headers.get("Content-Encoding", ""))
        self._on_began(self)

    def passed(self, data: bytes) -> None:
        """A piece of the answer passes."""
        if not self.first_token_ms:
            self.first_token_ms = (time.monotonic() - self.arrived) * 1000
        if self._reader is not None:
            self._reader.feed(data)

    def ended(self, complete: bool) -> None:
        """The answer is over."""
        self.is_whole = complete
        self.settle()

    def settle(self) -> None:
        """Close the account, once."""
        if self._is_settled:
            return
        self._is_settled = True
        if self._reader is not None:
            self.figures = self._reader.finish()
            self.failed_with_error = self._reader.error
            # A client that has heard the end of a stream may hang up before the connection is done with.
            self.is_whole = self.is_whole or self._reader.is_done
        self._on_settled(self)
