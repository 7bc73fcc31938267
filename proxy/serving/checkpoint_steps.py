"""Steps that move a prefix between a slot and a file: restore and verify, save with what a later verification needs.

Owns the order in which nothing can go wrong unnoticed: prove the file, mark the attempt on disk, let the server read,
compare the tokens, once per checkpoint and server start look one token beyond; save under another name, check, rename.
"""

import asyncio
import time
from dataclasses import replace
from http import HTTPStatus

from proxy.checkpoints.key import final_name
from proxy.checkpoints.record import Checkpoint
from proxy.llama.client import ControlFailed
from proxy.llama.replies import Warmed
from proxy.serving.adapters import are_as_met
from proxy.serving.chat_checks import ChatChecks
from proxy.serving.context import Context, PlanAgain, PlanBroken
from proxy.serving.model import ExactPrefix
from proxy.serving.saving import ADAPTERS, REFUSALS
from proxy.serving.slot_steps import SlotSteps
from proxy.serving.ticket import Ticket
from proxy.slots.holding import NOWHERE_CUT, Holding, Nothing, Prefix, Unknown, Whole
from proxy.slots.ledger import SlotBelief
from proxy.slots.prediction import CHECKPOINT_DISTANCE
from proxy.slots.verdict import GOOD_SHARE

NOT_TOLD = -1
MAX_OFF_BY = 0.05
"""How far log-probabilities may be from those recorded at the save."""


