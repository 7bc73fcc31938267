"""What became of a conversation whose slot somebody else has got, by the figures of both."""

import asyncio
import time
from array import array
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from proxy.llama.answer import Figures
from proxy.llama.client import ControlFailed
from proxy.llama.replies import Warmed
from proxy.serving.accounting import Accounting
from proxy.serving.context import Context, PlanAgain
from proxy.serving.model import ExactPrefix, Model
from proxy.serving.neighbours import Neighbours
from proxy.serving.reporting import Reporter
from proxy.serving.slot_steps import SlotSteps
from proxy.serving.ticket import Ticket
from proxy.serving.visit import Visit, understand
from proxy.settings import Settings
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import NOWHERE_CUT, Holding, Need, Nothing, Talk, Unknown, Whole, of_prefix
from proxy.slots.ledger import Look
from proxy.slots.plan import Plan, Restore, Source
from proxy.slots.prediction import choose
from tests.serving.running import sessions
from tests.slots.beliefs import MESSAGE_TOKENS, PREFIX_TOKENS, ledger, look, need, talk

DEFAULT_FLAGS = Capabilities(total_slots=2, keeps_copies=True, clears_idle=True, shows_slots=True)
SLOT_0 = {"id_slot": 0}
OURS, THEIRS = talk("ab"), talk("x")  # of which more than half is prefix: the server would not copy it by itself


class Client:
    """Shows slots, and has something happen meanwhile."""

    def __init__(self, *shown: Look) -> None:
        self.shown = list(shown)
        self.meanwhile: Callable[[], None] = lambda: None
        self.asked: list[str | int] = []
        self.fails = False
        self.reused = OURS.n_tokens

    async def slots(self, *_: Any) -> list[Look]:
        self.meanwhile()
        return self.shown

    async def copy(self, *_: Any) -> None:
        self.asked.append("copy")

    async def displace(self, *_: Any) -> None:
        self.asked.append("displace")

    async def erase(self, slot: int, *_: Any) -> None:
        self.asked.append(f"erase {slot}")
        self.shown = [look(slot, 8, 0) if shown.slot == slot else shown for shown in self.shown]

    async def render(self, *_: Any) -> str:
        return "text"

    async def tokenize(self, *_: Any) -> list[int]:
        return [*range(OURS.n_tokens + 30)]

    async def prefill(self, tokens: list[int], *_: Any, is_behind_empty: bool = False) -> Warmed:
        self.asked += [*(["empty"] if is_behind_empty else []), len(tokens)]
        if self.fails:
            raise ControlFailed("cut off")
        return Warmed(1, len(tokens) - self.reused, self.reused, 1.0)


def context(*holds: Holding, client: Client | None = None) -> Context:
    settings = Settings(_env_file=None)  # type: ignore[call-arg]
    model = Model(cast("Any", client or Client()), able=DEFAULT_FLAGS)
    model.ledger = ledger(*holds)
    return Context(settings, Reporter(), cast("Any", SimpleNamespace(used=lambda *_: None)), model)


def ticket(number: int = 1, visit: Visit | None = None) -> Ticket:
    nobody = Visit(None, None, "not_json", may_prepare=False, client="unknown", auth={})
    made = Ticket(number, visit or nobody, lambda _: None, lambda _: None, 25.0)
    made.status, made.is_whole = 200, True
    return made


def figures(cache_n: int) -> Figures:
    return Figures(20, cache_n, 8, 1.0, 1.0, "timings")


@pytest.mark.parametrize(
    ("cache_n", "is_kept"), [(OURS.n_tokens, True), (PREFIX_TOKENS, False)], ids=["its own", "what the slot had"]
)
def test_who_came_back_whole_has_overwritten_nobody(cache_n: int, is_kept: bool) -> None:
    """Loaded from host memory, after the slot's content had been moved there; or put on top of that content."""
    at = context(THEIRS, Nothing())
    at.model.ledger.copied(OURS)
    at.pulsed_at = time.monotonic()
    resumed = ticket()
    resumed.need, resumed.plan = need("abc"), Plan(Source.RESUME, "host_memory_holds_conversation")
    accounting = Accounting(at)
    accounting.take_slot(resumed, 0)
    resumed.figures = figures(cache_n)
    accounting.enter(resumed, [])
    # A slot of which half is kept is gone on from: what was to come back is where it was.
    assert [THEIRS if is_kept else OURS] == [*at.model.ledger.copies.values()]


