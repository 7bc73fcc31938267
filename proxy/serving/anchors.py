"""Steps that leave a beginning in host memory: prefilled by a prompt of ours with another last token, and copied.

What they are good for stands in `slots.anchoring`. Where such a prompt goes on from, and four tokens before its end,
the server leaves in-memory checkpoints; there it goes back to for whatever differs in the last token.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace

from proxy.llama.renderer import whole_prompt
from proxy.llama.replies import Warmed
from proxy.serving.context import Context, PlanBroken
from proxy.serving.slot_steps import SlotSteps, unknown_if_broken_off
from proxy.serving.ticket import Ticket
from proxy.slots.holding import BYTES_PER_TOKEN, Need, Nothing, Talk, of_prefix, only_prefix
from proxy.slots.prediction import MARK_SLACK, Choice, choose, loaded

MOST_S = 2.0
"""A prompt that takes longer is left alone: its client would wait for its headers meanwhile."""
BEHIND = 2
"""Tokens by which, in a sliding window, the checkpoint of an anchor lies before the prefix's end at first."""


class Anchors:
    """Leaves anchors, for one context."""

    def __init__(self, context: Context, steps: SlotSteps) -> None:
        self._context = context
        self._steps = steps
        self._prompts: dict[bytes, array[int]] = {}
        """Tokens of those in host memory, by name."""

    async def keep(self, ticket: Ticket, key: str) -> None:
        """Leave an exact prefix or a head in host memory and in a slot; one that is there is loaded and copied again.

        Raises ControlFailed; PlanBroken where the prefix is forgotten.
        """
        need, prefix = ticket.need, self._context.model.by_key(key)
        if prefix is None or not prefix.tokens:
            raise PlanBroken("prefix_forgotten")
        if self._context.model.able.has_room is False:
            return  # an earlier one of the plan was not there
        n_tokens = prefix.n_tokens + 1
        anchor = Talk(
            of_prefix(key),
            (round(n_tokens * BYTES_PER_TOKEN),),
            n_prompt=n_tokens,
            n_tokens=n_tokens,
            prefix_key=prefix.base_key or key,
            prefix_tokens=prefix.base_tokens or prefix.n_tokens,
            head_key=key if prefix.base_key else "",
            head_tokens=prefix.n_tokens if prefix.base_key else 0,
            is_marked=True,
            is_first=True,
            inputs=need.inputs,
            is_anchor=True,
        )
        asked = replace(only_prefix(need, key, prefix.n_tokens), chain=anchor.chain, sizes=anchor.sizes)
        first = prefix.tokens[0]  # begins a prompt, and so goes on from none
        model, before = self._context.model, list[int]()
        if model.able.is_windowed:
            # A window that comes back from a checkpoint can't be gone back in to where that lies, only behind it.
            before = [*prefix.tokens[:-BEHIND], first]
        elif prefix.base_key:
            before = list(prefix.tokens)  # where it ends, the next prompt leaves a checkpoint
        is_new = anchor.name not in model.ledger.copies
        more = prefix.n_tokens - prefix.base_tokens if prefix.base_key else 0
        if is_new and more * model.prompt_ms_per_token > MOST_S * 1000:
            return
        if before and is_new:
            await self._prefill(ticket, choose(asked, model.ledger.idle()), before)
        await self._leave(ticket, asked, [*prefix.tokens, first], anchor)

    async def anchor(self, ticket: Ticket) -> None:
        """Leave the request's prompt in host memory and in its slot; raises ControlFailed."""
        need, model = ticket.need, self._context.model
        if model.able.has_room is False or need.rest_tokens * model.prompt_ms_per_token > MOST_S * 1000:
            return
        tokens = await self._tokens(ticket)
        if not tokens:
            return
        anchor = Talk(
            need.chain,
            need.sizes,
            n_prompt=len(tokens),
            n_tokens=len(tokens),
            prefix_key=need.prefix_key,
            prefix_tokens=need.prefix_tokens,
            is_marked=True,
            inputs=need.inputs,
            is_anchor=True,
        )
        other = next(token for token in tokens if token != tokens[-1])
        await self._leave(ticket, need, [*tokens[:-1], other], anchor)

    async def requeue(self, ticket: Ticket, anchor: Talk) -> None:
        """Have an anchor stand behind all else in host memory; raises ControlFailed."""
        model = self._context.model
        if (prompt := self._prompts.get(anchor.name)) is None or anchor.name not in model.ledger.copies:
            return  # an earlier one of the plan was not there: then this one is as likely gone
        warmed = await self._prefill(ticket, choose(ticket.need, model.ledger.idle()), prompt)
        is_gone = warmed.cache_n < len(prompt) - MARK_SLACK
        if is_gone:
            model.ran_out_of_room(model.ledger.older(anchor))
        model.ledger.taken(anchor)
        if not 0 <= warmed.slot < len(model.ledger.slots):
            return  # a build that doesn't say where: no slot is emptied on a guess
        model.ledger.prompted(warmed.slot, anchor)
        if not is_gone and model.able.acts_on_slots is not False and not model.able.truncates:
            await self._steps.copy(warmed.slot, ticket.visit.auth)
        await self._steps.clear(warmed.slot, ticket.visit.auth)

    async def _leave(self, ticket: Ticket, asked: Need, prompt: Sequence[int], anchor: Talk) -> None:
        model, is_spoilt = self._context.model, False
        expected = choose(asked, model.ledger.idle())
        held = model.ledger.slots[expected.slot].holds if expected else Nothing()
        due = loaded(asked, held, model.ledger.copies.values())
        is_due = due is not None and due.name == anchor.name
        if model.able.truncates and is_due:
            # A token more proves that it was this one: if it is gone, the server goes back in something else with as
            # much in common, of which it has the window only.
            proof = await self._prefill(ticket, expected, [*prompt, prompt[-1]])
            is_spoilt = proof.cache_n < len(prompt)
        warmed = await self._prefill(ticket, expected, prompt, is_anew=is_spoilt)
        is_gone = is_due and warmed.cache_n < len(prompt) - MARK_SLACK
        if is_gone:  # then it is told what was loaded in its place
            model.ran_out_of_room(model.ledger.older(anchor))
        slot = await self._steps.prefilled(asked, expected, warmed, anchor, ticket.visit.auth)
        if is_gone:
            return
        await self._steps.copy(slot, ticket.visit.auth)
        copies = self._context.model.ledger.copies
        self._prompts = {name: kept for name, kept in self._prompts.items() if name in copies}
        self._prompts[anchor.name] = array("i", prompt)

    async def _prefill(
        self, ticket: Ticket, expected: Choice | None, prompt: Sequence[int], *, is_anew: bool = False
    ) -> Warmed:
        model, limit_s = self._context.model, self._context.settings.warm_timeout
        with unknown_if_broken_off(model.ledger, expected):
            warmed = await model.client.prefill(prompt, ticket.visit.auth, limit_s, is_anew=is_anew)
        self._context.report.anchored(warmed.slot, warmed)
        ticket.n_anchored += warmed.prompt_n
        return warmed

    async def _tokens(self, ticket: Ticket) -> list[int]:
        """The request's tokens; none where they are not known."""
        visit, prefix = ticket.visit, self._context.model.by_key(ticket.need.prefix_key)
        if visit.request is None or visit.prefix is None or prefix is None or not visit.is_text:
            return []
        tokens = await whole_prompt(self._context.model.client, visit.request, visit.prefix, visit.auth)
        is_known = len(tokens) > prefix.n_tokens + 1 and tokens[: prefix.n_tokens] == list(prefix.tokens)
        return tokens if is_known else []
