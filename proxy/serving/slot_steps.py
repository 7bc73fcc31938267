"""Steps on one slot that copy or empty it: keep what it holds in the server's host memory, make it hold nothing.

Each is entered into the ledger when the server has done it.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus

from proxy.llama.client import Auth, ControlFailed
from proxy.llama.replies import Warmed
from proxy.serving.context import Context, PlanBroken
from proxy.slots.holding import Holding, Need, Nothing, Prefix, Talk, Unknown
from proxy.slots.ledger import Ledger
from proxy.slots.prediction import Choice, loaded
from proxy.slots.truncation import whole_after

MOST_LET_GO = 64
"""Tokens that are let go at most: a copy waits for what the server does for others, and seems to take longer then."""


@contextmanager
def unknown_if_broken_off(ledger: Ledger, expected: Choice | None) -> Iterator[None]:
    """Of a slot whose prompt failed or was given up nobody knows what it holds."""
    try:
        yield
    except (ControlFailed, asyncio.CancelledError):
        if expected is not None:
            ledger.hold(expected.slot, Unknown())
        raise


class SlotSteps:
    """Copies and empties slots, for one context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def copy(self, slot: int, auth: Auth) -> None:
        """Copy a slot's content to host memory."""
        model, limit = self._context.model, self._context.settings.warm_timeout
        began = time.monotonic()
        try:
            await model.client.copy(slot, auth, limit)
        except ControlFailed:
            self._context.report.copied(slot, has_worked=False)
            raise
        self._learn_copy((time.monotonic() - began) * 1000)
        self._context.report.copied(slot)
        model.ledger.copied(model.ledger.slots[slot].holds)
        model.ledger.renumbered(slot)
        await self.seen_again(slot, auth)

    def _learn_copy(self, took_ms: float) -> None:
        """The shortest counts: whatever else the machine does makes one longer."""
        model = self._context.model
        model.copy_ms = min(model.copy_ms or took_ms, took_ms)
        if model.prompt_ms_per_token:
            copy_tokens = min(MOST_LET_GO, int(model.copy_ms / model.prompt_ms_per_token))
            model.able = replace(model.able, copy_tokens=copy_tokens)

    async def clear(self, slot: int, auth: Auth, token: int | None = None) -> None:
        """Empty a slot: erase it, or overwrite it with one token where slot actions are off: then it is copied, too.

        `token` is one that may be used for it; by default one that no prompt begins with is looked for.
        """
        model, settings = self._context.model, self._context.settings
        if model.able.acts_on_slots is not False:
            try:
                await model.client.erase(slot, auth, settings.erase_timeout)
            except ControlFailed as error:
                if error.code != HTTPStatus.NOT_IMPLEMENTED:
                    raise
                model.able = replace(model.able, acts_on_slots=False)
            else:
                model.able = replace(model.able, acts_on_slots=True)
                model.ledger.hold(slot, Nothing())
                await self.seen_again(slot, auth)
                return
        token = self._fresh_token() if token is None else token
        model.displacing.add(token)
        await model.client.displace(slot, token, auth, settings.warm_timeout)
        if model.able.keeps_copies and not model.able.goes_back_freely:
            model.ledger.copied(model.ledger.slots[slot].holds)
        model.ledger.prompted(slot, Prefix("", 1))
        await self.seen_again(slot, auth)

    async def prefilled(self, need: Need, expected: Choice | None, warmed: Warmed, held: Holding, auth: Auth) -> int:
        """Enter what a prompt of ours left; `need` is of that prompt. Returns the slot that holds it now."""
        model = self._context.model
        ledger = model.ledger
        slot = warmed.slot if 0 <= warmed.slot < len(ledger.slots) else (expected.slot if expected else 0)
        before, spent = ledger.slots[slot].holds, None
        if model.able.keeps_copies is not False:
            # A prompt of ours may load a conversation from host memory like any other, and what it loads is gone there.
            if (spent := loaded(need, before, ledger.copies.values())) is not None:
                ledger.taken(spent)
            if expected is not None and expected.slot == slot and expected.copies:
                ledger.copied(before)
        if isinstance(held, Prefix | Talk):
            held = replace(held, whole=whole_after(before, spent, warmed.cache_n, model.able))
        ledger.prompted(slot, held)
        if warmed.prompt_n >= self._context.settings.min_prefix_tokens:
            model.prompt_ms_per_token = warmed.prompt_ms / warmed.prompt_n
        model.last_answer = time.monotonic()
        await self.seen_again(slot, auth)
        return slot

    def _fresh_token(self) -> int:
        """A token that begins no prompt and was not used for this before.

        The server may keep a copy of such a one-token prompt, and would load it into the slot the next time, even if
        somebody else's request has just begun there.
        """
        model = self._context.model
        firsts = {prefix.tokens[0] for prefix in model.prefixes.values() if prefix.tokens}
        known = {token for prefix in model.prefixes.values() for token in prefix.tokens}
        fresh = known - firsts - model.displacing
        if not fresh:
            raise PlanBroken("no_token_to_displace_with")
        token = min(fresh)
        model.displacing.add(token)
        return token

    async def seen_again(self, slot: int, auth: Auth) -> None:
        """Our own call changed the slot's task number; what is seen now is the new normal."""
        model = self._context.model
        if model.able.shows_slots:
            model.ledger.observe(await model.client.slots(auth), (slot,))
