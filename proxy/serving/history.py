"""What happened lately, for people who look: the last requests, today's sums, the troubles, who is being served.

Owns these in memory, all bounded, none of it on disk; a restart begins anew. Knows no prompt's text: figures come from
the answers themselves, the rest is sources, reasons and times. Listens to the reporter; counterpart: `status`.
"""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from http import HTTPStatus
from itertools import islice
from typing import ClassVar

from pydantic import ConfigDict

from proxy.request.fingerprint import shown
from proxy.serving.events import Anchored, Eased, Event, Left, Proceeded, Settled, Troubled, WarmedUp
from proxy.serving.ticket import Ticket
from proxy.slots.plan import Source

MAX_REQUESTS = 10_000
MAX_ADVICE = 50
PREPARED = (Source.HIT, Source.RESTORE, Source.RESUME)
"""Where what was reused had been prepared by us. A conversation that goes on in its slot is the server's own merit, and
a warm-up prefills what is then reused."""


_documented = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class Past:
    """One request that is over; None is what its answer didn't tell."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    number: int
    """Grows with each request that ends."""
    ended_at: float
    """Seconds since 1970."""
    source: str
    """How its prefix came to be warm: hit, continue, restore, warm-up, resume, none."""
    reason: str
    outcome: str
    """answered, cut (the client or the server ended it early), refused (by the server), unanswered (by nobody)."""
    status: int
    """HTTP status; 0 where nobody answered."""
    fingerprint: str
    """The first 16 hex digits, or nothing."""
    slot: int | None
    prompt_tokens: int | None
    prefilled_tokens: int | None
    reused_tokens: int | None
    saved_tokens: int
    """Reused thanks to what the proxy had prepared."""
    saved_s: float
    """Seconds that prefilling these would have taken, at the rate measured on this server."""
    queued_ms: float
    """Waited for a slot."""
    prepared_ms: float
    """Waited for a warm-up, a restore and all else of ours."""
    first_token_ms: float
    """From its arrival to the first piece of its answer, all waiting included; of a whole answer to all of it."""
    total_ms: float


@dataclass(frozen=True, slots=True)
class Advice:
    """Something that does not work as it could."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    reason: str
    words: str
    first_at: float
    last_at: float
    times: int
    is_bug: bool


@dataclass(slots=True)
class Day:
    """Sums since midnight, on this machine's clock."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    date: str = ""
    requests: int = 0
    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    saved_tokens: int = 0
    saved_s: float = 0.0
    warm_up_tokens: int = 0
    """Prefilled by warm-ups and for anchors, which answers don't count."""
    by_source: Counter[str] = field(default_factory=Counter)


def outcome(ticket: Ticket) -> str:
    """How a request ended."""
    if not ticket.has_begun:
        return "unanswered"
    if ticket.status >= HTTPStatus.BAD_REQUEST:
        return "refused"
    return "answered" if ticket.is_whole else "cut"


def saved_tokens(ticket: Ticket) -> int:
    """Prompt tokens that were reused because they had been prepared, by the answer's own figures."""
    reused = ticket.figures.cache_n if ticket.figures else None
    return max(0, (reused or 0) - ticket.n_anchored) if ticket.plan.source in PREPARED else 0


class History:
    """Remembers for the status page."""

    def __init__(self, clock: Callable[[], float] = time.time, limit: int = MAX_REQUESTS) -> None:
        self._clock = clock
        self.started_at = clock()
        self.requests: deque[Past] = deque(maxlen=limit)
        self.running: dict[int, Ticket] = {}
        """Requests that are forwarded and not over, by number."""
        self.advice: OrderedDict[str, Advice] = OrderedDict()
        self.changes = 0
        self._changed = asyncio.Event()
        self._day = Day()
        self._count = 0

    def __repr__(self) -> str:
        return f"<History {len(self.requests)} requests, {len(self.running)} running, {len(self.advice)} troubles>"

    def __call__(self, event: Event) -> None:
        """Hear what happened."""
        match event:
            case Proceeded(ticket):
                self.running[ticket.number] = ticket
            case Left(ticket):
                self.running.pop(ticket.number, None)
                if not ticket.has_begun:
                    self.remember(past(ticket, 0.0))
            case Settled(ticket, ms_per_token):
                self.remember(past(ticket, ms_per_token))
            case WarmedUp(prompt_n) | Anchored(prompt_n):
                self.today.warm_up_tokens += prompt_n
            case Troubled():
                self._advise(event)
            case Eased(reason):
                self.advice.pop(reason, None)
        self.touch()

    @property
    def today(self) -> Day:
        """The sums of this day."""
        date = datetime.fromtimestamp(self._clock()).strftime("%Y-%m-%d")
        if self._day.date != date:
            self._day = Day(date)
        return self._day

    def remember(self, one: Past) -> None:
        """Enter a request that is over; its number and time are given here."""
        self._count += 1
        self.requests.append(replace(one, number=self._count, ended_at=self._clock()))
        day = self.today
        day.requests += 1
        day.prompt_tokens += one.prompt_tokens or 0
        day.prefilled_tokens += one.prefilled_tokens or 0
        day.reused_tokens += one.reused_tokens or 0
        day.saved_tokens += one.saved_tokens
        day.saved_s += one.saved_s
        day.by_source[one.source] += 1

    def latest(self, limit: int, after: int = 0) -> list[Past]:
        """The last requests, newest first; only those after a number."""
        return [one for one in islice(reversed(self.requests), limit) if one.number > after]

    def touch(self) -> None:
        """Something has changed: wake those who wait."""
        self.changes += 1
        self._changed.set()

    async def changed(self, since: int) -> int:
        """Wait for a change after the given one; returns the latest."""
        while self.changes == since:
            self._changed.clear()
            await self._changed.wait()
        return self.changes

    def _advise(self, trouble: Troubled) -> None:
        now = self._clock()
        before = self.advice.pop(trouble.reason, None)
        first_at, times = (before.first_at, before.times) if before else (now, 0)
        self.advice[trouble.reason] = Advice(trouble.reason, trouble.words, first_at, now, times + 1, trouble.is_bug)
        while len(self.advice) > MAX_ADVICE:
            self.advice.popitem(last=False)


def past(ticket: Ticket, ms_per_token: float) -> Past:
    """A ticket that is settled, as it is remembered."""
    figures, saved = ticket.figures, saved_tokens(ticket)
    return Past(
        number=0,
        ended_at=0.0,
        source=str(ticket.plan.source),
        reason=ticket.plan.reason,
        outcome=outcome(ticket),
        status=ticket.status,
        fingerprint=shown(ticket.fingerprint),
        slot=ticket.slot,
        prompt_tokens=figures.prompt_tokens if figures else None,
        prefilled_tokens=figures.prompt_n if figures else None,
        reused_tokens=figures.cache_n if figures else None,
        saved_tokens=saved,
        saved_s=round(saved * ms_per_token / 1000, 3),
        queued_ms=round(ticket.queued_ms, 2),
        prepared_ms=round(max(0.0, ticket.ours_ms - ticket.queued_ms), 2),
        first_token_ms=round(ticket.first_token_ms, 1),
        total_ms=round((time.monotonic() - ticket.arrived) * 1000, 1),
    )