def test_a_copy_whose_answer_the_client_sends_back_changed_was_loaded_all_the_same() -> None:
    """A model that can't roll back goes on four tokens before the end of the prompt; nobody else's copy is spent."""
    at = context(Nothing(), Nothing())
    for copy in (talk("ay"), OURS):
        at.model.ledger.copied(copy)
    resumed = ticket()
    resumed.need, resumed.plan = need("abc"), Plan(Source.RESUME, "host_memory_holds_conversation")
    accounting = Accounting(at)
    accounting.take_slot(resumed, 0)
    resumed.figures = figures(OURS.n_prompt - 4)
    accounting.enter(resumed, [])
    assert [talk("ay")] == [*at.model.ledger.copies.values()]


def test_an_anchor_that_was_loaded_instead_is_gone() -> None:
    """The server went on four tokens before its end; to discard it would prefill all of it."""
    at = context(Nothing(), Nothing())
    anchor = replace(talk("ab", answer=0, is_marked=True), is_anchor=True)
    for copy in (anchor, talk("abcd")):
        at.model.ledger.copied(copy)
    resumed = ticket()
    resumed.need, resumed.plan = need("abcde"), Plan(Source.RESUME, "host_memory_holds_conversation")
    accounting = Accounting(at)
    accounting.take_slot(resumed, 0)
    resumed.figures = figures(anchor.n_tokens - 4)
    accounting.enter(resumed, [])
    assert anchor.name not in at.model.ledger.copies


def resumed_in_vain(at: Context, reason: str) -> None:
    """A conversation was to come back from host memory, and nothing of it was reused."""
    resumed = ticket()
    resumed.need, resumed.plan = need("abc"), Plan(Source.RESUME, reason, (), PREFIX_TOKENS)
    accounting = Accounting(at)
    accounting.take_slot(resumed, 0)
    resumed.figures = figures(0)
    accounting.enter(resumed, [])


@pytest.mark.parametrize(
    ("reason", "has_room"), [("host_memory_holds_conversation", False), ("host_memory_holds_edited_conversation", None)]
)
def test_what_shows_that_host_memory_has_no_room(reason: str, has_room: bool | None) -> None:
    """A conversation that goes on was gone; of an edited one it is guessed which the server loads. Older anchors went
    before it, and asking for one that is gone would prefill it."""
    at = context(Nothing(), Nothing())
    anchor = replace(talk("xy", answer=0, is_marked=True), is_anchor=True)
    for copy in (anchor, OURS):
        at.model.ledger.copied(copy)
    resumed_in_vain(at, reason)
    assert (has_room, has_room is None) == (at.model.able.has_room, anchor.name in at.model.ledger.copies)


@pytest.mark.parametrize("truncates", [False, True], ids=["others", "swa-full"])
def test_with_what_is_gone_from_host_memory_all_older_copies_are(truncates: bool) -> None:
    """The server evicts the oldest first; with `--swa-full` one that is there after all could be gone back in."""
    at = context(Nothing(), Nothing())
    at.model.able = replace(DEFAULT_FLAGS, rolls_back=truncates, window=512 if truncates else 0)
    for copy in (talk("wx", "Q"), OURS, talk("yz", "Q")):
        at.model.ledger.copied(copy)
    resumed_in_vain(at, "host_memory_holds_conversation")
    assert [*([talk("wx", "Q")] if truncates else []), talk("yz", "Q")] == [*at.model.ledger.copies.values()]


@pytest.mark.parametrize(
    ("rolls_back", "window", "found"),
    [(True, None, (False, 0)), (True, 0, (None, 0)), (False, None, (None, 1))],
    ids=["rolls back", "has no window", "does not"],
)
def test_that_copies_can_not_be_gone_back_in_is_learned(
    rolls_back: bool, window: int | None, found: tuple[bool | None, int]
) -> None:
    """Where a slot can: it is no failed claim like others, and is claimed once; without a window one was lost."""
    at = context(Nothing(), Nothing())
    at.model.able = replace(at.model.able, rolls_back=rolls_back, window=window)
    claiming = ticket()
    claiming.need = need("ab")
    claiming.plan = Plan(Source.HIT, "host_memory_begins_with_prefix", (), PREFIX_TOKENS)
    accounting = Accounting(at)
    accounting.take_slot(claiming, 0)
    claiming.figures = figures(0)
    accounting.enter(claiming, [])
    assert found == (at.model.able.copies_roll_back, at.model.failed_claims)


