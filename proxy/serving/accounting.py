"""Accounting: what a request did to the slots, entered into the ledger from the request's own answer.

Synchronous throughout: between two beliefs there is no `await`. Owns what an answer's figures mean for what the slot
holds now, whether a claim came true, and what is learned when it did not.
"""

from collections.abc import Iterable
from http import HTTPStatus

from proxy.llama.answer import Figures
from proxy.request.fingerprint import shown
from proxy.serving.context import Context
from proxy.serving.ticket import Ticket
from proxy.slots.holding import Nothing, Talk, Unknown, continues_talk, share
from proxy.slots.ledger import Look
from proxy.slots.plan import Restore, Source
from proxy.slots.prediction import choose
from proxy.slots.verdict import judge

SHARE_TOLERANCE = 16
"""What two folders' names may have in common beyond what is known of two conversations, in tokens."""
FAILED_RESUMES = 3
"""After so many in a row host memory holds nothing of what we believe: it is too small, or off."""


class Accounting:
    """Keeps the ledger of one context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def take_slot(self, ticket: Ticket, slot: int) -> None:
        """The server put the request into this slot; what it did with the old content is entered."""
        ledger = self._context.model.ledger
        if ticket.over.is_set() or ticket.slot is not None or ledger.slots[slot].lease not in (0, ticket.number):
            return
        choice = choose(ticket.need, ledger.idle())
        if ticket.plan.slot is not None:
            self._context.report.predicted(ticket, slot)
        old = ledger.slots[slot].holds
        is_copied = choice is not None and choice.slot == slot and choice.copies
        is_moved = ticket.plan.source is Source.RESUME and self._context.has_slots_moved
        if self._context.model.able.keeps_copies and is_copied:
            ledger.copied(old)
        elif self._context.model.able.keeps_copies and is_moved:
            ticket.displaced = old  # moved to host memory or overwritten: its own figures will tell
        if continues_talk(ticket.need, old) and isinstance(old, Talk):
            ledger.taken(old)
        elif (copy := ledger.longest_copy(ticket.need)) is not None:
            ledger.taken(copy)
        elif choice is None or choice.copies:
            ledger.taken_for(ticket.need)
        ledger.lease(slot, ticket.number)
        ticket.slot = slot

    def enter(self, ticket: Ticket, looks: list[Look]) -> None:
        """Beliefs after a request, from its own figures; a look tells the slot where that is not known yet."""
        ledger = self._context.model.ledger
        if ticket.slot is None and len(ledger.slots) == 1:
            self.take_slot(ticket, 0)
        if ticket.slot is None:
            changed = [look.slot for look in looks if self._context.is_new(look)]
            if len(changed) == 1:
                self.take_slot(ticket, changed[0])
        ledger.release(ticket.number)
        if ticket.status == HTTPStatus.OK:
            ledger.may_be_hot = False
        # Without a status the client has left before it came; the server may have begun all the same.
        if ticket.slot is not None and ticket.status in (0, HTTPStatus.OK) and not ticket.is_reclaimed:
            self._enter_outcome(ticket, ticket.slot, looks)
        self._enter_displaced(ticket)
        self._context.observe(looks, () if ticket.slot is None else (ticket.slot,))
        if ticket.figures is not None:
            self._learn(ticket, ticket.figures)

    def _enter_outcome(self, ticket: Ticket, slot: int, looks: list[Look]) -> None:
        """The slot holds the conversation now; unless a later task has found it idle and had it moved away."""
        ledger, able = self._context.model.ledger, self._context.model.able
        look = next((look for look in looks if look.slot == slot), None)
        is_later = look is not None and ticket.seen is not None and look.task != ticket.seen.task
        is_empty = look is not None and look.n_tokens == 0 and not look.is_busy
        if is_later and is_empty and able.clears_idle and able.keeps_copies:
            ledger.copied(self._outcome(ticket, ()))
            ledger.hold(slot, Nothing(), has_run=False)
        else:
            ledger.hold(slot, self._outcome(ticket, looks))

    def _enter_displaced(self, ticket: Ticket) -> None:
        """Who reused more than could be had from what its slot held before was loaded there, and that moved away."""
        if ticket.displaced is None or ticket.figures is None:
            return
        if (ticket.figures.cache_n or 0) > (share(ticket.need, ticket.displaced) or 0) + SHARE_TOLERANCE:
            self._context.model.ledger.copied(ticket.displaced)

    def _learn(self, ticket: Ticket, figures: Figures) -> None:
        """What the figures say of our rendering and of what was claimed."""
        self._learn_rate(ticket)
        is_comparable = ticket.n_rendered > 0 and ticket.visit.is_text
        if is_comparable and figures.prompt_tokens not in (None, ticket.n_rendered):
            self._context.model.renders = False
            self._context.report.trouble(
                "rendering", f"/apply-template gives {ticket.n_rendered} tokens, the answer {figures.prompt_tokens}"
            )
        verdict = judge(ticket.plan, figures.cache_n)
        if not verdict.is_kept:
            self._claim_failed(ticket, verdict.reason)
            return
        if ticket.plan.source is Source.RESUME:
            self._context.model.failed_resumes = 0
        if ticket.plan.expected_cache_n > 0:
            self._context.model.failed_claims = 0
        need, name = ticket.need, shown(ticket.fingerprint)
        for key, n_tokens in ((need.prefix_key, need.prefix_tokens), (need.head_key, need.head_tokens)):
            if (figures.cache_n or 0) >= n_tokens > 0:
                self._context.store.used(key, name)

    def _outcome(self, ticket: Ticket, looks: Iterable[Look]) -> Talk | Unknown:
        figures, need, visit = ticket.figures, ticket.need, ticket.visit
        seen = next((look for look in looks if look.slot == ticket.slot), None)
        if not visit.chain or visit.request is None or not visit.may_prepare or visit.request.choices > 1:
            return Unknown(seen.n_tokens if seen else 0)
        known = self._context.model.prefixes.get(visit.rendering)
        head = self._context.model.prefixes.get(visit.head)
        is_whole = figures is not None and ticket.is_whole
        prompt = (figures.prompt_tokens if figures else None) or 0
        answer = (figures.predicted_n if figures else None) or 0
        believed = prompt + max(0, answer - 1)
        marked = ticket.plan.source in (Source.WARM_UP, Source.HIT, Source.RESTORE) or self._was_marked(ticket)
        return Talk(
            visit.chain,
            visit.sizes,
            n_prompt=prompt,
            n_tokens=seen.n_tokens if seen and not (is_whole and not seen.n_tokens) else believed,
            prefix_key=known.key if known else need.prefix_key,
            prefix_tokens=known.n_tokens if known else need.prefix_tokens,
            head_key=head.key if head else "",
            head_tokens=head.n_tokens if head else 0,
            inputs=visit.inputs,
            is_whole=is_whole,
            is_marked=marked,
        )

    def _was_marked(self, ticket: Ticket) -> bool:
        if ticket.plan.source not in (Source.CONTINUE, Source.RESUME) or ticket.slot is None:
            return False
        before = self._context.model.ledger.slots[ticket.slot].holds
        return (isinstance(before, Talk) and before.is_marked) or ticket.plan.source is Source.RESUME

    def _claim_failed(self, ticket: Ticket, reason: str) -> None:
        model = self._context.model
        self._context.report.claim_failed(ticket, reason)
        if ticket.plan.source is Source.RESUME:
            model.failed_resumes += 1
            if model.failed_resumes >= FAILED_RESUMES:
                model.ledger.copies.clear()
            return
        model.failed_claims += 1
        model.prefixes.pop(ticket.visit.rendering, None)
        for belief in model.ledger.idle():
            if belief.slot != ticket.slot:
                belief.holds = belief.holds if isinstance(belief.holds, Nothing) else Unknown(belief.holds.n_tokens)
        if ticket.plan.source is Source.RESTORE:
            for step in ticket.plan.steps:
                if isinstance(step, Restore):
                    self._context.store.useless(step.key)

    def _learn_rate(self, ticket: Ticket) -> None:
        figures = ticket.figures
        if (
            figures
            and figures.prompt_ms
            and figures.prompt_n
            and figures.prompt_n >= self._context.settings.min_prefix_tokens
        ):
            self._context.model.prompt_ms_per_token = figures.prompt_ms / figures.prompt_n


def figures_from_slot(ticket: Ticket, looks: Iterable[Look]) -> Figures | None:
    """The fallback where an answer has no figures: what `/slots` showed while it ran, or what the slot holds now.

    Newer builds show counters of prefilled and reused tokens only during the run, and afterwards only the slot's
    length, which the generated tokens are part of.
    """
    if ticket.status != HTTPStatus.OK or not ticket.is_whole:
        return None
    last = next((look for look in looks if look.slot == (ticket.slot or 0)), None)
    for look in (ticket.seen, last):
        if look is not None and look.n_processed:
            return Figures(look.n_processed, look.n_cache, None, None, None, "slots")
    return Figures(last.n_tokens, None, None, None, None, "slots") if last is not None and last.n_tokens else None
