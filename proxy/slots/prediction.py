"""Which idle slot the server will choose for a request, as a pure function of what we believe the slots hold.

The server's rule (llama.cpp, `get_available_slot`): among idle slots that hold something, the one that shares the
longest prefix with the prompt, if that is more than a tenth of the prompt, the first such slot on a tie; otherwise the
least recently used one, of never-used ones the last. If the chosen slot would keep at least half of what it holds, the
rest is overwritten; if less, or if it was chosen as least recently used, its content is copied to host memory first and
a better match is loaded from there, if there is one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.slots.holding import Need, share
from proxy.slots.ledger import SlotBelief

SIMILARITY = 0.1
"""`--slot-prompt-similarity`'s default."""
KEEPS = 0.5


@dataclass(frozen=True, slots=True)
class Choice:
    """The expected slot and what becomes of its content."""

    slot: int
    shared: int
    """Tokens that slot and request begin with alike."""
    by_similarity: bool
    overwrites: bool
    """Whether content beyond `shared` is lost without a copy."""
    copies: bool = False
    """Whether the server copies the slot's content to host memory by itself."""


def choose(need: Need, idle: Sequence[SlotBelief]) -> Choice | None:
    """The server's choice; None without an idle slot. Unknown content counts as sharing nothing."""
    if not idle:
        return None
    shares = [(share(need, belief.holds) or 0, belief) for belief in sorted(idle, key=lambda b: b.slot)]
    best, belief = max(shares, key=lambda pair: pair[0])
    if best > SIMILARITY * max(1, need.n_tokens):
        keeps = best / max(1, belief.holds.n_tokens)
        return Choice(belief.slot, best, by_similarity=True, overwrites=KEEPS <= keeps < 1, copies=keeps < KEEPS)
    oldest = min(b.last_used for _, b in shares)
    last = [b for _, b in shares if b.last_used == oldest][-1]
    return Choice(last.slot, share(need, last.holds) or 0, by_similarity=False, overwrites=False, copies=True)
