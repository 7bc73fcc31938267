"""Which idle slot the server will choose for a request, and what it loads there, as pure functions of what we believe.

The server's rule (llama.cpp, `get_available_slot`): among idle slots that hold something, the one that shares the
longest prefix with the prompt, if that is more than a tenth of the prompt, the first such slot on a tie; otherwise the
least recently used one, of never-used ones the last. If the chosen slot would keep at least half of what it holds, the
rest is overwritten; if less, or if it was chosen as least recently used, its content is copied to host memory first and
a better match is loaded from there, if there is one (`server_prompt_cache::load`): it goes through the entries, oldest
first, and one takes the place of another if more of it is kept and more of the prompt is in it, both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxy.request.conversation import shared_messages
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import FIRST_MESSAGES, Holding, Need, Nothing, Talk, is_rendered_alike, share
from proxy.slots.ledger import SlotBelief

SIMILARITY = 0.1
"""`--slot-prompt-similarity`'s default."""
KEEPS = 0.5
LEAST_KEPT = 0.25
"""Entries of host memory of which less would be kept are left alone."""
MARK_SLACK = 8
"""A model that can't roll back goes back to an in-memory checkpoint instead: the last lies four tokens before a
prompt's end, and each time that a session begins at one, another token is lost."""

CHECKPOINT_STEP = 8192
"""Every so many tokens a server leaves an in-memory checkpoint in a conversation (`--checkpoint-min-step`): one that is
edited far behind the prefix is gone back in better by the server itself."""
LAST_TURN = 2
"""Messages that a turn adds, an answer and a question."""
CHECKPOINT_SLACK = 2100
"""Within how many tokens of a prompt's end a server leaves its last in-memory checkpoint: four more than `-ub`, whose
default is 512; this much is right up to `-ub 2048`."""
CHECKPOINT_DISTANCE = 512
"""How far before a prompt's end the older one of those two in-memory checkpoints lies that prefilling it leaves: `-ub`,
by default this."""


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


def chosen(need: Need, idle: Sequence[SlotBelief]) -> Holding:
    """What the slot holds that the server will choose; nothing where none is idle."""
    choice = choose(need, idle)
    return next((b.holds for b in idle if choice is not None and b.slot == choice.slot), Nothing())


def is_overwritten(need: Need, held: Holding) -> bool:
    """Whether the server, having chosen this slot, goes on from what it holds and does not look into host memory."""
    return (share(need, held) or 0) > SIMILARITY * max(1, need.n_tokens) and keeps_half(need, held)


def keeps_half(need: Need, held: Holding) -> bool:
    """Whether so much of a slot's content would stay that the server makes no copy of it."""
    return (share(need, held) or 0) >= KEEPS * held.n_tokens


def loaded(need: Need, held: Holding, copies: Iterable[Talk]) -> Talk | None:
    """The copy that the server loads into a slot that holds `held`; None where it looks for none or finds none."""
    if is_overwritten(need, held):
        return None
    base = share(need, held) or 0
    # Two of one folder share more than the prefix with the request, by how much is not known: messages tell who does.
    keeps, alike, found = -1.0 if isinstance(held, Nothing) else base / max(1, held.n_tokens), (base, 0), None
    for talk in copies:
        n_tokens = share(need, talk) or 0
        kept, common = n_tokens / max(1, talk.n_tokens), (n_tokens, shared_messages(need.chain, talk.chain))
        if kept >= LEAST_KEPT and kept > keeps and common > alike:
            keeps, alike, found = kept, common, talk
    return found


def is_turn_kept(need: Need, talk: Talk, able: Capabilities) -> bool:
    """Whether a server that can't roll back can go back to the turn before, when the last question is edited.

    It leaves in-memory checkpoints some tokens before a prompt's end and a batch before that; of a longer question both
    lie behind where it begins, and the one at the end of the turn before was dropped for them. But where a user's last
    message begins it leaves one, too.
    """
    if shared_messages(need.chain, talk.chain) < len(talk.chain) - LAST_TURN:
        return False
    distance = able.mark_distance or CHECKPOINT_DISTANCE
    is_near = talk.n_prompt - (share(need, talk) or 0) <= distance
    return able.keeps_checkpoints or is_near or is_last_edited(need, talk, able)


def is_last_edited(need: Need, held: Holding, able: Capabilities) -> bool:
    """Whether a server that can't roll back can go back to where the last message begins, which is another one now."""
    if not isinstance(held, Talk) or not (held.is_whole and held.keeps_last and able.may_keep_questions):
        return False
    return shared_messages(need.chain, held.chain) == len(held.chain) - 1 > 1 and is_rendered_alike(need, held)


def is_question_edited(need: Need, held: Holding, able: Capabilities) -> bool:
    """Whether a server that can't roll back can go back to where a first question begins, which is another one now.

    That lies behind all that sessions of one folder share. A sliding window may have left another one in its place.
    """
    if not isinstance(held, Talk) or not held.is_whole or not able.may_keep_questions:
        return False
    is_alike = shared_messages(need.chain, held.chain) == FIRST_MESSAGES - 1 and is_rendered_alike(need, held)
    return is_alike and held.keeps_question


def may_begin_in_head(need: Need, held: Holding, able: Capabilities) -> bool:
    """Whether a server that nobody has tried may go back in this to within the head, which the request has, too.

    It leaves in-memory checkpoints a batch before a prompt's end and later, and by as much a head is longer than the
    exact prefix. Not where the model may have a sliding window.
    """
    if not able.is_untried or able.window != 0 or able.keeps_heads is False:
        return False
    return isinstance(held, Talk) and held.is_whole and bool(need.head_key) and held.head_key == need.head_key


def is_telling(need: Need, held: Holding, able: Capabilities) -> bool:
    """Whether what the server makes of this, left to itself, tells what it can go back to; so far nobody knows."""
    if able.rolls_back is not None or not isinstance(held, Talk) or held.is_marked:
        return False
    return held.is_whole and bool(need.prefix_key) and held.prefix_key == need.prefix_key


def reach(need: Need, talk: Talk, able: Capabilities) -> int:
    """How much of the prefix a conversation gives to another one; 0 where that is not known."""
    if not talk.is_whole:
        return 0
    if able.rolls_back:
        return need.prefix_tokens
    alike = shared_messages(need.chain, talk.chain)
    is_kept = (talk.is_marked and able.keeps_checkpoints) or is_turn_kept(need, talk, able)
    if (alike > 1 and is_kept) or (share(need, talk) or 0) >= need.prefix_tokens + CHECKPOINT_STEP:
        return need.prefix_tokens
    return max(1, need.prefix_tokens - CHECKPOINT_SLACK) if talk.is_marked else 0


def is_from(copy: Talk, cache_n: int) -> bool:
    """Whether so many reused tokens are those of a conversation that goes on; of its answer they need not be.

    A client may send that back changed, without what the model thought, say.
    """
    return cache_n >= copy.n_prompt - MARK_SLACK
