"""Accounting: what a request did to the slots, entered into the ledger from the request's own answer.

Synchronous throughout: between two beliefs there is no `await`. Owns what an answer's figures mean for what the slot
holds now, whether a claim came true, and what is learned when it did not.
"""

from collections.abc import Iterable
from dataclasses import replace
from http import HTTPStatus

from proxy.llama.answer import Figures
from proxy.request.fingerprint import shown
from proxy.serving.context import Context
from proxy.serving.learning import learn_from_reuse, learn_rate
from proxy.serving.ticket import Ticket
from proxy.slots.holding import Holding, Need, Nothing, Talk, Unknown, continues_talk, repeats_talk, share
from proxy.slots.ledger import LENGTH_TOLERANCE, Look
from proxy.slots.plan import Restore, Source
from proxy.slots.prediction import (
    MARK_SLACK,
    choose,
    is_from,
    is_last_edited,
    is_overwritten,
    is_question_edited,
    keeps_half,
    loaded,
)
from proxy.slots.truncation import is_resumable, whole_after
from proxy.slots.verdict import judge


class Accounting:
    """Keeps the ledger of one context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def take_slot(self, ticket: Ticket, slot: int, task: int | None = None) -> None:
        """The server put the request into this slot, as this task; what it did with the old content is entered."""
        ledger = self._context.model.ledger
        belief = ledger.slots[slot]
        if ticket.over.is_set() or ticket.slot is not None:
            return
        if belief.lease not in (0, ticket.number):
            if task is None or belief.lease_task in (None, task):
                return
            ledger.pass_on(slot, ticket.need)
        choice = choose(ticket.need, ledger.idle())
        if ticket.plan.slot is not None:
            self._context.report.predicted(ticket, slot)
        ticket.before = old = ledger.slots[slot].holds
        self._note_given_up(ticket, old)
        if choice is not None and choice.slot == slot:
            is_copied = choice.copies
        else:
            # In a short prompt the tokens that all prompts share can make the server choose another slot than we did;
            # of one that its client has named, or may have named, nothing is copied.
            asked = ticket.visit.request
            is_copied = asked is not None and not asked.own_slot and not keeps_half(ticket.need, old)
        if self._context.model.able.keeps_copies is not False and is_copied:
            ledger.copied(old)
        if continues_talk(ticket.need, old) and isinstance(old, Talk):
            ledger.taken(old)
        elif (copy := self._loaded(ticket, old)) is not None:
            ticket.loaded, ticket.older = copy, ledger.older(copy)
            ledger.taken(copy)
        ledger.lease(slot, ticket.number, task, self._will_hold(ticket))
        ticket.slot = slot

    def _will_hold(self, ticket: Ticket) -> Talk | Unknown:
        """What the slot of a request that has just begun will hold; how long its answer is nobody knows."""
        need, visit = ticket.need, ticket.visit
        known = self._context.model.prefixes.get(visit.rendering)
        if not need.chain or (visit.prefix is not None and known is None):
            return Unknown()
        n_tokens = max(need.n_tokens, known.n_tokens if known else 0)
        return Talk(
            need.chain,
            need.sizes,
            n_prompt=n_tokens,
            n_tokens=n_tokens,
            prefix_key=known.key if known else "",
            prefix_tokens=known.n_tokens if known else 0,
            inputs=need.inputs,
            is_whole=False,
        )

    def _note_given_up(self, ticket: Ticket, old: Holding) -> None:
        """Count what a conversation in host memory has more than the slot that was preferred to it."""
        able, need, ledger = self._context.model.able, ticket.need, self._context.model.ledger
        copy = ledger.longest_copy(need) if able.has_window and ticket.plan.source is Source.HIT else None
        if copy is not None and not copy.is_anchor and is_resumable(need, copy, able):
            ledger.given_up[need.prefix_key] += max(0, copy.n_tokens - (share(need, old) or 0))

    def enter(self, ticket: Ticket, looks: list[Look]) -> None:
        """Beliefs after a request, from its own figures; a look tells the slot where that is not known yet."""
        ledger = self._context.model.ledger
        if ticket.slot is None and len(ledger.slots) == 1:
            self.take_slot(ticket, 0)
        if ticket.slot is None:
            changed = [look.slot for look in looks if self._context.is_new(look)]
            fitting = self._found_by_length(ticket, looks)
            found = fitting if len(fitting) == 1 else changed
            if len(found) == 1:
                self.take_slot(ticket, found[0])
            if len(changed) == ticket.need.slots > 1 and ticket.status == HTTPStatus.OK:
                for slot in changed:
                    self._enter_outcome(ticket, slot, looks)
                self._context.observe(looks, changed)
        # Of a slot that another prompt has got a look from before tells nothing any more.
        own = () if ticket.slot is None or ticket.number in ledger.displaced else (ticket.slot,)
        ledger.release(ticket.number)
        if ticket.status == HTTPStatus.OK:
            ledger.may_be_hot = False
        # Without a status the client has left before it came; the server may have begun all the same.
        if ticket.slot is not None and ticket.status in (0, HTTPStatus.OK) and not ticket.is_reclaimed:
            self._enter_outcome(ticket, ticket.slot, looks)
        ledger.displaced.pop(ticket.number, None)
        if ticket.figures is not None and ticket.figures.cache_n is not None:
            self._enter_displaced(ticket, ticket.figures.cache_n)
            self._enter_loaded(ticket, ticket.figures.cache_n)
        self._context.observe(looks, own)
        if ticket.figures is not None:
            self._learn(ticket, ticket.figures)

    def _found_by_length(self, ticket: Ticket, looks: list[Look]) -> list[int]:
        """The slots that hold as much as prompt and answer make, with a task that is newer than the request.

        Of an answer that is over before anybody looks another look may have taken the news.
        """
        figures, slots = ticket.figures, self._context.model.ledger.slots
        if figures is None or not figures.prompt_tokens or ticket.need.slots > 1:
            return []
        n_tokens = figures.prompt_tokens + max(0, (figures.predicted_n or 0) - 1)
        new = [k for k in looks if k.slot < len(ticket.tasks) and k.task != ticket.tasks[k.slot] and not k.is_busy]
        free = [look for look in new if slots[look.slot].lease in (0, ticket.number)]
        return [look.slot for look in free if abs(look.n_tokens - n_tokens) <= LENGTH_TOLERANCE]

    def _enter_outcome(self, ticket: Ticket, slot: int, looks: list[Look]) -> None:
        """The slot holds the conversation now; unless a later task has found it idle and had it moved away."""
        ledger, able = self._context.model.ledger, self._context.model.able
        if ticket.number in ledger.displaced:
            self._enter_lost_slot(ticket, ledger.displaced[ticket.number])
            return
        look = next((look for look in looks if look.slot == slot), None)
        is_later = look is not None and ticket.seen is not None and look.task != ticket.seen.task
        is_empty = look is not None and look.n_tokens == 0 and not look.is_busy
        if is_later and is_empty and able.clears_idle and able.keeps_copies:
            ledger.copied(self._outcome(ticket, None))
            ledger.hold(slot, Nothing(), has_run=False)
        else:
            ledger.hold(slot, self._outcome(ticket, look), is_contested=is_later)

    def _enter_lost_slot(self, ticket: Ticket, over: Need | None) -> None:
        """Another prompt has got the slot already; `over` is what it needed, if it may have been put over this one."""
        outcome = self._outcome(ticket, None)
        if self._context.model.able.keeps_copies and (over is None or not is_overwritten(over, outcome)):
            self._context.model.ledger.copied(outcome)

    def _loaded(self, ticket: Ticket, old: Holding) -> Talk | None:
        """What the server loads from host memory; what was to be resumed, also where `old` is moved there only now."""
        ledger = self._context.model.ledger
        if found := loaded(ticket.need, old, ledger.copies.values()):
            return found
        return ledger.longest_copy(ticket.need) if ticket.plan.source is Source.RESUME else None

    def _enter_displaced(self, ticket: Ticket, cache_n: int) -> None:
        """What its slot was believed to hold moved to host memory, if its reuse can't have come from that."""
        plan, copy = ticket.plan, ticket.loaded
        is_resumed = plan.source is Source.RESUME and copy is not None and is_from(copy, cache_n)
        is_restored = plan.source is Source.RESTORE and ticket.slot == plan.slot and cache_n == plan.expected_cache_n
        if self._context.model.able.keeps_copies and (is_resumed or is_restored):
            self._context.model.ledger.copied(ticket.before)

    def _enter_loaded(self, ticket: Ticket, cache_n: int) -> None:
        """Where less was reused than the copy has that was to be loaded, it was not: it is gone, or still there."""
        copy, need, ledger = ticket.loaded, ticket.need, self._context.model.ledger
        if copy is None or not continues_talk(need, copy):
            return
        if is_from(copy, cache_n):
            if (anchor := self._anchor_instead(copy, need, cache_n)) is not None:
                ledger.copied(copy)
                ledger.taken(anchor)
            return
        if is_overwritten(need, ticket.before):
            ledger.copied(copy)  # the slot was freed just then, and the server did not look any farther
            return
        slack = 0 if self._context.model.able.rolls_back else MARK_SLACK
        # A model that can't roll back went on from a checkpoint some tokens before what it shares with the one loaded.
        others = [talk for talk in ledger.copies.values() if (share(need, talk) or 0) <= cache_n + slack]
        if (other := loaded(need, ticket.before, others)) is not None:
            ledger.taken(other)

    def _anchor_instead(self, copy: Talk, need: Need, cache_n: int) -> Talk | None:
        """The anchor that was loaded in a copy's place, as more of it was kept: the answer had come back changed."""
        able, copies = self._context.model.able, self._context.model.ledger.copies.values()
        if not able.rolls_back or copy.is_anchor or cache_n >= copy.n_prompt:
            return None
        return next((talk for talk in copies if talk.is_anchor and share(need, talk) == cache_n), None)

    def _learn(self, ticket: Ticket, figures: Figures) -> None:
        """What the figures say of our rendering and of what was claimed."""
        learn_rate(self._context.model, ticket, self._context.settings.min_prefix_tokens)
        is_comparable = ticket.n_rendered > 0 and ticket.visit.is_text
        if is_comparable and figures.prompt_tokens not in (None, ticket.n_rendered):
            self._context.model.renders = False
            self._context.report.trouble(
                "rendering", f"/apply-template gives {ticket.n_rendered} tokens, the answer {figures.prompt_tokens}"
            )
        if figures.cache_n is not None:
            learn_from_reuse(self._context.model, ticket, figures.cache_n)
        verdict = judge(ticket.plan, figures.cache_n)
        if not verdict.is_kept:
            self._claim_failed(ticket, verdict.reason)
            return
        if ticket.plan.source is Source.RESUME:
            self._context.model.failed_resumes = 0
        if ticket.plan.expected_cache_n > 0:
            self._context.model.failed_claims = 0
        need, name = ticket.need, shown(ticket.fingerprint)
        for key, _ in need.stems:
            if any(isinstance(step, Restore) and step.key == key for step in ticket.plan.steps):
                self._context.store.used(key)
        for key, n_tokens in ((need.prefix_key, need.prefix_tokens), (need.head_key, need.head_tokens)):
            if (figures.cache_n or 0) >= n_tokens > 0:
                self._context.store.used(key, name)

    def _outcome(self, ticket: Ticket, seen: Look | None) -> Talk | Unknown:
        figures, need, visit, able = ticket.figures, ticket.need, ticket.visit, self._context.model.able
        if not visit.chain or visit.request is None or not visit.may_prepare:
            return Unknown(seen.n_tokens if seen else 0)
        if seen is not None and ticket.seen is not None and seen.task != ticket.seen.task:
            seen = None  # of somebody else already
        known = self._context.model.prefixes.get(visit.rendering)
        head = self._context.model.prefixes.get(visit.head)
        # Of several answers nobody knows which one is in which slot.
        is_whole = figures is not None and ticket.is_whole and visit.request.choices == 1
        prompt = (figures.prompt_tokens if figures else None) or 0
        answer = (figures.predicted_n if figures else None) or 0
        believed = prompt + max(0, answer - 1)
        # Where nobody has tried what a slot can be gone back in to, a hit that claims nothing may be none.
        is_hit = ticket.plan.source is Source.HIT and (ticket.plan.expected_cache_n > 1 or not able.is_untried)
        marked = is_hit or ticket.plan.source in (Source.WARM_UP, Source.RESTORE) or self._was_marked(ticket)
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
            is_changed=self._is_changed(ticket),
            whole=whole_after(ticket.before, ticket.loaded, (figures.cache_n if figures else None) or 0, able),
            # After an anchor it is the anchor that can be gone back in.
            is_first=not visit.has_past and not ticket.n_anchored and _stood_at_prefix_end(ticket),
            keeps_question=_ran_through_question(ticket),
            keeps_last=_ran_through_last(ticket),
        )

    def _is_changed(self, ticket: Ticket) -> bool:
        """Whether its client sends answers back changed, so far as that matters on this model."""
        model = self._context.model
        if model.able.goes_back_freely:
            return False
        changed = _came_back_changed(ticket)
        if changed is not None:
            model.answers_change = changed
        # Where going back is worse than beginning anew, one client's way is taken for that of all.
        is_like_all = model.able.truncates and model.answers_change
        return bool(changed) or _was_changed(ticket) or is_like_all or self._was_outdone(ticket)

    def _was_outdone(self, ticket: Ticket) -> bool:
        """Whether an anchor was loaded in the place of its conversation: more of it was kept, as an answer had come
        back changed."""
        copy, reused = ticket.loaded, (ticket.figures.cache_n if ticket.figures else None) or 0
        if (
            copy is None
            or not copy.is_whole
            or not continues_talk(ticket.need, copy)
            or reused >= copy.n_prompt - MARK_SLACK
        ):
            return False
        anchors = [talk for talk in self._context.model.ledger.copies.values() if talk.is_anchor]
        return any(abs((share(ticket.need, anchor) or 0) - reused) <= MARK_SLACK for anchor in anchors)

    def _was_marked(self, ticket: Ticket) -> bool:
        if ticket.plan.source not in (Source.CONTINUE, Source.RESUME) or ticket.slot is None:
            return False
        is_marked = isinstance(ticket.before, Talk) and ticket.before.is_marked
        return is_marked or ticket.plan.source is Source.RESUME

    def _claim_failed(self, ticket: Ticket, reason: str) -> None:
        model = self._context.model
        self._context.report.claim_failed(ticket, reason)
        if ticket.plan.source is Source.RESUME:
            # Nobody can have changed a conversation that goes on.
            is_gone = ticket.plan.reason == "host_memory_holds_conversation"
            model.resume_failed(is_gone=is_gone, older=ticket.older)
            return
        if ticket.plan.reason == "host_memory_begins_with_prefix" and model.able.rolls_back:
            # Of a dense model one that is gone says nothing of the others.
            model.able = replace(model.able, copies_roll_back=False if model.able.window != 0 else None)
            return
        held = ticket.loaded or ticket.before
        if is_question_edited(ticket.need, ticket.before, model.able) or is_last_edited(ticket.need, held, model.able):
            model.able = replace(model.able, keeps_questions=False)
            return
        model.failed_claims += 1
        model.prefixes.pop(ticket.visit.rendering, None)
        for belief in model.ledger.idle():
            if belief.slot != ticket.slot:
                belief.holds = belief.holds if isinstance(belief.holds, Nothing) else Unknown(belief.holds.n_tokens)
        if ticket.plan.source is Source.RESTORE and ticket.slot == ticket.plan.slot:  # else the file is not to blame
            for step in ticket.plan.steps:
                if isinstance(step, Restore):
                    self._context.store.useless(step.key)


