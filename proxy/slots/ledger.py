"""The ledger: what we believe each slot, and the server's host memory, holds.

Changed only by the engine, by synchronous methods, so that no `await` ever stands in the middle of a change. Whatever
it can't explain (a slot's task number or length changed and no request of ours did it) makes that slot unknown.

A look at `/slots` is a hint: it can take beliefs away, never add one, save that a slot which holds no tokens holds
nothing. What a request left behind is entered from that request's own answer.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from proxy.slots.holding import (
    Holding,
    Need,
    Nothing,
    Prefix,
    Talk,
    Unknown,
    continues_talk,
    goes_beyond,
    repeats_talk,
)

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
    tells_length: bool = True
    """False for a build that does not say how many tokens its slots hold."""

    n_processed: int = 0
    """Prompt tokens prefilled for the running request; on some builds kept after it."""
    n_cache: int = 0
    """Prompt tokens reused by it."""
    asked_at: float | None = field(default=None, compare=False)
    """When it was asked for, on the ledger's clock; None where nobody knows."""


@dataclass(slots=True)
class SlotBelief:
    """What we believe of one slot."""

    slot: int
    holds: Holding = field(default_factory=Unknown)
    lease: int = 0
    """Number of the request of ours that is (believed to be) in it; 0 for none."""
    lease_task: int | None = None
    """Its task number, where it was seen: with another one it has ended, and the slot is somebody else's."""
    will_hold: Holding = field(default_factory=Unknown)
    """What it will leave, as far as that can be told."""
    seen: Look | None = None
    last_used: int = 0
    """Grows with each use; 0 for a slot that was never used."""
    is_contested: bool = False
    """Whether somebody's task was seen in it that may have overwritten what it is believed to hold."""
    changed_at: float = float("-inf")
    """When that was entered, on the ledger's clock: a look that was asked for before it tells nothing of it."""
    is_renumbered: bool = False
    """Whether a prompt of ours has ended in it whose task number has not been seen yet."""

    @property
    def soon_holds(self) -> Holding:
        """What it holds as soon as it is idle."""
        return self.will_hold if self.lease else self.holds

    def is_newer_than(self, look: "Look") -> bool:
        """Whether this was entered, or seen, after that was asked for."""
        seen_at = self.seen.asked_at if self.seen else None
        return look.asked_at is not None and look.asked_at < max(self.changed_at, seen_at or self.changed_at)


PROBED_SLOTS = 2


