"""Anchors: when beginnings are worth a place in host memory that they keep, and when another place is better.

A server that can't roll back goes back to an in-memory checkpoint. Of those that lie near each other some builds keep
only the oldest once the next prompt has run, a sliding window that comes back from host memory has no more than its
window, and a conversation there is gone when a new session has taken it for its prefix. So what a new session could
begin with, and what an edited one could go back to, is lost after the second turn. An anchor is such a beginning with
another token at its end: the server drops an entry that another one contains, and this one is contained in none, so it
stays, with its checkpoints as they were. There are two for a first turn, the exact prefix, for new sessions, and the
whole prompt, for edits; and between them the head, for new sessions in that folder, where it is longer. Together they
cost a new prefix's first session eight tokens at most.
"""

from collections.abc import Sequence

from proxy.request.conversation import shared_messages
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Holding, Need, Nothing, Talk, is_truncated, of_prefix, share
from proxy.slots.ledger import Ledger
from proxy.slots.plan import Anchor, Keep, Step
from proxy.slots.prediction import CHECKPOINT_STEP, choose, is_question_edited, is_turn_kept, loaded

WINDOW = 512
"""Tokens of a usual sliding window."""
SMALLEST_REACH = 448
"""A batch, some tokens less."""


def anchors(need: Need, ledger: Ledger, able: Capabilities) -> tuple[Step, ...]:
    """Those that a first turn leaves behind where the server would forget what it could go back to in it.

    Not beside others: what they leave meanwhile would get in between.
    """
    is_alone = len(ledger.idle()) == len(ledger.slots)
    is_first = not need.has_past and need.rest_tokens > 0 and not need.is_slow
    # What the server can go back to behind them, it leaves as it is where nobody prepares anything.
    choice = choose(need, ledger.idle())
    held = ledger.slots[choice.slot].holds if choice is not None else Nothing()
    is_needless = is_question_edited(need, loaded(need, held, ledger.copies.values()) or held, able)
    if not (leaves_anchors(able) and is_alone and is_first) or is_needless:
        return ()
    return (*(Keep(key) for key in (need.prefix_key, need.head_key) if key), Anchor())


def leaves_anchors(able: Capabilities) -> bool:
    """Whether this server needs them, and has room for them."""
    return able.needs_anchors and bool(able.keeps_copies) and able.has_room is not False


def anchor_of(key: str, ledger: Ledger) -> Talk | None:
    """That of an exact prefix, or of a head, in host memory."""
    return next((talk for talk in ledger.copies.values() if talk.is_anchor and talk.chain == of_prefix(key)), None)


def is_within_window(need: Need, held: Holding, able: Capabilities) -> bool:
    """Whether what a slot holds can be gone back in to where the request differs, without a checkpoint.

    A slot keeps a window for each slot of the server, where these share one buffer, and a batch. How long the model's
    is, its file tells; where that can't be seen one of usual length is assumed, and a shorter one learned from.
    """
    if not able.is_windowed or not isinstance(held, Talk) or not held.is_whole or is_truncated(need, held):
        return False
    return 0 <= held.n_tokens - (share(need, held) or 0) <= window_reach(able)


def serves_unprepared(need: Need, held: Holding, able: Capabilities) -> bool:
    """Whether the server goes back in this by itself about as far as to an exact prefix of ours."""
    return is_within_window(need, held, able) or is_question_edited(need, held, able)


def window_reach(able: Capabilities) -> int:
    """Tokens by which a slot with a sliding window can be gone back in, as far as is known."""
    n_windows = able.total_slots - 1 if able.clears_idle else 0
    usual = (able.window or WINDOW) * n_windows + SMALLEST_REACH
    return usual if able.window_reach is None else min(usual, able.window_reach)


def has_more_than_window(held: Holding, able: Capabilities) -> bool:
    """Whether something would be lost with what a slot holds though host memory has a copy of it."""
    is_whole = isinstance(held, Talk) and not held.whole.n_tokens
    return is_whole and (able.truncates or (bool(able.is_windowed) and window_reach(able) > SMALLEST_REACH))


def is_outdone(copy: Talk, need: Need, ledger: Ledger, able: Capabilities) -> bool:
    """Whether, in the place of an anchor, the server can go back farther or would load something else."""
    if not copy.is_anchor:
        return False
    talks = [belief.holds for belief in ledger.idle() if isinstance(belief.holds, Talk)]
    whole = [talk for talk in talks if able.truncates and not is_truncated(need, talk)]
    if any((share(need, talk) or 0) >= copy.n_tokens for talk in whole):
        return True
    if any(is_within_window(need, talk, able) for talk in talks if shared_messages(need.chain, talk.chain) > 1):
        return True
    goes_farther = any(_goes_back_to_last_turn(need, talk, copy, able) for talk in (*talks, *ledger.copies.values()))
    return goes_farther or loaded(need, Nothing(), [*ledger.copies.values(), *talks]) is not copy


def in_its_way(copy: Talk, need: Need, copies: Sequence[Talk]) -> tuple[Talk, ...]:
    """Anchors with which the server would not load this copy into an empty slot, but would without them.

    It goes through host memory oldest first, and of an anchor it keeps nearly all: more than of a conversation whose
    answer came back changed, or that is gone back in. The next first turn leaves others.
    """
    if loaded(need, Nothing(), copies) is copy:
        return ()
    older = copies[: next(place for place, talk in enumerate(copies) if talk is copy)]
    anchors = tuple(talk for talk in older if talk.is_anchor and _kept(need, talk) >= _kept(need, copy))
    others = [talk for talk in copies if talk not in anchors]
    return anchors if loaded(need, Nothing(), others) is copy else ()


def _kept(need: Need, talk: Talk) -> float:
    return (share(need, talk) or 0) / max(1, talk.n_tokens)


def _goes_back_to_last_turn(need: Need, talk: Talk, anchor: Talk, able: Capabilities) -> bool:
    is_farther = shared_messages(need.chain, talk.chain) > len(anchor.chain)
    return (is_farther and is_turn_kept(need, talk, able)) or (
        share(need, talk) or 0
    ) >= anchor.n_tokens + CHECKPOINT_STEP