def _came_back_changed(ticket: Ticket) -> bool | None:
    """Whether the answer of the turn before came back changed; None where that can't be told."""
    before = ticket.before if continues_talk(ticket.need, ticket.before) else ticket.loaded
    reused = ticket.figures.cache_n if ticket.figures else None
    if not isinstance(before, Talk) or not continues_talk(ticket.need, before) or before.is_anchor:
        return None
    if reused is None or not before.is_whole or not is_from(before, reused):
        return None
    if before.n_tokens <= before.n_prompt + LENGTH_TOLERANCE:
        return None  # no answer worth the name, or all of it a prompt of ours
    return reused < before.n_tokens - LENGTH_TOLERANCE


def _was_changed(ticket: Ticket) -> bool:
    """Whether an earlier answer of this conversation did."""
    continued = (one for one in (ticket.before, ticket.loaded) if continues_talk(ticket.need, one or Nothing()))
    return any(one.is_changed for one in continued if isinstance(one, Talk))


def _ran_through_question(ticket: Ticket) -> bool:
    """Whether the request itself prefilled where its first question begins, some tokens before the head's end."""
    need, reused = ticket.need, (ticket.figures.cache_n if ticket.figures else None) or 0
    if ticket.visit.has_past:
        return not reused  # after an older checkpoint there is none where a question begins
    is_behind = need.head_tokens > 0 and reused >= need.head_tokens - MARK_SLACK
    is_repeated = any(repeats_talk(need, one or Nothing()) for one in (ticket.before, ticket.loaded))
    return not (ticket.n_anchored or is_behind or is_repeated)


def _ran_through_last(ticket: Ticket) -> bool:
    """Whether the request itself prefilled where its last message begins, and that is a user's."""
    request, need, figures = ticket.visit.request, ticket.need, ticket.figures
    if request is None or figures is None or request.messages[-1].get("role") != "user":
        return False
    return not any(repeats_talk(need, one or Nothing()) for one in (ticket.before, ticket.loaded))


def _stood_at_prefix_end(ticket: Ticket) -> bool:
    """Whether the server went on from the prefix's end, or some tokens before: there it left a checkpoint."""
    reused = (ticket.figures.cache_n if ticket.figures else None) or 0
    return ticket.need.prefix_tokens > 0 and reused >= ticket.need.prefix_tokens - MARK_SLACK


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
