"""Stems: parts of an exact prefix that others will likely begin with, as pure functions.

One ends where the system text begins, if tools precede that: for another text with the same tools. One ends before the
line with the first date: for the next day. A prefix that is new then goes on from there; a model that can't roll back
has no other way to what the two have in common, and neither has a sliding window that came back from a file or from
host memory. Each gets a file on the way to the first prefix that begins with it; without files, and with `--swa-full`,
an anchor.
"""

from collections.abc import Sequence

from proxy.slots.anchoring import anchor_of, anchors
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Need, Prefix, is_truncated, only_prefix, share
from proxy.slots.ledger import Ledger, SlotBelief
from proxy.slots.making_room import moved_out
from proxy.slots.plan import Keep, Plan, Save, Source, Step, Warm
from proxy.slots.prediction import SIMILARITY, choose, chosen
from proxy.slots.restoring import Disk, restored

STOPS_BACK = 4
"""Tokens that may be prefilled again for it, of the eight that a new prefix may cost."""


def stem_restored(
    need: Need, idle: Sequence[SlotBelief], able: Capabilities, disk: Disk, only_slot: int | None
) -> Plan | None:
    """Restore the longest stem, unless the server finds as much by itself of what the prefix begins with."""
    key, n_tokens = next((stem for stem in reversed(need.stems) if stem[0] in disk.stems), ("", 0))
    is_seen = n_tokens > SIMILARITY * need.n_tokens
    if not (key and able.may_restore and is_seen) or _found(need, idle, able) >= n_tokens:
        return None
    made = restored(key, n_tokens, need, idle, able, only_slot)
    return Plan(Source.RESTORE, "stem_on_disk", made.steps, n_tokens, made.slot) if made is not None else None


def stems_saved(
    need: Need, idle: Sequence[SlotBelief], able: Capabilities, disk: Disk, begun: Plan | None
) -> tuple[Step, ...]:
    """On the way to a prefix that is prefilled: stop at the end of each stem, and save it; `begun` has restored one."""
    if not able.may_restore:
        return ()
    due = _behind(begun.expected_cache_n, need) if begun else _on_the_way(need, idle, able)
    return tuple(step for key in due if key in disk.new_stems for step in (Warm(key), Save(key)))


def stems_kept(need: Need, ledger: Ledger, idle: Sequence[SlotBelief], able: Capabilities) -> tuple[Step, ...]:
    """The same with anchors: have the longest one loaded, unless the server finds as much; leave those that follow."""
    if not able.truncates or not anchors(need, ledger, able):
        return ()
    there = [(key, n_tokens) for key, n_tokens in need.stems if anchor_of(key, ledger) is not None]
    key, n_done = there[-1] if there else ("", 0)
    if n_done > _found(need, idle, able):
        out = moved_out(need, [b for b in idle if share(need, b.holds) != 0], idle, able)
        return (*out, Keep(key), *map(Keep, _behind(n_done, need)))
    known = [key for key, _ in there]
    return tuple(Keep(key) for key in _on_the_way(need, idle, able) if key not in known)


def _behind(n_tokens: int, need: Need) -> list[str]:
    return [key for key, n_stem in need.stems if n_stem > n_tokens]


def _on_the_way(need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> list[str]:
    """Those at whose end a prompt can stop, and nothing is lost by it.

    What a slot has beyond would be prefilled again. And of a shorter prompt, what it shares with somebody else's
    conversation is a larger part: it may be put over that, where the request would not.
    """
    wanted, due = choose(need, idle), _behind(_found(need, idle, able) - STOPS_BACK, need)
    found = {key: choose(only_prefix(need, key, n_tokens), idle) for key, n_tokens in need.stems if key in due}
    return [key for key, one in found.items() if one is not None and wanted is not None and one.slot == wanted.slot]


def _found(need: Need, idle: Sequence[SlotBelief], able: Capabilities) -> int:
    """Tokens of the prefix that the server goes on from, left to itself, as far as that is known."""
    held = chosen(need, idle)
    if is_truncated(need, held):
        return 0
    shared = share(need, held) or 0
    is_exact = isinstance(held, Prefix) and shared == held.n_tokens
    return shared if able.rolls_back or is_exact else 0
