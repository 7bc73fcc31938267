"""The executor: does what a plan says, step by step, and enters each step's outcome.

A step that fails ends the plan: what was done is entered, the rest is left, the request goes on. Each step is bounded
by its own limit and by what is left of `MAX_SILENCE`, which the engine enforces around all of it.

A warm-up is a flight of its own: others that want the same prefix wait for it, and it outlives a client that leaves as
long as one of them is still there. It is ended (the server notices within a batch) when nobody wants it any more or the
one who started it has waited long enough; what it prefilled so far stays useful to the request itself.
"""

import asyncio
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from proxy.llama.client import ControlFailed
from proxy.serving.model import ExactPrefix
from proxy.serving.ticket import Ticket
from proxy.slots.holding import Nothing, Prefix, Unknown
from proxy.slots.plan import Clear, Copy, Restore, Save, Step, Warm, nothing
from proxy.slots.prediction import choose

if TYPE_CHECKING:
    from proxy.serving.engine import Engine

SILENCE_RESERVE_S = 0.5
"""A warm-up ends this long before the client has waited long enough, so that the server is free again."""


class PlanBroken(Exception):  # noqa: N818
    """A step did not do what it should; the request goes on without the rest."""


class Executor:
    """Carries out plans for the engine."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    async def carry_out(self, ticket: Ticket) -> None:
        """All steps in order; raises ControlFailed or PlanBroken where one fails."""
        for step in ticket.plan.steps:
            try:
                await self._do(ticket, step)
            except PlanBroken as error:
                ticket.plan = nothing(str(error))
                return

    async def _do(self, ticket: Ticket, step: Step) -> None:
        match step:
            case Copy(slot):
                await self._copy(ticket, slot)
            case Clear(slot):
                await self._clear(ticket, slot)
            case Warm(key):
                await self._warm(ticket, key)
            case Restore() | Save():
                raise PlanBroken("no_checkpoints_here")

    async def _copy(self, ticket: Ticket, slot: int) -> None:
        model, limit = self._engine.model, self._engine.settings.warm_timeout
        await model.client.copy(slot, ticket.visit.auth, limit)
        belief = model.ledger.slots[slot]
        model.ledger.copied(belief.holds)
        await self._seen_again(ticket, slot)

    async def _clear(self, ticket: Ticket, slot: int) -> None:
        model, settings = self._engine.model, self._engine.settings
        try:
            await model.client.erase(slot, ticket.visit.auth, settings.erase_timeout)
        except ControlFailed as error:
            if error.code != HTTPStatus.NOT_IMPLEMENTED:
                raise
            raise PlanBroken("slot_actions_off") from error
        model.ledger.hold(slot, Nothing())
        await self._seen_again(ticket, slot)

    async def _seen_again(self, ticket: Ticket, slot: int) -> None:
        """Our own call changed the slot's task number; what is seen now is the new normal."""
        model = self._engine.model
        if model.able.shows_slots:
            model.ledger.observe(await model.client.slots(ticket.visit.auth), (slot,))

    # Warm-ups

    async def _warm(self, ticket: Ticket, key: str) -> None:
        model = self._engine.model
        prefix = model.prefixes.get(ticket.visit.rendering)
        if prefix is None or prefix.key != key:
            raise PlanBroken("prefix_forgotten")
        flight = model.flights.get(key)
        if flight is None:
            flight = asyncio.ensure_future(self._fly(ticket, prefix))
            model.flights[key] = flight
            flight.add_done_callback(lambda _: model.flights.pop(key, None))
        left = self._engine.settings.max_silence - SILENCE_RESERVE_S - (time.monotonic() - ticket.arrived)
        try:
            done, _ = await asyncio.wait({flight}, timeout=max(0.0, min(left, self._engine.settings.warm_timeout)))
        except asyncio.CancelledError:
            self._left(ticket, flight)
            raise
        if not done:
            flight.cancel()
            self._engine.report.trouble(
                "warm_up_too_slow", "the warm-up takes too long; the request goes on and does it itself"
            )
            raise PlanBroken("warm_up_too_slow")
        if flight.cancelled():
            raise PlanBroken("warm_up_ended")
        flight.result()

    def _left(self, ticket: Ticket, flight: "asyncio.Task[int]") -> None:
        """The client has gone: go on for those who wait, or end it."""
        model = self._engine.model
        # The one who leaves is still counted.
        if model.interest[ticket.visit.rendering] > 1 and not flight.done():
            model.turn.hand_over(ticket, flight)
            flight.add_done_callback(model.turn.give_back)
        else:
            flight.cancel()

    async def _fly(self, ticket: Ticket, prefix: ExactPrefix) -> int:
        """Prefill the prefix; returns the slot that now holds it."""
        model, report = self._engine.model, self._engine.report
        expected = choose(ticket.need, model.ledger.idle())
        report.warming(ticket, expected.slot if expected else -1)
        try:
            warmed = await model.client.prefill(prefix.tokens, ticket.visit.auth, self._engine.settings.warm_timeout)
        except (ControlFailed, asyncio.CancelledError):
            if expected is not None:
                model.ledger.hold(expected.slot, Unknown())
            raise
        slot = warmed.slot if 0 <= warmed.slot < len(model.ledger.slots) else (expected.slot if expected else 0)
        belief = model.ledger.slots[slot]
        if expected is not None and expected.slot == slot and not expected.overwrites and model.able.keeps_copies:
            model.ledger.copied(belief.holds)
        model.ledger.hold(slot, Prefix(prefix.key, prefix.n_tokens))
        model.last_answer = time.monotonic()
        report.warmed(slot, warmed)
        await self._seen_again(ticket, slot)
        return slot
