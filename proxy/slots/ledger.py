"""The ledger: what we believe each slot, and the server's host memory, holds.

Changed only by the engine, by synchronous methods, so that no `await` ever stands in the middle of a change. Whatever
it can't explain (a slot's task number or length changed and no request of ours did it) makes that slot unknown.

A look at `/slots` is a hint: it can take beliefs away, never add one, save that a slot which holds no tokens holds
nothing. What a request left behind is entered from that request's own answer.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from proxy.slots.holding import Holding, Need, Nothing, Prefix, Talk, Unknown, continues_talk

MAX_COPIES = 256
"""Host-memory entries remembered; older ones are the first that the server evicts, too."""


@dataclass(frozen=True, slots=True)
class Look:
    """One slot as `GET /slots` shows it."""

    slot: int
    task: int | None
    """Task number of the last completion; None for a slot that never ran one."""
    n_tokens: int
    is_busy: bool


@dataclass(slots=True)
class SlotBelief:
    """What we believe of one slot."""

    slot: int
    holds: Holding = field(default_factory=Unknown)
    lease: int = 0
    """Number of the request of ours that is (believed to be) in it; 0 for none."""
    seen: Look | None = None
    last_used: int = 0
    """Grows with each use; 0 for a slot that was never used."""


class Ledger:
    """Beliefs about one model on one server process."""

    def __init__(self, total_slots: int = 1) -> None:
        self.slots: list[SlotBelief] = [SlotBelief(i) for i in range(total_slots)]
        self.copies: OrderedDict[bytes, Talk] = OrderedDict()
        self.saw_start = False
        """Whether all that this process did since its start was seen: what is not known here then does not exist."""
        self._uses = 0

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{b.slot}:{type(b.holds).__name__}/{b.holds.n_tokens}{'*' * bool(b.lease)}" for b in self.slots
        )
        return f"<Ledger {shown} copies={len(self.copies)}>"

    def forget(self, total_slots: int | None = None) -> None:
        """Believe nothing any more: another server process, or one that slept."""
        leases = {b.slot: b.lease for b in self.slots}
        self.slots = [SlotBelief(i, lease=leases.get(i, 0)) for i in range(total_slots or len(self.slots))]
        self.copies.clear()
        self.saw_start = False

    def observe(self, looks: Sequence[Look], ours: Iterable[int] = ()) -> list[int]:
        """Compare with a look at `/slots`; returns the slots whose belief was given up. `ours` we used ourselves."""
        surprised: list[int] = []
        mine = set(ours)
        for look in looks:
            if not 0 <= look.slot < len(self.slots):
                continue
            belief = self.slots[look.slot]
            before, belief.seen = belief.seen, look
            if look.is_busy or belief.lease:
                continue
            if look.slot not in mine and before is not None and before.task != look.task:
                surprised.append(look.slot)
                belief.holds = Unknown(look.n_tokens)
            elif look.n_tokens == 0 and not isinstance(belief.holds, Prefix | Nothing):
                # Cleared by the server itself when another request started (it made a copy), or by somebody's erase.
                belief.holds = Nothing()
            elif look.n_tokens == 0 and isinstance(belief.holds, Prefix) and look.task is not None:
                surprised.append(look.slot)
                belief.holds = Nothing()
            elif not isinstance(belief.holds, Unknown) and not _fits(belief.holds, look):
                surprised.append(look.slot)
                belief.holds = Unknown(look.n_tokens)
        return surprised

    def first_look(self, looks: Sequence[Look]) -> None:
        """The first look at a server process: slots that never ran a completion are empty, others unknown."""
        self.saw_start = all(look.task is None and not look.is_busy for look in looks)
        for look in looks:
            if 0 <= look.slot < len(self.slots):
                belief = self.slots[look.slot]
                belief.seen = look
                is_fresh = look.task is None and look.n_tokens == 0 and not look.is_busy
                belief.holds = Nothing() if is_fresh else Unknown(look.n_tokens)

    def hold(self, slot: int, holding: Holding) -> None:
        """A slot now holds this, by our own doing."""
        if 0 <= slot < len(self.slots):
            self.slots[slot].holds = holding
            if isinstance(holding, Prefix | Talk):
                self._uses += 1
                self.slots[slot].last_used = self._uses

    def lease(self, slot: int, number: int) -> None:
        """A request of ours has begun in a slot; what was there is being overwritten."""
        if not 0 <= slot < len(self.slots):
            return
        belief = self.slots[slot]
        if belief.lease and belief.lease != number:
            raise ValueError(f"slot {slot} is leased to {belief.lease}, not free for {number}")
        belief.lease = number

    def release(self, number: int) -> None:
        """The request has ended; settling twice does no harm."""
        for belief in self.slots:
            if belief.lease == number:
                belief.lease = 0

    def copied(self, holding: Holding) -> None:
        """The server has a copy of this in host memory."""
        if isinstance(holding, Talk):
            self.copies.pop(holding.chain[-1], None)
            self.copies[holding.chain[-1]] = holding
            while len(self.copies) > MAX_COPIES:
                self.copies.popitem(last=False)

    def taken(self, talk: Talk) -> None:
        """A copy was loaded into a slot, or turned out to be gone."""
        self.copies.pop(talk.chain[-1], None)

    def idle(self) -> list[SlotBelief]:
        """Slots with no request of ours, that were not seen working."""
        return [b for b in self.slots if not b.lease and not (b.seen is not None and b.seen.is_busy)]

    def longest_copy(self, need: Need) -> Talk | None:
        """The copied conversation that the request continues, if there is one."""
        found = [talk for talk in self.copies.values() if continues_talk(need, talk)]
        return max(found, key=lambda talk: len(talk.chain), default=None)


def _fits(holding: Holding, look: Look) -> bool:
    """Whether the slot's length can be what we believe; an older server does not tell lengths of restored slots."""
    if isinstance(holding, Prefix):
        return look.task is None or look.n_tokens in (0, holding.n_tokens)
    if isinstance(holding, Talk):
        return not holding.is_whole or abs(look.n_tokens - holding.n_tokens) <= LENGTH_TOLERANCE
    return look.n_tokens == 0


LENGTH_TOLERANCE = 2
"""A slot may hold the last generated token or not."""
