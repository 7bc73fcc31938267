"""The executor: does what a plan says, step by step, and enters each step's outcome.

A step that fails ends the plan: what was done is entered, the rest is left, the request goes on. Each step is bounded
by its own limit and by what is left of `MAX_SILENCE`, which the engine enforces around all of it.

A warm-up is a flight of its own: others that want the same prefix wait for it, and it outlives a client that leaves as
long as one of them is still there. It is ended (the server notices within a batch) when nobody wants it any more or the
one who started it has waited long enough; what it prefilled so far stays useful to the request itself.
"""

import asyncio
import time
from collections.abc import Coroutine

from proxy.llama.client import Auth
from proxy.llama.replies import Warmed
from proxy.serving.anchors import Anchors
from proxy.serving.checkpoint_steps import CheckpointSteps
from proxy.serving.context import Context, PlanAgain, PlanBroken
from proxy.serving.model import ExactPrefix
from proxy.serving.neighbours import Neighbours
from proxy.serving.resuming import Resuming
from proxy.serving.slot_steps import SlotSteps, unknown_if_broken_off
from proxy.serving.ticket import Ticket
from proxy.slots.holding import Nothing, only_prefix
from proxy.slots.plan import Anchor, Clear, Copy, Keep, Requeue, Restore, Save, Source, Step, Warm, nothing
from proxy.slots.prediction import choose
from proxy.slots.truncation import is_spoilt

SILENCE_RESERVE_S = 0.5
"""A warm-up ends this long before the client has waited long enough, so that the server is free again."""


class Executor:
    """Carries out plans for the context."""

    def __init__(self, context: Context, neighbours: Neighbours) -> None:
        self._context = context
        self._neighbours = neighbours
        self._slots = SlotSteps(context)
        self._checkpoints = CheckpointSteps(context, self._slots)
        self._anchors = Anchors(context, self._slots)
        self._resuming = Resuming(context)

    async def carry_out(self, ticket: Ticket) -> None:
        """All steps in order; raises ControlFailed where one fails, PlanAgain where another plan is better."""
        model = self._context.model
        is_proven = ticket.plan.source is Source.RESUME and bool(model.able.keeps_copies) and model.able.truncates
        if is_proven:
            await self._resuming.count_answer(ticket)
        for step in ticket.plan.steps:
            try:
                await self.do(ticket, step)
            except PlanBroken as error:
                ticket.plan = nothing(str(error))
                return
        if is_proven and not self._neighbours.runs_beside(ticket):
            await self._resuming.bring_back(ticket)

    async def do(self, ticket: Ticket, step: Step) -> None:
        """One step; raises as `carry_out` does, and PlanBroken."""
        match step:
            case Copy(slot):
                await self._slots.copy(slot, ticket.visit.auth)
            case Clear(slot):
                await self._slots.clear(slot, ticket.visit.auth)
            case Warm(key):
                await self._warm(ticket, key)
            case Restore(slot, key):
                await self._restore(ticket, slot, key)
            case Anchor():
                await self._anchors.anchor(ticket)
            case Keep(key):
                await self._anchors.keep(ticket, key)
            case Requeue(anchor):
                await self._anchors.requeue(ticket, anchor)
            case Save(key):
                await self._whatever_happens(ticket, self._checkpoints.save(ticket, key))

    async def _restore(self, ticket: Ticket, slot: int, key: str) -> None:
        # From before the look at it until the server has it: no clean-up takes it in between.
        with self._context.store.shelf.using(key):
            name = await self._checkpoints.prove(ticket, key)
            await self._whatever_happens(ticket, self._checkpoints.restore(ticket, slot, key, name))

    async def _whatever_happens(self, ticket: Ticket, work: Coroutine[None, None, None]) -> None:
        """To its end, even if the client leaves or has waited long enough: the server goes on with it, too."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._context.model.turn.hand_over(ticket, task)
                task.add_done_callback(self._context.model.turn.give_back)
                self._context.watch_over(task)
            raise

    # Warm-ups

    async def _warm(self, ticket: Ticket, key: str) -> None:
        model = self._context.model
        prefix = model.by_key(key)
        if prefix is None:
            raise PlanBroken("prefix_forgotten")
        flight = model.flights.get(key)
        if flight is None and await self._neighbours.have_ended(ticket):
            raise PlanAgain  # the server would prefill it over what a neighbour has just left
        flight = model.flights.get(key)
        if flight is None:
            flight = asyncio.ensure_future(self._fly(ticket, prefix))
            model.flights[key] = flight
            flight.add_done_callback(lambda _: model.flights.pop(key, None))
        left = ticket.patience_s - SILENCE_RESERVE_S - (time.monotonic() - ticket.arrived)
        try:
            done, _ = await asyncio.wait({flight}, timeout=max(0.0, min(left, self._context.settings.warm_timeout)))
        except asyncio.CancelledError:
            self._left(ticket, flight)
            raise
        if not done:
            flight.cancel()
            model.to_build[ticket.visit.rendering] = "warm_up_too_slow"
            self._context.report.trouble(
                "warm_up_too_slow", "the warm-up takes too long; the request goes on and does it itself"
            )
            raise PlanBroken("warm_up_too_slow")
        if flight.cancelled():
            raise PlanBroken("warm_up_ended")
        flight.result()

    def _left(self, ticket: Ticket, flight: "asyncio.Task[int]") -> None:
        """The client has gone: go on for those who wait, or end it."""
        model = self._context.model
        # The one who leaves is still counted.
        if model.interest[ticket.visit.rendering] > 1 and not flight.done():
            model.turn.hand_over(ticket, flight)
            flight.add_done_callback(model.turn.give_back)
        else:
            flight.cancel()

    async def _fly(self, ticket: Ticket, prefix: ExactPrefix) -> int:
        """Prefill the prefix; returns the slot that now holds it."""
        model, report = self._context.model, self._context.report
        expected = choose(ticket.need, model.ledger.idle())
        report.warming(prefix.n_tokens, expected.slot if expected else -1)
        need = only_prefix(ticket.need, prefix.key, prefix.n_tokens)
        held = model.ledger.slots[expected.slot].holds if expected else Nothing()
        is_anew = is_spoilt(need, held, model.ledger.copies.values(), model.able)
        with unknown_if_broken_off(model.ledger, expected):
            warmed = await self._prefill(prefix, ticket.visit.auth, is_anew=is_anew)
        report.warmed(warmed.slot, warmed)
        held = prefix.held(warmed.prompt_n + warmed.cache_n)
        return await self._slots.prefilled(need, expected, warmed, held, ticket.visit.auth)

    async def _prefill(self, prefix: ExactPrefix, auth: Auth, *, is_anew: bool) -> Warmed:
        client, limit_s = self._context.model.client, self._context.settings.warm_timeout
        if prefix.chat_body:
            return await client.prefill_chat(prefix.chat_body, auth, limit_s, is_anew=is_anew)
        return await client.prefill(prefix.tokens, auth, limit_s, is_anew=is_anew)
