"""What the figures of requests teach of a server: how fast it is, how far its slots can be gone back in, what it keeps.

A server that was in use when the proxy met it can't be probed, so its answers tell instead: what it made of slots and
of host memory that nobody had prepared. Only what could have come from nowhere else is believed. Synchronous, like all
of accounting; counterpart: `llama.probe` asks the same on a server that is empty.
"""

from dataclasses import replace

from proxy.serving.model import Model
from proxy.serving.ticket import Ticket
from proxy.slots.anchoring import is_within_window
from proxy.slots.holding import Talk, Unknown, continues_talk, repeats_talk, share
from proxy.slots.plan import Source
from proxy.slots.prediction import MARK_SLACK, is_from, is_question_edited, may_begin_in_head

MISSING_COPIES = 3
"""After so many in a row host memory is off, or too small."""


def learn_rate(model: Model, ticket: Ticket, least_tokens: int) -> None:
    """How long a token takes, by a prompt of at least so many."""
    figures = ticket.figures
    if figures and figures.prompt_ms and figures.prompt_n and figures.prompt_n >= least_tokens:
        model.prompt_ms_per_token = figures.prompt_ms / figures.prompt_n


def learn_from_reuse(model: Model, ticket: Ticket, cache_n: int) -> None:
    """What so many reused tokens say."""
    _learn_window(model, ticket, cache_n)
    _learn_heads(model, ticket, cache_n)
    _learn_rollback(model, ticket, cache_n)
    _learn_copies(model, ticket, cache_n)


def _learn_window(model: Model, ticket: Ticket, cache_n: int) -> None:
    """A sliding window that could not be gone back in as far as was thought."""
    before, need = ticket.before, ticket.need
    if not isinstance(before, Talk) or not is_within_window(need, before, model.able):
        return
    if cache_n < need.prefix_tokens - MARK_SLACK and before.prefix_key == need.prefix_key:
        too_far = before.n_tokens - (share(need, before) or 0)
        model.able = replace(model.able, window_reach=max(0, too_far - 1))


def _learn_rollback(model: Model, ticket: Ticket, cache_n: int) -> None:
    """That a conversation could not be gone back in to the end of the exact prefix, which nobody had marked.

    That it could tells nothing: the server may have gone back to an in-memory checkpoint of its own.
    """
    before, need, able = ticket.before, ticket.need, model.able
    is_native = ticket.plan.source is Source.HIT and ticket.plan.reason == "conversation_begins_with_prefix"
    if able.rolls_back is not None or not is_native or not isinstance(before, Talk) or before.is_marked:
        return
    is_tried = before.prefix_key == need.prefix_key and not is_question_edited(need, before, able)
    if is_tried and cache_n < need.prefix_tokens - MARK_SLACK:
        model.able = replace(able, rolls_back=False)


def _learn_heads(model: Model, ticket: Ticket, cache_n: int) -> None:
    """That what was left to the server could not be gone back in to within the head, or no farther than to there.

    Of one that can be gone back in anywhere all of the head is reused.
    """
    need, held = ticket.need, ticket.loaded or ticket.before
    is_tried = ticket.plan.source is Source.HIT and may_begin_in_head(need, held, model.able)
    if is_tried and cache_n < need.prefix_tokens - MARK_SLACK:
        model.able = replace(model.able, keeps_heads=False)
    elif is_tried and cache_n < need.head_tokens - MARK_SLACK:
        model.able = replace(model.able, rolls_back=False)


def _learn_copies(model: Model, ticket: Ticket, cache_n: int) -> None:
    """Whether a conversation comes back that its slot did not hold.

    Of a sliding window nothing is learned: what comes back may be gone back in where it is not whole.
    """
    need, before, copy = ticket.need, ticket.before, ticket.loaded
    if model.able.keeps_copies is not None or model.able.window != 0 or copy is None or isinstance(before, Unknown):
        return
    is_elsewhere = (share(need, before) or 0) + MARK_SLACK < copy.n_prompt
    if not is_elsewhere or not (continues_talk(need, copy) or repeats_talk(need, copy)):
        return
    came_back = is_from(copy, cache_n)
    model.missing_copies = 0 if came_back else model.missing_copies + 1
    if came_back or model.missing_copies >= MISSING_COPIES:
        model.able = replace(model.able, keeps_copies=came_back)
