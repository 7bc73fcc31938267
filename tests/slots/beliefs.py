"""Short ways to write down needs, holdings and ledgers: a talk is a text, each letter a message of 100 tokens."""

import hashlib
from collections.abc import Callable
from itertools import accumulate

from proxy.slots.holding import BYTES_PER_TOKEN, Holding, Need, Prefix, Talk
from proxy.slots.ledger import Ledger, Look

MESSAGE_TOKENS = 100
MESSAGE_BYTES = int(MESSAGE_TOKENS * BYTES_PER_TOKEN)
PREFIX_TOKENS = 80


def chain(letters: str) -> tuple[bytes, ...]:
    """Running hashes, as `request.conversation` makes them."""
    return tuple(hashlib.blake2b(text.encode(), digest_size=16).digest() for text in accumulate(letters))


def sizes(letters: str) -> tuple[int, ...]:
    return (MESSAGE_BYTES,) * len(letters)


def need(letters: str, prefix: str = "P", *, has_past: bool = False, slots: int = 1) -> Need:
    return Need(chain(letters), sizes(letters), prefix, PREFIX_TOKENS if prefix else 0, has_past, slots)


def talk(letters: str, prefix: str = "P", *, answer: int = 20, is_whole: bool = True, is_marked: bool = False) -> Talk:
    n_prompt = MESSAGE_TOKENS * len(letters)
    n_prefix = PREFIX_TOKENS if prefix else 0
    return Talk(
        chain(letters), sizes(letters), n_prompt, n_prompt + answer, prefix, n_prefix, is_whole, is_marked=is_marked
    )


def bare(prefix: str = "P") -> Prefix:
    return Prefix(prefix, PREFIX_TOKENS)


def ledger(
    *holdings: Holding,
    busy: tuple[int, ...] = (),
    saw_start: bool = True,
    clock: Callable[[], float] = lambda: float("-inf"),
) -> Ledger:
    """One slot for each holding, used in this order; `busy` ones are leased."""
    made = Ledger(len(holdings), clock=clock)
    made.saw_start = saw_start
    for slot, holding in enumerate(holdings):
        made.hold(slot, holding)
    for slot in busy:
        made.lease(slot, 100 + slot, will_hold=made.slots[slot].holds)
    return made


def look(slot: int, task: int | None, n_tokens: int = 0, *, is_busy: bool = False) -> Look:
    return Look(slot, task, n_tokens, is_busy)
