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
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from proxy.checkpoints.key import final_name
from proxy.llama.client import ControlFailed, Warmed
from proxy.serving.model import ExactPrefix
from proxy.serving.ticket import Ticket
from proxy.slots.holding import Nothing, Prefix, Unknown
from proxy.slots.plan import Clear, Copy, Restore, Save, Step, Warm, nothing
from proxy.slots.prediction import choose

if TYPE_CHECKING:
    from proxy.serving.engine import Engine

SILENCE_RESERVE_S = 0.5
"""A warm-up ends this long before the client has waited long enough, so that the server is free again."""


GOOD_SHARE = 0.9
MAX_OFF_BY = 0.05
"""How far log-probabilities may be from those recorded at the save."""


class PlanBroken(Exception):  # noqa: N818
    """A step did not do what it should; the request goes on without the rest."""


class PlanAgain(Exception):  # noqa: N818
    """What the plan was made of was not so; with what is known now, another one is worth making."""


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
            case Restore(slot, key):
                await self._whatever_happens(ticket, self._restore(ticket, slot, key))
            case Save(key):
                await self._whatever_happens(ticket, self._save(ticket, key))

    async def _whatever_happens(self, ticket: Ticket, work: Coroutine[None, None, None]) -> None:
        """To its end, even if the client leaves or has waited long enough: the server goes on with it, too."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._engine.model.turn.hand_over(ticket, task)
                task.add_done_callback(self._engine.model.turn.give_back)
                self._engine.watch_over(task)
            raise

    async def _copy(self, ticket: Ticket, slot: int) -> None:
        model, limit = self._engine.model, self._engine.settings.warm_timeout
        await model.client.copy(slot, ticket.visit.auth, limit)
        belief = model.ledger.slots[slot]
        model.ledger.copied(belief.holds)
        await self._seen_again(ticket, slot)

    async def _clear(self, ticket: Ticket, slot: int) -> None:
        model, settings = self._engine.model, self._engine.settings
        if model.able.acts_on_slots is not False:
            try:
                await model.client.erase(slot, ticket.visit.auth, settings.erase_timeout)
            except ControlFailed as error:
                if error.code != HTTPStatus.NOT_IMPLEMENTED:
                    raise
                model.able = replace(model.able, acts_on_slots=False)
            else:
                model.ledger.hold(slot, Nothing())
                await self._seen_again(ticket, slot)
                return
        await model.client.displace(slot, self._fresh_token(), ticket.visit.auth, settings.warm_timeout)
        model.ledger.hold(slot, Prefix("", 1))
        await self._seen_again(ticket, slot)

    def _fresh_token(self) -> int:
        """A token that begins no prompt and was not used for this before.

        The server may keep a copy of such a one-token prompt, and would load it into the slot the next time, even if
        somebody else's request has just begun there.
        """
        model = self._engine.model
        firsts = {prefix.tokens[0] for prefix in model.prefixes.values() if prefix.tokens}
        known = {token for prefix in model.prefixes.values() for token in prefix.tokens}
        fresh = known - firsts - model.displacing
        if not fresh:
            raise PlanBroken("no_token_to_displace_with")
        token = min(fresh)
        model.displacing.add(token)
        return token

    # Checkpoints

    async def _restore(self, ticket: Ticket, slot: int, key: str) -> None:
        """Prove the file, have the server read it, verify what it then holds (once per checkpoint and server start)."""
        model, store = self._engine.model, self._engine.store
        prefix = model.prefixes.get(ticket.visit.rendering)
        if prefix is None or prefix.key != key:
            raise PlanBroken("prefix_forgotten")
        if model.able.n_ctx and prefix.n_tokens >= model.able.n_ctx:
            store.useless(key)
            raise PlanAgain("context_too_small")
        name = await store.prove(key, prefix.tokens, model.able.format_version)
        if name is None:
            raise PlanAgain("checkpoint_not_fit")
        await self._read_file(ticket, slot, prefix, name)
        if key in model.verified:
            return
        await self._verify(ticket, slot, prefix, name)
        model.verified.add(key)

    async def _read_file(self, ticket: Ticket, slot: int, prefix: ExactPrefix, name: str) -> None:
        model, store, settings = self._engine.model, self._engine.store, self._engine.settings
        mark = await store.mark(prefix.key, model.process.marker if model.process else "")
        store.in_use.add(prefix.key)
        model.ledger.hold(slot, Nothing(), has_run=False)
        try:
            told = await model.client.restore(slot, name, ticket.visit.auth, settings.restore_timeout)
        except ControlFailed as error:
            await self._not_restored(prefix.key, error)
            raise PlanAgain("restore_failed") from error
        finally:
            store.in_use.discard(prefix.key)
            if mark is not None:
                await asyncio.to_thread(mark.clear)
        if told.n_tokens != prefix.n_tokens:
            await store.put_aside(prefix.key)
            await self._clear(ticket, slot)
            raise PlanAgain("other_tokens")
        model.ledger.hold(slot, Prefix(prefix.key, prefix.n_tokens), has_run=False)
        model.last_answer = time.monotonic()
        self._engine.report.restored(name, told, slot)
        await self._seen_again(ticket, slot)

    async def _not_restored(self, key: str, error: ControlFailed) -> None:
        engine = self._engine
        if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise error
        if error.code == HTTPStatus.NOT_IMPLEMENTED:
            engine.model.able = replace(engine.model.able, acts_on_slots=False)
            engine.report.trouble("slot_actions_off", "checkpoints need --slot-save-path on the server")
        elif error.is_broken:
            engine.report.trouble(f"suspect:{key}", f"the server died while it restored {final_name(key)}; put aside")
            await engine.store.put_aside(key)
        else:
            engine.report.trouble("restore_failed", f"{final_name(key)} could not be restored: {error} → cold build")
            engine.store.useless(key)

    async def _verify(self, ticket: Ticket, slot: int, prefix: ExactPrefix, name: str) -> None:
        engine, model = self._engine, self._engine.model
        warmed, logprobs = await self._look_beyond(ticket, prefix)
        record = engine.store.record(prefix.key)
        off_by = _off_by(dict(record.logprobs) if record else {}, logprobs)
        if warmed.cache_n >= GOOD_SHARE * prefix.n_tokens and (off_by is None or off_by <= MAX_OFF_BY):
            engine.report.verified(name, warmed.cache_n, prefix.n_tokens, off_by)
            engine.store.proven(prefix.key, logprobs)
            await self._go_back(ticket, slot, prefix, name)
            return
        if warmed.cache_n < GOOD_SHARE * prefix.n_tokens and not model.able.restores:
            model.able = replace(model.able, restores=False)
            engine.report.trouble(
                "restore_useless",
                f"a restored prefix is not reused here (cache_n={warmed.cache_n} of {prefix.n_tokens}): "
                "nothing is restored on this server; a sliding-window model needs --swa-full",
            )
            engine.store.useless(prefix.key)
        else:
            engine.report.unfit(name, "verification failed", f"cache_n={warmed.cache_n}, off by {off_by}")
            engine.store.struck(prefix.key, "not verified")
        await self._clear(ticket, slot)
        raise PlanAgain("not_verified")

    async def _look_beyond(self, ticket: Ticket, prefix: ExactPrefix) -> tuple[Warmed, dict[int, float]]:
        """Prefix and one fixed token: how much of it was cached, and what the model says then."""
        model = self._engine.model
        tokens = [*prefix.tokens, prefix.tokens[0]]
        found = await model.client.probabilities(tokens, ticket.visit.auth, self._engine.settings.warm_timeout)
        model.ledger.hold(found[0].slot, Unknown(len(tokens)))
        await self._seen_again(ticket, found[0].slot)
        return found

    async def _go_back(self, ticket: Ticket, slot: int, prefix: ExactPrefix, name: str) -> None:
        """The slot is one token past the prefix: a model that can't roll back is given the prefix again."""
        model = self._engine.model
        if not model.able.rolls_back:
            await self._read_file(ticket, slot, prefix, name)
            return
        model.ledger.hold(slot, Prefix(prefix.key, prefix.n_tokens + 1), has_run=False)

    async def _save(self, ticket: Ticket, key: str) -> None:
        """Write the prefix that a slot holds to a checkpoint; a failure costs the request nothing but the time."""
        engine, model, store = self._engine, self._engine.model, self._engine.store
        prefix = model.prefixes.get(ticket.visit.rendering)
        holder = next((b for b in model.ledger.idle() if isinstance(b.holds, Prefix) and b.holds.key == key), None)
        if holder is None or prefix is None or model.identity is None:
            return
        if refusal := await asyncio.to_thread(store.refusal, model.identity, prefix.n_tokens):
            engine.report.trouble(f"not_saved:{refusal}", f"no checkpoint is saved: {refusal.replace('_', ' ')}")
            return
        name = store.begin_save(key)
        try:
            if await self._write_file(ticket, holder.slot, prefix, name):
                await self._record_logprobs(ticket, holder.slot, prefix)
        finally:
            store.end_save(key)
        engine.tidy_up()

    async def _write_file(self, ticket: Ticket, slot: int, prefix: ExactPrefix, name: str) -> bool:
        engine, model, store = self._engine, self._engine.model, self._engine.store
        try:
            told = await model.client.save(slot, name, ticket.visit.auth, engine.settings.save_timeout)
            build = model.process.build if model.process else ""
            identity = model.identity
            why = (
                await store.finish_save(prefix.key, name, told, prefix.tokens, identity, build)
                if identity
                else "model unknown"
            )
        except ControlFailed as error:
            why = str(error)
            if error.code == HTTPStatus.NOT_IMPLEMENTED:
                model.able = replace(model.able, acts_on_slots=False)
                why = "the server has no --slot-save-path"
        if why is None:
            engine.report.saved(final_name(prefix.key), told)
            return True
        engine.report.trouble("not_saved", f"no checkpoint was saved: {why}")
        await store.give_up_save(prefix.key, name)
        return False

    async def _record_logprobs(self, ticket: Ticket, slot: int, prefix: ExactPrefix) -> None:
        """What the model says after the prefix, to be compared when the file is restored one day."""
        model, store = self._engine.model, self._engine.store
        if not (model.able.rolls_back or model.able.restores):
            return  # the slot could not be brought back to the prefix
        _, logprobs = await self._look_beyond(ticket, prefix)
        store.proven(prefix.key, logprobs)
        model.verified.add(prefix.key)
        await self._go_back(ticket, slot, prefix, final_name(prefix.key))

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


def _off_by(recorded: dict[int, float], now: dict[int, float]) -> float | None:
    """The largest difference of a token's log-probability; None where nothing was recorded."""
    if not recorded:
        return None
    common = recorded.keys() & now.keys()
    if len(common) * 2 < len(recorded):
        return float("inf")
    return max(abs(recorded[token] - now[token]) for token in common)
