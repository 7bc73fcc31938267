"""Why requests found no prefix: each miss compared with the nearest fingerprint that was known when it came.

Listens to the reporter, after a request is over: nobody waits for it. Keeps hashes of parts, no text. Bounded, in
memory only; a restart begins anew. Counterpart: `request.parts` takes apart and compares.
"""

import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from proxy.request.fingerprint import ModelIdentity, shown
from proxy.request.parts import Change, Parts, changes, likeness, parts
from proxy.serving.events import Event, Left, Settled
from proxy.serving.history import History
from proxy.serving.model import Model
from proxy.serving.ticket import Ticket
from proxy.slots.plan import Source

MAX_KNOWN = 64
MAX_MISSES = 32
MAX_CHANGES = 40
MISSES = (Source.NONE, Source.WARM_UP)


@dataclass(frozen=True, slots=True)
class Explanation:
    """One request that found no prefix."""

    request: int
    """Its number, as in the status."""
    ended_at: float
    """Seconds since 1970."""
    source: str
    reason: str
    fingerprint: str
    has_prefix: bool
    """Whether it has a stable prefix at all; nothing is compared without."""
    is_known: bool
    """Whether an earlier request had the same fingerprint: then it isn't the request that has changed."""
    nearest: str
    """The fingerprint of those known then that is most like it, or nothing."""
    nearest_seen_at: float
    changes: tuple[Change, ...]
    """What differs from that one."""
    left_out: int
    """Changes that are not told, for there are too many."""


@dataclass(slots=True)
class _Known:
    parts: Parts
    seen_at: float


class Explanations:
    """Remembers what was known, and explains what missed it."""

    def __init__(self, model: Callable[[], Model], history: History, clock: Callable[[], float] = time.time) -> None:
        self._model, self._history, self._clock = model, history, clock
        self._salt = secrets.token_bytes(16)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self.misses: deque[Explanation] = deque(maxlen=MAX_MISSES)

    def __call__(self, event: Event) -> None:
        """Hear what happened; the history has heard it before."""
        match event:
            case Settled(ticket):
                self._over(ticket)
            case Left(ticket) if not ticket.has_begun:
                self._over(ticket)

    def find(self, number: int | None = None) -> Explanation | None:
        """Of the request with this number; else of the last miss, one that has a prefix before others."""
        if number is not None:
            return next((one for one in self.misses if one.request == number), None)
        latest = [*reversed(self.misses)]
        return next((one for one in latest if one.has_prefix), latest[0] if latest else None)

    def _over(self, ticket: Ticket) -> None:
        visit = ticket.visit
        name = ticket.fingerprint or visit.rendering
        before = self._known.get(name)
        taken = before.parts if before else self._taken_apart(ticket)
        if ticket.plan.source in MISSES:
            self.misses.append(self._explained(ticket, taken, is_known=before is not None))
        if taken is not None:
            self._known[name] = _Known(taken, self._clock())
            self._known.move_to_end(name)
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def _taken_apart(self, ticket: Ticket) -> Parts | None:
        visit = ticket.visit
        if visit.request is None or visit.prefix is None:
            return None
        others = {"client (User-Agent)": visit.client, **_told(self._model().identity), "model": visit.model}
        return parts(visit.request, visit.prefix, others, self._salt)

    def _explained(self, ticket: Ticket, taken: Parts | None, *, is_known: bool) -> Explanation:
        nearest, found = "", []
        if taken is not None and not is_known and self._known:
            nearest = max(self._known, key=lambda name: likeness(self._known[name].parts, taken))
            found = changes(self._known[nearest].parts, taken)
        return Explanation(
            request=self._history.requests[-1].number if self._history.requests else 0,
            ended_at=self._clock(),
            source=str(ticket.plan.source),
            reason=ticket.plan.reason,
            fingerprint=shown(ticket.fingerprint),
            has_prefix=taken is not None,
            is_known=is_known,
            nearest=shown(nearest),
            nearest_seen_at=self._known[nearest].seen_at if nearest else 0.0,
            changes=tuple(found[:MAX_CHANGES]),
            left_out=max(0, len(found) - MAX_CHANGES),
        )


def _told(identity: ModelIdentity | None) -> dict[str, str]:
    if identity is None:
        return {}
    settled = identity.settled()
    return {
        "the model (its file, or what the server says of it)": f"{settled.file}|{settled.meta}|{settled.model_path}",
        "LoRA adapters": settled.lora,
        "SERVER_ID": settled.server_id,
        "the server's name for the model": settled.model_id,
    }
