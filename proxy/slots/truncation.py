"""Sliding windows that came back from host memory or a file: how far a slot with one can be gone back in.

The server writes no more than the window of a slot's end. With the smaller window cache (its default) it knows, and
prefills again what it would need. With `--swa-full` it does not: less than a window back it attends to what is not
there, and its answer is another one; farther back it begins at token 0. So such a slot is moved out of the way of a
request that would go back in it, and a prompt of ours that would is prefilled anew.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import (
    NOWHERE_CUT,
    Holding,
    Need,
    Prefix,
    Talk,
    Whole,
    continues_talk,
    is_of_prefix,
    is_truncated,
    share,
)
from proxy.slots.ledger import LENGTH_TOLERANCE, SlotBelief
from proxy.slots.prediction import loaded


def whole_after(before: Holding, copy: Talk | None, cache_n: int, able: Capabilities) -> Whole:
    """Where a slot can be gone back to after a prompt that reused so many tokens of a copy, or of what it held."""
    if not able.has_window or not cache_n:
        return NOWHERE_CUT
    if copy is not None:
        # What an anchor begins with is in no message, or in all of them; of a conversation the answer follows.
        n_messages = 0 if is_of_prefix(copy) else len(copy.chain) + (not copy.is_anchor)
        whole = Whole(copy.n_tokens, n_messages)
    else:
        whole = before.whole if isinstance(before, Prefix | Talk) else NOWHERE_CUT
    # The last token of what was written can be replaced: its window is there.
    is_exact = not able.truncates or whole.n_tokens - cache_n <= 1
    return replace(whole, n_tokens=cache_n) if is_exact and cache_n < whole.n_tokens else whole


def truncated(need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> list[SlotBelief]:
    """Slots that the request would go back in to where they have not all that is attended to."""
    return [b for b in idle if is_truncated(need, b.holds)] if able.truncates else []


def is_resumable(need: Need, copy: Talk, able: Capabilities) -> bool:
    """Whether a request that continues or repeats this copy goes on from its end."""
    return not able.truncates or (share(need, copy) or 0) >= copy.n_tokens - 1


def is_spoilt(need: Need, held: Holding, copies: Iterable[Talk], able: Capabilities) -> bool:
    """Whether a prompt would go back in what its slot holds, or would load from host memory, to where that is not."""
    if not able.truncates:
        return False
    copy = loaded(need, held, copies)
    return is_truncated(need, held) if copy is None else (share(need, copy) or 0) < copy.n_tokens - 1


def loaded_exactly(need: Need, talk: Talk, copies: Iterable[Talk], cache_n: int) -> Talk | None:
    """This copy, or an anchor that the request goes on from, if so many reused tokens are those of its end."""
    anchors = (copy for copy in copies if copy.is_anchor and continues_talk(need, copy))
    return next((copy for copy in (talk, *anchors) if _is_end(copy, cache_n)), None)


def _is_end(copy: Talk, cache_n: int) -> bool:
    """Of an anchor all but its last token; one token can always be gone back."""
    return copy.n_tokens - 1 <= cache_n <= copy.n_tokens + (-1 if copy.is_anchor else LENGTH_TOLERANCE)