class Ledger:
    """Beliefs about one model on one server process."""

    def __init__(self, total_slots: int = 1, *, clock: Callable[[], float] = lambda: float("-inf")) -> None:
        self._clock = clock
        self.slots: list[SlotBelief] = [SlotBelief(i) for i in range(total_slots)]
        self.copies: OrderedDict[bytes, Talk] = OrderedDict()
        self.saw_start = False
        """Whether all that this process did since its start was seen: what is not known here then does not exist."""
        self.may_be_hot = True
        """Whether nothing was learned yet of a process that may hold anybody's work: no request of ours has ended."""
        self.n_ended = 0
        """Grows with each request of ours that leaves a slot."""
        self.displaced: dict[int, Need | None] = {}
        """Requests that ended in a slot which another prompt got before they were accounted for: what that one needed,
        or None where the server had moved to host memory what they left."""
        self.given_up: Counter[str] = Counter()
        """By exact prefix: tokens of conversations in host memory that were not brought back, as they were few."""
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
        self.displaced.clear()
        self.given_up.clear()
        self.saw_start = False
        self.may_be_hot = True

    def emptied(self) -> None:
        """The server slept: its slots and its host memory are known to be empty."""
        for belief in self.slots:
            belief.seen = None
            belief.last_used = 0
            if not belief.lease:
                belief.holds = Nothing()
        self.copies.clear()
        self.saw_start, self.may_be_hot = True, False

    def observe(
        self,
        looks: Sequence[Look],
        ours: Iterable[int] = (),
        *,
        pending: Collection[int] = (),
        can_be_moved: bool = True,
        are_moved: bool = False,
    ) -> list[int]:
        """Compare with a look at `/slots`; returns the slots whose belief was given up. `ours` we used ourselves.

        In one of the `pending` slots a request of ours has ended, and its account will tell in which.
        `can_be_moved` is whether this server empties idle slots into host memory when a task begins elsewhere;
        `are_moved` whether we are just having it do so, by tasks that begin in any slot and leave no tokens.
        """
        known = [look for look in sorted(looks, key=_task_number) if 0 <= look.slot < len(self.slots)]
        begun = {look.slot for look in known if _has_begun(self.slots[look.slot].seen, look)}
        mine, surprised = set(ours), []
        newest = max((_task_number(look) for look in known), default=-1) if can_be_moved else -1
        newest += are_moved
        for look in known:
            belief = self.slots[look.slot]
            has_run = look.slot in begun
            if look.slot in pending or (look.slot not in mine and belief.is_newer_than(look)):
                continue
            if not look.is_busy and not belief.lease:
                if has_run:
                    self.used(look.slot)
                # Task numbers grow: with a larger one elsewhere, something began after this slot's last task.
                is_foreign = has_run and not (look.slot in mine or are_moved or belief.is_renumbered)
                is_passed = newest > _task_number(look)
                # A slot that never ran anything shows no length after a restore either, nor what happened since.
                tells = bool(begun) or look.task is not None or not isinstance(belief.holds, Prefix)
                if tells and self._judge(belief, look, is_foreign=is_foreign, is_passed=is_passed):
                    surprised.append(look.slot)
            belief.is_renumbered = belief.is_renumbered and not (has_run or look.slot in mine)
            is_unexplained = look.is_busy and not belief.lease
            # A task that nobody has accounted for stays news until its slot is idle or leased.
            task = (belief.seen.task if belief.seen else None) if is_unexplained else look.task
            belief.seen = look if task == look.task else replace(look, task=task)
        return sorted(surprised)

    def _judge(self, belief: SlotBelief, look: Look, *, is_foreign: bool, is_passed: bool) -> bool:
        """Take away what the look disproves; whether that is a surprise."""
        before = belief.holds
        if look.n_tokens == 0 and look.tells_length:
            was_moved = is_passed and not is_foreign  # the server makes room so when a task begins elsewhere
            if was_moved and not belief.is_contested:
                self.copied(before)
            belief.holds = Nothing()
            return is_foreign or (isinstance(before, Prefix | Talk) and not was_moved)
        if is_foreign or not (isinstance(before, Unknown) or not look.tells_length or is_as_long(before, look)):
            belief.holds = Unknown(look.n_tokens)
            return True
        return False

    def first_look(self, looks: Sequence[Look], *, was_unused: bool = False) -> None:
        """The first look at a server process: slots that never ran a completion are empty, others unknown.

        `was_unused` is True where it is known otherwise that nobody's work can be in them.
        """
        self.saw_start = was_unused or all(look.task is None and not look.is_busy for look in looks)
        for look in sorted(looks, key=_task_number):
            if 0 <= look.slot < len(self.slots):
                belief = self.slots[look.slot]
                belief.seen = look
                is_fresh = (was_unused or look.task is None) and look.n_tokens == 0 and not look.is_busy
                belief.holds = Nothing() if is_fresh else Unknown(look.n_tokens)
                if look.task is not None:
                    self.used(look.slot)

    def has_room_to_probe(self) -> bool:
        """Whether a probe would overwrite nobody's work: empty slots only, or enough that nothing ran in yet.

        The probe is put into the least recently used slot twice, and slots that were never used come first.
        """
        if any(belief.seen is not None and belief.seen.is_busy for belief in self.slots):
            return False
        unused = [b for b in self.slots if isinstance(b.holds, Nothing) and (b.seen is None or b.seen.task is None)]
        return self.saw_start or len(unused) >= PROBED_SLOTS

    def hold(self, slot: int, holding: Holding, *, has_run: bool = True, is_contested: bool = False) -> None:
        """A slot now holds this, by our own doing; `has_run` is False where no completion did it (a restore)."""
        if 0 <= slot < len(self.slots):
            belief = self.slots[slot]
            belief.holds, belief.is_contested, belief.changed_at = holding, is_contested, self._clock()
            self.may_be_hot = self.may_be_hot and not isinstance(holding, Talk)
            if has_run and not isinstance(holding, Nothing):
                self.used(slot)

    def prompted(self, slot: int, holding: Holding) -> None:
        """A slot holds this after a prompt of ours, which has left a new task number there."""
        self.hold(slot, holding)
        self.renumbered(slot)

    def renumbered(self, slot: int) -> None:
        """A prompt of ours has run in this slot: the next look shows another task number."""
        if 0 <= slot < len(self.slots):
            self.slots[slot].is_renumbered, self.slots[slot].changed_at = True, self._clock()

    def take_over(self, slot: int, holding: Holding, over: Need | None) -> None:
        """A prompt of ours got this slot; `over` is what it needed, or None where the server first moved to host
        memory what was there."""
        if not 0 <= slot < len(self.slots):
            return
        if self.slots[slot].lease:
            self.pass_on(slot, over)
        elif over is None:
            self.copied(self.slots[slot].holds)
        self.prompted(slot, holding)

    def pass_on(self, slot: int, over: Need | None) -> None:
        """The request of ours in this slot has ended, and another prompt has got it: what it left is entered later."""
        number = self.slots[slot].lease
        self.displaced[number] = over
        self.release(number)
        self.slots[slot].holds = Unknown()

    def used(self, slot: int) -> None:
        """A completion in this slot has ended: that is what the server's own order of use goes by."""
        self._uses += 1
        self.slots[slot].last_used = self._uses

    def lease(self, slot: int, number: int, task: int | None = None, will_hold: Holding | None = None) -> None:
        """A request of ours has begun in a slot, with this task number; what was there is being overwritten."""
        if not 0 <= slot < len(self.slots):
            return
        belief = self.slots[slot]
        if belief.lease and belief.lease != number:
            raise ValueError(f"slot {slot} is leased to {belief.lease}, not free for {number}")
        belief.lease, belief.lease_task, belief.will_hold = number, task, will_hold or Unknown()

    def release(self, number: int) -> None:
        """The request has ended; settling twice does no harm."""
        for belief in self.slots:
            if belief.lease == number:
                belief.lease, belief.lease_task = 0, None
                self.n_ended += 1
                if belief.seen is not None and belief.seen.is_busy:  # the look that would tell may fail
                    belief.seen = replace(belief.seen, is_busy=False)

    def copied(self, holding: Holding) -> None:
        """The server has put this into host memory: unless it is there already, and instead of what it contains."""
        if isinstance(holding, Talk):
            if (there := self.copies.get(holding.name)) is not None and there.n_tokens == holding.n_tokens:
                return  # nothing new: it keeps its place among the others
            if any(goes_beyond(talk, holding) for talk in self.copies.values()):
                return  # it is contained in that one
            for talk in [talk for talk in self.copies.values() if goes_beyond(holding, talk)]:
                self.taken(talk)
            self.taken(holding)
            self.copies[holding.name] = holding
            while len(self.copies) > MAX_COPIES:
                self.copies.popitem(last=False)

    def taken(self, talk: Talk) -> None:
        """A copy was loaded into a slot, or turned out to be gone."""
        self.copies.pop(talk.name, None)

    def older(self, talk: Talk) -> tuple[Talk, ...]:
        """What came to host memory before this copy: the server evicts the oldest first."""
        names = list(self.copies)
        return tuple(self.copies[name] for name in names[: names.index(talk.name)]) if talk.name in names else ()

    def without(self, slots: Collection[int], *, are_kept: bool) -> "Ledger":
        """What will be believed once these slots are emptied; `are_kept`, after a copy to host memory."""
        later = Ledger(0)
        later.slots = [replace(b, holds=Nothing()) if b.slot in slots else b for b in self.slots]
        later.copies = OrderedDict(self.copies)
        later.saw_start, later.may_be_hot, later.given_up = self.saw_start, self.may_be_hot, self.given_up
        for belief in self.slots:
            if are_kept and belief.slot in slots:
                later.copied(belief.holds)
        return later

    def idle(self) -> list[SlotBelief]:
        """Slots with no request of ours, that were not seen working."""
        return [b for b in self.slots if not b.lease and not (b.seen is not None and b.seen.is_busy)]

    def longest_copy(self, need: Need) -> Talk | None:
        """The copied conversation that the request continues, if there is one."""
        found = [talk for talk in self.copies.values() if continues_talk(need, talk) or repeats_talk(need, talk)]
        return max(found, key=lambda talk: (len(talk.chain), not talk.is_anchor), default=None)


def _task_number(look: Look) -> int:
    return -1 if look.task is None else look.task


def _has_begun(before: Look | None, look: Look) -> bool:
    """Whether the slot took up a task since it was last seen."""
    return before is not None and before.task != look.task


def is_as_long(holding: Holding, look: Look) -> bool:
    """Whether the slot's length can be what we believe; an older server does not tell lengths of restored slots."""
    if isinstance(holding, Prefix):
        return look.n_tokens == holding.n_tokens
    if isinstance(holding, Talk):
        return not holding.is_whole or abs(look.n_tokens - holding.n_tokens) <= LENGTH_TOLERANCE
    return False


LENGTH_TOLERANCE = 2
"""A slot may hold the last generated token or not."""