@pytest.mark.parametrize(
    ("cache_n", "has_past", "is_first"),
    [(PREFIX_TOKENS, False, True), (PREFIX_TOKENS - 2, False, True), (0, False, False), (PREFIX_TOKENS, True, False)],
    ids=["from the prefix's end", "from a checkpoint there", "from elsewhere", "a later turn"],
)
def test_a_first_turn_is_known(cache_n: int, has_past: bool, is_first: bool) -> None:
    """The server can go back to the prefix's end in it, if it went on from there."""
    at = context(Nothing(), Nothing())
    (body,) = sessions("/a")
    said = [*body["messages"], {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    read = orjson.dumps({**body, "messages": said} if has_past else body)
    asked = ticket(visit=understand(read, {}, at.settings))
    asked.need = need("ab")
    accounting = Accounting(at)
    accounting.take_slot(asked, 0)
    asked.figures = figures(cache_n)
    accounting.enter(asked, [])
    held = at.model.ledger.slots[0].holds
    assert isinstance(held, Talk)
    assert is_first == held.is_first


def test_a_copy_that_was_not_there_was_not_loaded_but_another() -> None:
    """From an empty slot: the reuse is that of another conversation of the same folder."""
    at = context(Nothing(), Nothing())
    for copy in (talk("wxyz"), talk("ay"), OURS):
        at.model.ledger.copied(copy)
    resumed = ticket()
    resumed.need, resumed.plan = need("abc"), Plan(Source.RESUME, "host_memory_holds_conversation")
    accounting = Accounting(at)
    accounting.take_slot(resumed, 0)
    resumed.figures = figures(MESSAGE_TOKENS)
    accounting.enter(resumed, [])
    assert [talk("wxyz")] == [*at.model.ledger.copies.values()]


@pytest.mark.parametrize(
    ("prepared", "cache_n", "is_kept", "is_blamed"),
    [
        (0, PREFIX_TOKENS, True, False),
        (1, PREFIX_TOKENS, False, False),
        (0, PREFIX_TOKENS + 10, False, False),
        (0, 0, False, True),
        (1, 0, False, False),
    ],
    ids=["restored there", "went elsewhere", "reused what stood there", "useless", "useless, but went elsewhere"],
)
def test_a_restore_over_a_conversation_whose_account_came_late(
    prepared: int, cache_n: int, is_kept: bool, is_blamed: bool
) -> None:
    """Moved to host memory before, if exactly the prefix was reused in the slot that was prepared."""
    blamed: list[str] = []
    at = context(talk("x"), Nothing())
    at.store.useless = blamed.append  # type: ignore[assignment,method-assign]
    restored = ticket()
    steps = (Restore(prepared, "P"),)
    restored.need = need("abc")
    restored.plan = Plan(Source.RESTORE, "checkpoint_on_disk", steps, PREFIX_TOKENS, prepared)
    accounting = Accounting(at)
    accounting.take_slot(restored, 0)
    restored.figures = figures(cache_n)
    accounting.enter(restored, [])
    assert is_kept == (talk("x") in at.model.ledger.copies.values())
    assert is_blamed == bool(blamed)


@pytest.mark.parametrize(("is_moved", "found"), [(False, [1]), (True, [])])
def test_an_idle_slot_with_a_new_task(is_moved: bool, found: list[int]) -> None:
    """A request that is over already; or one of the empty tasks that were sent ahead of somebody."""
    at = context(Nothing(), Nothing(), Nothing())
    at.model.ledger.observe([look(0, 3), look(1, 3), look(2, 3)])
    at.pulsed_at = time.monotonic() if is_moved else at.pulsed_at
    seen = [look(0, 3), look(1, 7, 28), look(2, 3)]
    assert found == [one.slot for one in at.begun(seen)]
    assert [2] == [one.slot for one in at.begun([*seen[:2], look(2, 8, 300, is_busy=True)])]


def test_of_several_answers_each_slot_goes_on_from_the_prompt() -> None:
    """Which of them is in which slot nobody knows; the prompt is in all."""
    at = context(Nothing(), Nothing(), Nothing())
    at.model.ledger.observe([look(0, 3), look(1, 3), look(2, 3)])
    body = {**sessions("/a", tokens=100)[0], "n": 2}
    ended = ticket(visit=understand(orjson.dumps(body), {}, at.settings))
    ended.need, ended.figures = need("ab", slots=2), figures(0)
    Accounting(at).enter(ended, [look(0, 7, 28), look(1, 8, 28), look(2, 3)])
    holds = [belief.holds for belief in at.model.ledger.slots]
    assert [False, False] == [isinstance(held, Talk) and held.is_whole for held in holds[:2]]
    assert [ended.visit.chain] * 2 == [held.chain for held in holds if isinstance(held, Talk)]
    assert Nothing() == holds[2]


@pytest.mark.parametrize(
    ("later", "is_kept"), [(look(0, 9, 0), True), (look(0, 9, 300, is_busy=True), False)], ids=["emptied", "taken"]
)
def test_a_slot_that_went_on_before_its_account(later: Look, is_kept: bool) -> None:
    """Empty, with a later task: moved to host memory. At work for somebody else: perhaps on top of it."""
    at = context(Nothing(), Nothing())
    ended = ticket(visit=understand(orjson.dumps(sessions("/a", tokens=100)[0]), {}, at.settings))
    ended.slot, ended.seen, ended.figures = 0, look(0, 5, 10, is_busy=True), figures(0)
    Accounting(at).enter(ended, [later])
    assert is_kept == bool(at.model.ledger.copies)
    # The length that is seen is not its own any more.
    assert ((0, False) if is_kept else (27, True)) == (
        at.model.ledger.slots[0].holds.n_tokens,
        at.model.ledger.slots[0].is_contested,
    )


async def test_a_neighbour_whose_account_comes_during_the_look() -> None:
    """The look itself still shows it at work."""
    client = Client(look(0, 5, 300, is_busy=True), look(1, None))
    at = context(talk("az"), Nothing(), client=client)
    other, mine = ticket(1), ticket(2)
    at.model.ledger.lease(0, other.number)
    mine.need = need("ab")
    neighbours = Neighbours(at, {1: other})
    assert not await neighbours.have_ended(mine)
    client.meanwhile = lambda: at.model.ledger.release(other.number)
    assert await neighbours.have_ended(mine)


@pytest.mark.parametrize("fails", [False, True])
async def test_what_host_memory_has_is_brought_back_beside_a_neighbour(fails: bool) -> None:
    """By a prompt one token longer, right behind an empty one; where that fails nobody knows what the slot holds."""
    client = Client(look(0, 5, 300, is_busy=True), look(1, 7, OURS.n_tokens + 1))
    client.fails = fails
    at = context(talk("az"), Nothing(), client=client)
    at.model.ledger.lease(0, 1)
    at.model.ledger.copied(OURS)
    resumed = ticket(2, understand(orjson.dumps(sessions("/a", tokens=100)[0]), {}, at.settings))
    resumed.need, resumed.plan = need("abc"), Plan(Source.RESUME, "host_memory_holds_conversation")
    with pytest.raises(ControlFailed) if fails else nullcontext():
        await Neighbours(at, {1: ticket(1)}).keep_away(resumed)
    await at.close()
    assert ["empty", OURS.n_tokens + 1] == client.asked
    came_back = replace(OURS, n_tokens=OURS.n_tokens + 1)
    assert (Unknown() if fails else came_back) == at.model.ledger.slots[1].holds
    assert ([OURS] if fails else []) == [*at.model.ledger.copies.values()]


@pytest.mark.parametrize(
    "seen",
    [look(1, 7, OURS.n_tokens + 1), replace(look(1, 6, 1027), asked_at=0.0)],
    ids=["seen after that", "seen before"],
)
@pytest.mark.parametrize("reused", [OURS.n_tokens, OURS.n_prompt - 4], ids=["whole", "from a checkpoint"])
async def test_a_neighbour_whose_slot_is_got_before_its_account(reused: int, seen: Look) -> None:
    """The server had moved to host memory what it left: there it is entered, and the slot is not its any more."""
    client = Client(look(0, 5, 300, is_busy=True), look(1, 7, OURS.n_tokens + 1))
    client.reused = reused
    at = context(Nothing(), talk("x"), client=client)
    at.model.ledger._clock = lambda: 1.0
    at.model.ledger.lease(1, 1, 6)
    at.model.ledger.copied(OURS)
    resumed = ticket(2, understand(orjson.dumps(sessions("/a", tokens=100)[0]), {}, at.settings))
    resumed.need, resumed.plan = need("abc"), Plan(Source.RESUME, "host_memory_holds_conversation")
    await Neighbours(at, {}).keep_away(resumed)
    came_back = replace(OURS, n_tokens=OURS.n_tokens + 1)
    assert (came_back, 0) == (at.model.ledger.slots[1].holds, at.model.ledger.slots[1].lease)
    left = ended_in(1, at, seen)
    await at.close()
    assert [left] == [copy.chain for copy in at.model.ledger.copies.values()]
    assert (came_back, {}) == (at.model.ledger.slots[1].holds, at.model.ledger.displaced)


NOW_OURS = look(1, 7, OURS.n_tokens + 1)


def ended_in(slot: int, at: Context, seen: Look = NOW_OURS, number: int = 1) -> tuple[bytes, ...]:
    """The late account of a first turn, after which another task is in its slot; returns its messages' hashes."""
    ended = ticket(number, understand(orjson.dumps(sessions("/b", tokens=100)[0]), {}, at.settings))
    ended.slot, ended.seen, ended.figures = slot, look(slot, 6, 10, is_busy=True), figures(1000)
    Accounting(at).enter(ended, [seen])
    return ended.visit.chain


@pytest.mark.parametrize(("shared", "is_copied"), [("x", True), ("/b", False)], ids=["little", "more than half"])
def test_a_request_that_got_a_slot_before_its_neighbour_s_account(shared: str, is_copied: bool) -> None:
    """Its task is not the neighbour's: that one has ended, and was overwritten, or copied where little would stay."""
    at = context(Nothing(), Nothing())
    at.model.ledger.lease(1, 1, 6)
    at.model.ledger.observe([look(1, 6, 200, is_busy=True)])
    seen = [look(1, 7, 300, is_busy=True)]
    assert [1] == [one.slot for one in at.begun(seen)]
    folder = sessions(shared, tokens=100)[0] if shared == "/b" else {"messages": [{"role": "user", "content": "x"}]}
    mine = ticket(2, understand(orjson.dumps(folder), {}, at.settings))
    mine.need = Need(mine.visit.chain, mine.visit.sizes, inputs=mine.visit.inputs)
    accounting = Accounting(at)
    for task, lease in ((None, 1), (6, 1), (7, 2)):
        accounting.take_slot(mine, 1, task)
        assert lease == at.model.ledger.slots[1].lease
    assert Unknown() == mine.before
    left = ended_in(1, at)
    assert is_copied == (left in [copy.chain for copy in at.model.ledger.copies.values()])
    assert 2 == at.model.ledger.slots[1].lease


async def test_a_conversation_that_was_gone_on_from_is_not_in_host_memory() -> None:
    """Where less came back than the copy has, it was put on top of what stood in the slot."""
    client = Client(look(0, 5, 300, is_busy=True), look(1, 7, OURS.n_tokens + 1))
    client.reused = MESSAGE_TOKENS
    at = context(Nothing(), talk("ax"), client=client)
    at.model.ledger.lease(0, 1)
    at.model.ledger.slots[0].holds = talk("az")
    at.model.ledger.copied(OURS)
    resumed = ticket(2, understand(orjson.dumps(sessions("/a", tokens=100)[0]), {}, at.settings))
    resumed.need, resumed.plan = need("abc"), Plan(Source.RESUME, "host_memory_holds_conversation")
    await Neighbours(at, {1: ticket(1)}).keep_away(resumed)
    await at.close()
    assert [] == [*at.model.ledger.copies.values()]


@pytest.mark.parametrize("reused", [OURS.n_tokens, OURS.n_tokens - 9], ids=["it", "another"])
async def test_beside_a_neighbour_nothing_goes_on_from_a_window_that_is_not_the_copy_s(reused: int) -> None:
    """With `--swa-full` the server goes back in it without knowing: the slot is emptied, and another plan made."""
    client = Client(look(0, 5, 300, is_busy=True), look(1, 7, OURS.n_tokens + 1))
    client.reused = reused
    at = context(talk("az"), Nothing(), client=client)
    at.model.able = replace(at.model.able, rolls_back=True, window=512, acts_on_slots=True)
    at.model.ledger.lease(0, 1)
    at.model.ledger.copied(OURS)
    resumed = ticket(2, understand(orjson.dumps(sessions("/a", tokens=100)[0]), {}, at.settings))
    resumed.need, resumed.plan = need("abc"), Plan(Source.RESUME, "host_memory_holds_conversation")
    is_it = reused == OURS.n_tokens
    with nullcontext() if is_it else pytest.raises(PlanAgain):
        await Neighbours(at, {1: ticket(1)}).keep_away(resumed)
    await at.close()
    assert is_it != ("erase 1" in client.asked)
    assert is_it != isinstance(at.model.ledger.slots[1].holds, Nothing)
    assert [] == [*at.model.ledger.copies.values()]


async def test_a_slow_reader_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slot is free, and its answer still being read: a moment, and no more."""
    monkeypatch.setattr("proxy.serving.neighbours.ENDS_S", 0.01)
    at = context(talk("az"), Nothing(), client=Client(look(0, 5, 300), look(1, None)))
    at.model.ledger.lease(0, 1)
    mine = ticket(2)
    mine.need = need("ab")
    async with asyncio.timeout(1):
        assert not await Neighbours(at, {1: ticket(1)}).have_ended(mine)


@pytest.mark.parametrize("lengths", [(1027, 0), (0, 1027), (1027, 1027)])
def test_of_several_new_tasks_a_request_s_is_the_one_that_is_as_long(lengths: tuple[int, int]) -> None:
    """The others are those of empty tasks; where two are as long nobody knows."""
    at = context(Nothing(), Nothing())
    ended = ticket(visit=understand(orjson.dumps(sessions("/a", tokens=100)[0]), {}, at.settings))
    ended.tasks, ended.figures = (3, 3), figures(1000)
    Accounting(at).enter(ended, [look(0, 7, lengths[0]), look(1, 8, lengths[1])])
    found = [isinstance(belief.holds, Talk) for belief in at.model.ledger.slots]
    assert [n == 1027 and sum(lengths) == n for n in lengths] == found


@pytest.mark.parametrize("how", ["copy", "prefilled", "displaced"])
async def test_what_another_look_sees_before_our_own_is_no_surprise(how: str) -> None:
    """A prompt of ours has left a new task number: a request that is being accounted for looks first."""
    held = OURS if how == "copy" else THEIRS
    client = Client(look(0, 9, 1 if how == "displaced" else held.n_tokens), look(1, 3))
    at = context(OURS, Nothing(), client=client)
    at.model.able = replace(at.model.able, acts_on_slots=False)
    at.model.ledger.observe([look(0, 3, OURS.n_tokens), look(1, 3)])
    surprised: list[int] = []
    client.meanwhile = lambda: surprised.extend(at.model.ledger.observe(client.shown))
    steps = SlotSteps(at)
    if how == "copy":
        await steps.copy(0, {})
    elif how == "displaced":
        await steps.clear(0, {}, 5)
    else:
        await steps.prefilled(need("x"), None, Warmed(0, THEIRS.n_tokens, 0, 1.0), held, {})
    assert [] == surprised
    assert not isinstance(at.model.ledger.slots[0].holds, Unknown)


def test_the_ledger_of_a_model_knows_which_looks_are_late() -> None:
    """By the clock by which looks are asked for."""
    model = Model(cast("Any", Client()))
    asked_at = time.monotonic()
    model.ledger.hold(0, OURS)
    assert [] == model.ledger.observe([replace(look(0, 3, 7), asked_at=asked_at - 1)])
    assert [0] == model.ledger.observe([replace(look(0, 3, 7), asked_at=time.monotonic() + 1)])


@pytest.mark.parametrize(("shared", "is_copied"), [("x", True), ("ab", False)], ids=["little", "more than half"])
def test_what_another_slot_held_than_the_one_expected(shared: str, is_copied: bool) -> None:
    """A short prompt begins like any: if little of what is there stays the server has copied it."""
    at = context(OURS, Nothing())
    (body,) = sessions("/a")
    titled, named = (ticket(visit=understand(orjson.dumps({**body, **own}), {}, at.settings)) for own in ({}, SLOT_0))
    titled.need = named.need = replace(need(shared), prefix_key="")
    assert 1 == getattr(choose(titled.need, at.model.ledger.idle()), "slot", None) or not is_copied
    at.model.ledger.slots[0].last_used = 99
    for unread in (named, ticket()):
        Accounting(at).take_slot(unread, 0)
        at.model.ledger.release(unread.number)
        assert OURS.name not in at.model.ledger.copies
    Accounting(at).take_slot(titled, 0)
    assert is_copied == (OURS.name in at.model.ledger.copies)


def test_a_slot_counts_for_what_its_request_will_leave() -> None:
    """Its own conversation, with its prefix; nothing is known of one whose prefix nobody has seen."""
    at = context(Nothing(), Nothing())
    for slot, (body,) in enumerate((sessions("/a"), sessions("/b"))):
        asked = ticket(slot + 1, understand(orjson.dumps(body), {}, at.settings))
        asked.need = need("ab"[: slot + 1])
        if slot == 0:
            at.model.remember(asked.visit.rendering, ExactPrefix("P", array("i", [1] * 80), 80, date.today()))
        else:
            at.model.prefixes.clear()
        Accounting(at).take_slot(asked, slot)
    first, second = (belief.soon_holds for belief in at.model.ledger.slots)
    assert isinstance(first, Talk)
    assert (need("a").chain, "P", 80) == (first.chain, first.prefix_key, first.prefix_tokens)
    assert isinstance(second, Unknown)


def test_what_two_prefixes_have_in_common_is_known_of_one_that_is_on_its_way() -> None:
    """The request that will leave it runs in a slot that held nothing."""
    at = context(Nothing())
    for key, tokens in (("Q", [1, 2, 3, 4]), ("P", [1, 2, 5])):
        at.model.remember(key, ExactPrefix(key, array("i", tokens), len(tokens), date.today()))
    at.model.ledger.lease(0, 1, will_hold=talk("a", "Q"))
    known = at.model.by_key("P")
    assert known is not None
    assert (("Q", 2),) == at.model.common(known)


MARKED = Capabilities(rolls_back=False, is_windowed=False, mark_distance=516, keeps_copies=True, shows_slots=True)
WINDOW = Capabilities(total_slots=1, rolls_back=True, window=512, keeps_copies=True, shows_slots=True)


def answered(
    at: Context, held: Holding, reused: int, *, letters: str = "abc", resumed: bool = False, role: str = "user"
) -> Talk:
    """What a turn leaves in the slot."""
    (body,) = sessions("/a")
    body["messages"][-1]["role"] = role
    asked = ticket(visit=understand(orjson.dumps(body), {}, at.settings))
    asked.need = need(letters)
    if resumed:
        asked.plan = Plan(Source.RESUME, "host_memory_holds_conversation")
    at.model.ledger.slots[0].holds = held
    accounting = Accounting(at)
    accounting.take_slot(asked, 0)
    asked.figures = figures(reused)
    accounting.enter(asked, [])
    left = at.model.ledger.slots[0].holds
    assert isinstance(left, Talk)
    return left


@pytest.mark.parametrize(
    ("held", "role", "is_kept"),
    [(talk("ab"), "user", True), (talk("ab"), "tool", False), (talk("abc"), "user", False), (Nothing(), "user", True)],
    ids=["goes on", "a tool's", "asked again", "anew"],
)
def test_where_a_user_s_last_message_begins_is_marked_by_its_own_request(
    held: Holding, role: str, is_kept: bool
) -> None:
    """The server leaves no in-memory checkpoint where other messages begin, and none where it goes on behind that."""
    at = context(held)
    at.model.able = MARKED
    assert is_kept == answered(at, held, getattr(held, "n_tokens", 0), role=role).keeps_last


def test_that_it_was_not_marked_is_learned() -> None:
    """The edited question was prefilled from the beginning: no other one is expected to be better off."""
    at = context(Nothing())
    at.model.able = MARKED
    edited = ticket()
    edited.need = need("abx")
    edited.plan = Plan(Source.HIT, "conversation_begins_with_prefix", expected_cache_n=PREFIX_TOKENS)
    at.model.ledger.slots[0].holds = replace(talk("abc"), keeps_last=True)
    accounting = Accounting(at)
    accounting.take_slot(edited, 0)
    edited.figures = figures(0)
    accounting.enter(edited, [])
    assert at.model.able.keeps_questions is False
    assert 0 == at.model.failed_claims


@pytest.mark.parametrize(
    ("able", "is_learned"), [(WINDOW, True), (replace(WINDOW, window=0), False)], ids=["--swa-full", "dense"]
)
def test_that_answers_come_back_changed_is_learned_of_all(able: Capabilities, is_learned: bool) -> None:
    """Of one conversation, for new ones; until one comes back as it was."""
    at = context(OURS)
    at.model.able = able
    assert is_learned == answered(at, OURS, OURS.n_prompt).is_changed
    assert is_learned == answered(at, Nothing(), 0, letters="xy").is_changed
    answered(at, OURS, OURS.n_tokens)
    assert not answered(at, Nothing(), 0, letters="xy").is_changed


def test_an_anchor_was_loaded_in_the_place_of_a_changed_conversation() -> None:
    """It ends one token before the prompt's end: the conversation is still there."""
    at = context(Nothing())
    at.model.able = WINDOW
    anchor = replace(talk("ab", answer=0), is_anchor=True)
    for copy in (anchor, OURS):
        at.model.ledger.copied(copy)
    answered(at, Nothing(), OURS.n_prompt - 1, resumed=True)
    assert [OURS] == [*at.model.ledger.copies.values()]


@pytest.mark.parametrize(
    ("reused", "is_changed"), [(80, True), (50, False), (OURS.n_tokens, False)], ids=["anchor", "something", "whole"]
)
def test_an_anchor_that_outdid_a_conversation_tells_that_its_answer_came_back_changed(
    reused: int, is_changed: bool
) -> None:
    """More of the anchor was kept; it is moved out of that one's way the next time."""
    at = context(Nothing())
    at.model.able = Capabilities(rolls_back=False, keeps_copies=True, mark_distance=516, shows_slots=True)
    anchor = Talk(of_prefix("P"), (300,), 81, 81, "P", 80, is_anchor=True)
    for copy in (anchor, OURS):
        at.model.ledger.copied(copy)
    assert is_changed == answered(at, Nothing(), reused, resumed=True).is_changed


def test_a_resumed_conversation_is_known_to_have_its_window_only() -> None:
    """From where it came back; what goes on in its slot keeps that."""
    at = context(Nothing())
    at.model.able = WINDOW
    at.model.ledger.copied(OURS)
    assert Whole(OURS.n_tokens, 3) == answered(at, Nothing(), OURS.n_tokens, resumed=True).whole
    assert Whole(220, 3) == answered(at, replace(OURS, whole=Whole(220, 3)), OURS.n_tokens).whole
    assert NOWHERE_CUT == answered(at, OURS, OURS.n_tokens).whole


def test_what_is_given_up_for_a_slot_that_has_everything_is_counted() -> None:
    """So that it does not add up."""
    at = context(Nothing())
    at.model.able = WINDOW
    at.model.ledger.copied(OURS)
    preferred = ticket()
    preferred.need, preferred.plan = need("abc"), Plan(Source.HIT, "conversation_begins_with_prefix")
    at.model.ledger.slots[0].holds = talk("ax")
    Accounting(at).take_slot(preferred, 0)
    assert {"P": OURS.n_tokens - MESSAGE_TOKENS} == at.model.ledger.given_up


@pytest.mark.parametrize(
    ("reused", "n_anchored", "is_kept"), [(0, 0, True), (80, 0, True), (95, 0, False), (90, 0, False), (0, 5, False)]
)
def test_a_first_question_is_marked_where_its_own_request_ran_through_it(
    reused: int, n_anchored: int, is_kept: bool
) -> None:
    """Not where it went on from the end of the head, or some tokens before, or from a prompt of ours."""
    at = context(Nothing())
    first = ticket(visit=understand(orjson.dumps(sessions("/a", tokens=100)[0]), {}, at.settings))
    first.need = replace(need("ab"), head_key="H", head_tokens=95)
    first.slot, first.figures, first.n_anchored = 0, figures(reused), n_anchored
    Accounting(at).enter(first, [])
    held = at.model.ledger.slots[0].holds
    assert is_kept == (isinstance(held, Talk) and held.keeps_question)


def test_a_question_s_checkpoint_that_is_not_there_is_learned_from() -> None:
    """And costs none of the three claims after which nothing is prepared any more."""
    at = context(replace(talk("ab"), keeps_question=True))
    at.model.able = replace(at.model.able, rolls_back=False, is_windowed=False, mark_distance=516)
    at.model.ledger.lease(0, 1)
    second = ticket()
    second.need, second.slot, second.figures = need("az"), 0, figures(0)
    second.before = at.model.ledger.slots[0].holds
    second.plan = Plan(Source.HIT, "conversation_begins_with_prefix", (), 1, 0)
    Accounting(at).enter(second, [])
    assert (False, 0) == (at.model.able.keeps_questions, at.model.failed_claims)