class CheckpointSteps:
    """Saves and restores, for one context."""

    def __init__(self, context: Context, steps: SlotSteps) -> None:
        self._context = context
        self._steps = steps
        self._by_chat = ChatChecks(context)

    async def prove(self, ticket: Ticket, key: str) -> str:
        """The name of its file, whose bytes were proven; nothing is lost if this is given up at any point."""
        model, store = self._context.model, self._context.store
        prefix = model.by_key(key)
        if prefix is None:
            raise PlanBroken("prefix_forgotten")
        if model.able.n_ctx and prefix.n_tokens >= model.able.n_ctx:
            store.useless(key)
            raise PlanAgain("context_too_small")
        if not await are_as_met(self._context, ticket.visit.auth):
            raise PlanBroken("adapters_changed")
        name = await store.prove(key, prefix.tokens or None, model.able.format_version)
        if name is None:
            raise PlanAgain("checkpoint_not_fit")
        return name

    async def restore(self, ticket: Ticket, slot: int, key: str, name: str) -> None:
        """Have the server read a proven file, verify what it then holds (once per checkpoint and server start)."""
        model, store = self._context.model, self._context.store
        prefix = model.by_key(key)
        if prefix is None:
            raise PlanBroken("prefix_forgotten")
        with store.shelf.using(key):
            await self._read_file(ticket, slot, prefix, name)
            if key not in model.verified:
                verify = self._verify_chat if prefix.chat_body else self._verify
                await verify(ticket, slot, prefix, name)

    async def _read_file(self, ticket: Ticket, slot: int, prefix: ExactPrefix, name: str) -> None:
        model, store, settings = self._context.model, self._context.store, self._context.settings
        mark = await store.mark(prefix.key, model.process.marker if model.process else "")
        model.ledger.hold(slot, Nothing(), has_run=False)
        try:
            told = await model.client.restore(slot, name, ticket.visit.auth, settings.restore_timeout)
        except ControlFailed as error:
            await self._not_restored(prefix.key, error)
            raise PlanAgain("restore_failed") from error
        finally:
            if mark is not None:
                await asyncio.to_thread(mark.clear)
        if told.n_tokens != self._length(prefix):
            await store.put_aside(prefix.key)
            await self._steps.clear(slot, ticket.visit.auth)
            raise PlanAgain("other_tokens")
        # A sliding window can't be gone back in to before the prefix's end then.
        whole = Whole(prefix.n_tokens) if model.able.window else NOWHERE_CUT
        model.ledger.hold(slot, replace(prefix.held(told.n_tokens), whole=whole), has_run=False)
        model.last_answer = time.monotonic()
        self._context.report.restored(name, told, slot)
        await self._steps.seen_again(slot, ticket.visit.auth)

    def _length(self, prefix: ExactPrefix) -> int:
        """Tokens of its file; of a prefix by chat only the record knows."""
        record = self._context.store.record(prefix.key) if prefix.chat_body else None
        return record.n_tokens if record else prefix.n_tokens

    async def _not_restored(self, key: str, error: ControlFailed) -> None:
        context = self._context
        if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise error
        if error.code == HTTPStatus.NOT_IMPLEMENTED:
            context.model.able = replace(context.model.able, acts_on_slots=False)
            context.report.trouble("slot_actions_off", "checkpoints need --slot-save-path on the server")
        elif error.is_broken:
            context.report.trouble(f"suspect:{key}", f"the server died while it restored {final_name(key)}; put aside")
            await context.store.put_aside(key)
        else:
            context.report.trouble(
                "restore_failed", f"{final_name(key)} could not be restored: {_why(error)} → cold build"
            )
            # One that the server is still at after so long may be what takes it down: not for ever again.
            context.store.struck(key, "not restored")

    async def _verify_chat(self, ticket: Ticket, slot: int, prefix: ExactPrefix, name: str) -> None:
        context, model = self._context, self._context.model
        if await self._by_chat.is_good(ticket, prefix, name, self._length(prefix)):
            context.store.proven(prefix.key, {})
            model.verified.add(prefix.key)
            await self._steps.seen_again(slot, ticket.visit.auth)
            return
        context.store.struck(prefix.key, "not verified")
        await self._steps.clear(slot, ticket.visit.auth)
        raise PlanAgain("not_verified")

    async def _verify(self, ticket: Ticket, slot: int, prefix: ExactPrefix, name: str) -> None:
        context, model = self._context, self._context.model
        held = model.ledger.slots[slot].holds
        warmed, logprobs = await self._look_beyond(ticket, prefix)
        if warmed.slot not in (slot, NOT_TOLD):
            # Answered from another slot, so nothing was proven of this one.
            context.store.useless(prefix.key)
            await self._steps.clear(slot, ticket.visit.auth)
            raise PlanAgain("not_verified")
        record = context.store.record(prefix.key)
        off_by = _off_by(dict(record.logprobs) if record else {}, logprobs)
        if warmed.cache_n >= GOOD_SHARE * prefix.n_tokens and (off_by is None or off_by <= MAX_OFF_BY):
            context.report.verified(name, warmed.cache_n, prefix.n_tokens, off_by)
            context.store.proven(prefix.key, logprobs)
            model.verified.add(prefix.key)
            model.able = replace(model.able, restores=True)
            await self._go_back(ticket, slot, prefix, name, held)
            return
        if warmed.cache_n < GOOD_SHARE * prefix.n_tokens and not model.able.restores:
            model.able = replace(model.able, restores=False)
            context.report.trouble(
                "restore_useless",
                f"a restored prefix is not reused here (cache_n={warmed.cache_n} of {prefix.n_tokens}): "
                "nothing is restored on this server; a sliding-window model needs --swa-full",
            )
            context.store.useless(prefix.key)
        else:
            context.report.unfit(name, "verification failed", f"cache_n={warmed.cache_n}, off by {off_by}")
            context.store.struck(prefix.key, "not verified")
        await self._steps.clear(slot, ticket.visit.auth)
        raise PlanAgain("not_verified")

    async def _look_beyond(self, ticket: Ticket, prefix: ExactPrefix) -> tuple[Warmed, dict[int, float]]:
        """Prefix and one fixed token: how much of it was cached, and what the model says then."""
        model = self._context.model
        tokens = [*prefix.tokens, prefix.tokens[0]]
        found = await model.client.probabilities(tokens, ticket.visit.auth, self._context.settings.warm_timeout)
        model.ledger.prompted(found[0].slot, Unknown(len(tokens)))
        await self._steps.seen_again(found[0].slot, ticket.visit.auth)
        return found

    async def _go_back(self, ticket: Ticket, slot: int, prefix: ExactPrefix, name: str, held: Holding) -> None:
        """The slot is one token past the prefix that it held: a model that can't roll back is given that again."""
        model = self._context.model
        if not model.able.rolls_back:
            await self._read_file(ticket, slot, prefix, name)
            return
        whole = held.whole if isinstance(held, Prefix) else NOWHERE_CUT
        model.ledger.hold(slot, replace(prefix.held(prefix.n_tokens + 1), whole=whole), has_run=False)

    async def save(self, ticket: Ticket, key: str) -> None:
        """Write the prefix that a slot holds to a checkpoint; a failure costs the request nothing but the time."""
        context, model, store = self._context, self._context.model, self._context.store
        if context.is_stopping:
            return
        prefix = model.by_key(key)
        holder = next((b for b in model.ledger.idle() if isinstance(b.holds, Prefix) and b.holds.key == key), None)
        if holder is None or prefix is None or model.identity is None:
            return
        if model.adapters_changed or not await are_as_met(context, ticket.visit.auth):
            self._not_saved(ADAPTERS)
            return
        if refusal := await store.saving.refusal(model.identity, prefix.n_tokens):
            self._not_saved(refusal)
            return
        with store.shelf.using(key):
            name = await store.saving.begin(key)
            if await self._write_file(ticket, holder, prefix, name):
                await self._record_logprobs(ticket, holder.slot, prefix)
        context.tidy_up()

    async def _write_file(self, ticket: Ticket, holder: SlotBelief, prefix: ExactPrefix, name: str) -> bool:
        context, model, saving = self._context, self._context.model, self._context.store.saving
        build, identity = model.process.build if model.process else "", model.identity
        n_tokens = holder.holds.n_tokens if prefix.chat_body else prefix.n_tokens
        made: Checkpoint | str = "the model is not known"
        try:
            told = await model.client.save(holder.slot, name, ticket.visit.auth, context.settings.save_timeout)
            if identity is not None:
                made = await saving.finish(prefix.key, name, told, prefix.tokens or None, n_tokens, identity, build)
        except ControlFailed as error:
            made = str(error)
            if error.code == HTTPStatus.NOT_IMPLEMENTED:
                model.able = replace(model.able, acts_on_slots=False)
                made = "the server has no --slot-save-path"
        except asyncio.CancelledError:
            await saving.discard(name)
            raise
        if isinstance(made, str):
            self._not_saved(made)
            await saving.give_up(prefix.key, name)
            return False
        if made.format_version:
            model.able = replace(model.able, format_version=made.format_version)
        context.report.saved(final_name(prefix.key), told)
        return True

    def _not_saved(self, why: str) -> None:
        reason = f"not_saved:{why}" if why in REFUSALS else "not_saved"
        self._context.report.trouble(reason, f"no checkpoint is saved: {REFUSALS.get(why, why)}")

    def _leaves_worse_marks(self, ticket: Ticket) -> bool:
        """Whether a prefix that was just prefilled is better read back: that drops its in-memory checkpoints.

        They would outlive the request's own, which lie behind the prefix where so much follows it. Only on a server
        that nobody has tried, with a model that has no window for sure: there nothing comes of what was read.
        """
        able = self._context.model.able
        is_hopeful = able.is_untried and able.restores is None and able.window == 0
        return is_hopeful and ticket.need.rest_tokens > CHECKPOINT_DISTANCE

    async def _record_logprobs(self, ticket: Ticket, slot: int, prefix: ExactPrefix) -> None:
        """What the model says after the prefix, to be compared when the file is restored one day."""
        model, store = self._context.model, self._context.store
        if prefix.chat_body:
            store.proven(prefix.key, {})
            return
        if not (model.able.rolls_back or model.able.restores):
            # The slot could not be brought back to the prefix; a restore on this same process will record them.
            if self._leaves_worse_marks(ticket):
                await self._read_file(ticket, slot, prefix, final_name(prefix.key))
                await self._verify(ticket, slot, prefix, final_name(prefix.key))
            return
        held = model.ledger.slots[slot].holds
        _, logprobs = await self._look_beyond(ticket, prefix)
        store.proven(prefix.key, logprobs)
        model.verified.add(prefix.key)
        await self._go_back(ticket, slot, prefix, final_name(prefix.key), held)


def _why(error: ControlFailed) -> str:
    """What the server says of a restore that it refused, and what is the matter most often, which it does not say."""
    told = f" ({error.told})" if error.told else ""
    asked = "; saved under another -np, -c or --kv-unified?" if error.code == HTTPStatus.BAD_REQUEST else ""
    return f"{error}{told}{asked}"


def _off_by(recorded: dict[int, float], now: dict[int, float]) -> float | None:
    """The largest difference of a token's log-probability; None where nothing was recorded."""
    if not recorded:
        return None
    common = recorded.keys() & now.keys()
    if len(common) * 2 < len(recorded):
        return float("inf")
    return max(abs(recorded[token] - now[token]) for token in common)
