"""Neighbours: what requests that run beside one that is about to be forwarded may leave in its way.

A slot that the server frees between planning and the request's arrival may share the request's beginning. It would be
chosen and overwritten, and what was prepared would be in vain. Three things are done about it, and only where such a
neighbour runs: a last look, before forwarding, whether one has ended, so that the plan is made again with what it left;
where any task makes the server move idle slots to host memory, an empty task right ahead of whatever comes back from
there; and what comes back is asked for by a prompt of ours, one token longer than what was kept, in the same call as
the empty task: the server takes both up at once, and no slot becomes free between them. In a slot of its own the
conversation is the best choice for its request. Where the request's tokens are not known, empty tasks are sent until it
has begun. What this leaves open: a warm-up or a request that goes on from a restored prefix, for as long as a batch
takes; behind an empty task those would be given what a neighbour has just left.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

from proxy.llama.client import ControlFailed
from proxy.serving.context import Context
from proxy.serving.resuming import Resuming, beginning
from proxy.serving.slot_steps import unknown_if_broken_off
from proxy.serving.ticket import Ticket
from proxy.slots.holding import Nothing, Talk, Unknown, share
from proxy.slots.ledger import SlotBelief
from proxy.slots.plan import Source
from proxy.slots.prediction import choose, is_from
from proxy.slots.truncation import loaded_exactly, whole_after

ENDS_S = 0.25
"""How long the end of an answer may take to come here after its slot is free; a slower reader isn't awaited."""
PULSE_PAUSES_S = [min(0.05, 0.0005 * 1.3**n) for n in range(50)]
"""Quick at first: a request takes some milliseconds from here to the server's queue, the longest ones some hundred."""
HEAD_START_S = 0.001
"""By how much an empty task is sent ahead of the request."""


class Neighbours:
    """Minds the requests inside, for one context."""

    def __init__(self, context: Context, inside: Mapping[int, Ticket]) -> None:
        self._context = context
        self._resuming = Resuming(context)
        self._inside = inside

    def sharing(self, ticket: Ticket) -> list[SlotBelief]:
        """Slots at work for others that may share this request's beginning."""
        others = [b for b in self._context.model.ledger.slots if b.lease not in (0, ticket.number)]
        return [b for b in others if share(ticket.need, b.soon_holds) != 0]

    def runs_beside(self, ticket: Ticket) -> bool:
        """Whether a slot may become free that shares this request's beginning; of some nobody knows their slot."""
        inside = (one for one in self._inside.values() if one is not ticket)
        return bool(self.sharing(ticket)) or any(one.was_sent and one.slot is None for one in inside)

    async def have_ended(self, ticket: Ticket) -> bool:
        """Whether one has ended since the request's plan was made, or has a free slot now: its account is awaited."""
        model = self._context.model
        if model.ledger.n_ended != ticket.n_ended:
            return True
        sharing = self.sharing(ticket)
        if not sharing or not model.able.shows_slots:
            return False
        free = {look.slot for look in await model.client.slots(ticket.visit.auth) if not look.is_busy}
        over = [self._inside[b.lease] for b in sharing if b.slot in free and b.lease in self._inside]
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDS_S):
                for one in over:
                    await one.over.wait()
        # The look may have taken a batch's time, and show the slots as they were before it.
        return model.ledger.n_ended != ticket.n_ended

    async def keep_away(self, ticket: Ticket) -> None:
        """Have idle slots moved to host memory ahead of what is to be loaded from there.

        Raises PlanAgain where what was loaded can't be gone on from.
        """
        model = self._context.model
        is_loaded = ticket.plan.source is Source.RESUME and model.able.keeps_copies and model.able.clears_idle
        if not is_loaded or not self.runs_beside(ticket):
            return
        talk = model.ledger.longest_copy(ticket.need)
        tokens = await beginning(self._context, ticket, talk) if talk is not None else []
        if tokens and talk is not None:
            await self._bring_back(ticket, talk, tokens)
            return
        # The answer to an empty task tells that a batch has just begun: the next one and the request wait for its end.
        with self._pulsing():
            if not await self._push(ticket):
                return
        self._context.spawn(self._go_on_pushing(ticket))
        await asyncio.sleep(HEAD_START_S)

    async def _bring_back(self, ticket: Ticket, talk: Talk, tokens: list[int]) -> None:
        """Have the server load the copy into a slot, right behind an empty task."""
        context = self._context
        ledger, expected = context.model.ledger, choose(ticket.need, context.model.ledger.idle())
        limit_s = context.settings.warm_timeout
        with self._pulsing():
            with unknown_if_broken_off(ledger, expected):
                warmed = await context.model.client.prefill(tokens, ticket.visit.auth, limit_s, is_behind_empty=True)
            whole = whole_after(Nothing(), talk, warmed.cache_n, context.model.able)
            held = replace(talk, n_tokens=warmed.cache_n + warmed.prompt_n, whole=whole)
            ledger.taken(talk)
            ledger.take_over(warmed.slot, held, None if is_from(talk, warmed.cache_n) else ticket.need)
            await self._look(ticket)
        context.report.warmed(warmed.slot, warmed)
        if context.model.able.truncates and not loaded_exactly(ticket.need, talk, (), warmed.cache_n):
            ledger.hold(warmed.slot, Unknown(len(tokens)))
            await self._resuming.not_brought_back(ticket, warmed.slot, talk)

    async def _go_on_pushing(self, ticket: Ticket) -> None:
        """One at a time: more of them would take the slots that the request could get."""
        with self._pulsing():
            for pause in PULSE_PAUSES_S:
                if ticket.has_begun or ticket.slot is not None or ticket.over.is_set():
                    break
                if not await self._push(ticket):
                    break
                await asyncio.sleep(pause)
            await self._look(ticket)

    async def _look(self, ticket: Ticket) -> None:
        with suppress(ControlFailed):
            looks = await self._context.model.client.slots(ticket.visit.auth)
            self._context.observe(looks, [look.slot for look in looks if self._context.is_new(look)])

    async def _push(self, ticket: Ticket) -> bool:
        """One empty task; False where it fails: then it goes without."""
        try:
            await self._context.model.client.copy(None, ticket.visit.auth, self._context.settings.control_timeout)
        except ControlFailed:
            return False
        return True

    @contextmanager
    def _pulsing(self) -> Iterator[None]:
        self._context.pulses += 1
        try:
            yield
        finally:
            self._context.pulses -= 1
            self._context.pulsed_at = time.monotonic()
