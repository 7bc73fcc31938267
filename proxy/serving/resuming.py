"""Bringing a conversation back that has a sliding window only, with `--swa-full`: nothing goes on from it unproven.

There the server goes back in a window without knowing it. If the copy is gone, or its answer came back changed, it goes
back in it, or in another one, and a request that went on from there would be answered wrongly. So what is to be loaded
is asked for by a prompt of ours first; and of a client whose ways are not known yet, the answer that it sends back is
counted before anything is moved. Counterparts: `slots.truncation` says what proves it, `neighbours` does it beside
others.
"""

from dataclasses import replace

from proxy.llama.client import Auth, ControlFailed
from proxy.llama.renderer import beginning_of_prompt, whole_prompt
from proxy.llama.replies import Warmed
from proxy.serving.context import Context, PlanAgain
from proxy.serving.slot_steps import SlotSteps, unknown_if_broken_off
from proxy.serving.ticket import Ticket
from proxy.slots.holding import NOWHERE_CUT, Nothing, Talk, Unknown, continues_talk, repeats_talk
from proxy.slots.plan import nothing
from proxy.slots.prediction import choose, is_from
from proxy.slots.truncation import loaded_exactly, whole_after

ANSWER_TOLERANCE = 4
"""Tokens of an answer that a template may write itself, where they were generated."""


async def beginning(context: Context, ticket: Ticket, talk: Talk) -> list[int]:
    """The tokens of the request that host memory has, and one more; none where they are not known."""
    visit, client = ticket.visit, context.model.client
    if visit.request is None or visit.prefix is None or not talk.is_whole or not continues_talk(ticket.need, talk):
        return []
    try:
        tokens = await whole_prompt(client, visit.request, visit.prefix, visit.auth)
    except ControlFailed:
        return []
    return tokens[: talk.n_tokens + 1] if talk.n_tokens + 1 < len(tokens) else []


class Resuming:
    """Brings copies back, for one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._slots = SlotSteps(context)

    async def count_answer(self, ticket: Ticket) -> None:
        """Find out whether the answer to the turn before came back changed; raises PlanAgain if it did.

        By its length in tokens, where the server renders it: without reasoning it is shorter.
        """
        model, visit, need = self._context.model, ticket.visit, ticket.need
        talk = model.ledger.longest_copy(need)
        if talk is None or talk.is_anchor or talk.is_changed or repeats_talk(need, talk):
            return
        if visit.request is None or visit.prefix is None or not talk.is_whole:
            return
        tokens = await beginning_of_prompt(model.client, visit.request, visit.prefix, len(talk.chain) + 1, visit.auth)
        if not tokens or abs(len(tokens) - talk.n_tokens) <= ANSWER_TOLERANCE:
            return
        if model.ledger.copies.get(talk.name) is talk:
            model.answers_change = True
            model.ledger.copies[talk.name] = replace(talk, is_changed=True)
        raise PlanAgain("answer_came_back_changed")

    async def bring_back(self, ticket: Ticket) -> None:
        """Have the copy loaded by a prompt of ours, one token longer than it; raises PlanAgain where it was not it."""
        model, auth = self._context.model, ticket.visit.auth
        ledger, need = model.ledger, ticket.need
        talk = ledger.longest_copy(need)
        tokens = await beginning(self._context, ticket, talk) if talk is not None else []
        if talk is None or not tokens:
            return
        expected = choose(need, ledger.idle())
        with unknown_if_broken_off(ledger, expected):
            warmed = await self._prefill(tokens, auth)
        came = loaded_exactly(need, talk, ledger.copies.values(), warmed.cache_n)
        held = replace(came or talk, is_anchor=False, n_prompt=len(tokens), n_tokens=len(tokens))
        slot = await self._slots.prefilled(need, expected, warmed, held if came else Unknown(len(tokens)), auth)
        model.answers_change = model.answers_change or (came is not talk and is_from(talk, warmed.cache_n))
        if came is None:
            ledger.taken(talk)
            if not is_from(talk, warmed.cache_n):
                model.resume_failed(is_gone=True)
            if warmed.cache_n:
                await self.not_brought_back(ticket, slot, held)
            else:  # all of it was prefilled, and nothing gone back in
                ticket.plan = nothing("copy_not_as_expected")
                ledger.hold(slot, replace(held, whole=NOWHERE_CUT))
            return
        ledger.taken(came)
        if came is not talk:
            ledger.copied(talk)  # of an anchor more was kept
        ledger.hold(slot, replace(held, whole=whole_after(Nothing(), came, warmed.cache_n, model.able)))

    async def not_brought_back(self, ticket: Ticket, slot: int, held: Talk) -> None:
        """Empty a slot that can't be gone on from, and raise PlanAgain.

        Where emptying would leave a copy of it, the same is prefilled anew over it instead.
        """
        model, auth = self._context.model, ticket.visit.auth
        if model.able.acts_on_slots:
            await self._slots.clear(slot, auth)
            raise PlanAgain("copy_not_as_expected")
        tokens = await beginning(self._context, ticket, held)
        ticket.plan = nothing("copy_not_as_expected")
        if tokens:
            warmed = await self._prefill(tokens, auth, is_anew=True)
            model.ledger.prompted(slot if warmed.slot < 0 else warmed.slot, replace(held, n_tokens=len(tokens)))
            await self._slots.seen_again(slot, auth)

    async def _prefill(self, tokens: list[int], auth: Auth, *, is_anew: bool = False) -> Warmed:
        limit_s = self._context.settings.warm_timeout
        warmed = await self._context.model.client.prefill(tokens, auth, limit_s, is_anew=is_anew)
        self._context.report.warmed(warmed.slot, warmed)
        return warmed
