"""What is done while nobody asks: meet a server that has just started, restore its prefix, build what took too long.

A request always comes first: whatever runs here is ended when one arrives, but for the probe, which is short, and for
what the server is reading or writing, which it would go on with anyway. Looks at `/props` only, which neither wakes a
sleeping server nor keeps it awake. Uses the configured key, since no client asked for it.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from proxy.llama.client import Auth, ControlFailed
from proxy.llama.identity import process
from proxy.serving.acquaintance import Acquaintance
from proxy.serving.context import Context, PlanAgain
from proxy.serving.executor import Executor
from proxy.serving.model import ExactPrefix
from proxy.serving.recall import latest_checkpoint
from proxy.serving.ticket import Ticket
from proxy.serving.visit import Visit
from proxy.slots.holding import Holding, Need, Nothing, Prefix
from proxy.slots.plan import Copy, Plan, Restore, Save, Source, Warm, nothing

WATCH_S = 5.0
"""How often an idle proxy looks whether the server is another one."""
BUILD_IDLE_S = 20.0
"""After this long without a request a prefix that took too long is built."""


class Lifecycle:
    """Works for one context while its server is idle."""

    def __init__(self, context: Context, acquaintance: Acquaintance, executor: Executor) -> None:
        self._context = context
        self._acquaintance = acquaintance
        self._executor = executor
        self._watching: asyncio.Task[None] | None = None
        self._building: asyncio.Task[None] | None = None
        self._holder = object()
        """Has the turn while something runs here."""
        self._asleep = ""
        """Marker of a process that was first seen asleep."""

    @property
    def auth(self) -> Auth:
        """The configured key, as a client would send it."""
        key = self._context.settings.api_key.get_secret_value()
        return {"Authorization": f"Bearer {key}"} if key else {}

    @property
    def is_building(self) -> bool:
        """Whether a prefix is being restored or built while nobody waits."""
        return self._building is not None and not self._building.done()

    @property
    def _own_slot(self) -> int:
        """Where to put a prefix that nobody has asked for; beyond the last slot the server would count on from 0."""
        wanted = self._context.settings.slot
        return wanted if wanted != "auto" and wanted < len(self._context.model.ledger.slots) else 0

    def start(self) -> None:
        """Begin to watch."""
        if not self._context.settings.observe_only:
            self._watching = self._context.spawn(self._watch())

    async def stop(self) -> None:
        """End everything that runs here; how it ended is nothing to whoever stops it."""
        running = [task for task in (self._watching, self._building) if task is not None]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def make_way(self) -> None:
        """A request has come: what can be ended is ended."""
        if self._building is not None:
            self._building.cancel()

    async def _watch(self) -> None:
        self._context.tidy_up()
        while True:
            try:
                await self.look()
                await self._context.store.flush_when_due()
            except ControlFailed:
                pass  # a server that is away is looked for again
            except Exception as error:  # one look that went wrong is not the last one
                self._context.report.bug(error)
            await asyncio.sleep(WATCH_S)

    async def look(self) -> None:
        """One look: meet another server process, or build what waits to be built."""
        model = self._context.model
        if model.gate.inside or model.gate.waiting or not model.turn.is_free:
            return
        told = process(await model.client.props(self.auth))
        self._context.report.answers_again()
        model.is_router = told.is_router
        if told.is_router:
            return
        is_new = model.process is None or model.process.marker != told.marker
        if told.is_sleeping:
            self._asleep = told.marker
            if not is_new:
                model.ledger.emptied()
            return
        if is_new:
            await self._with_turn(self._welcome(told.marker))
        elif time.monotonic() - model.last_answer > BUILD_IDLE_S:
            await self._use_the_quiet()

    async def _use_the_quiet(self) -> None:
        """Build what waits to be built; find out what a server can do that was in use when it was met."""
        model = self._context.model
        if model.to_build:
            self._building = self._context.spawn(self._with_turn(self._build()))
        elif not model.was_probed and not model.ledger.may_be_hot and model.ledger.has_room_to_probe():
            await self._with_turn(self._acquaintance.probe(self.auth))

    async def _with_turn(self, work: Coroutine[Any, Any, None]) -> None:
        turn = self._context.model.turn
        try:
            await turn.take(self._holder)
        except asyncio.CancelledError:
            work.close()
            raise
        try:
            await work
        finally:
            turn.give_back(self._holder)

    async def _carry_out(self, ticket: Ticket) -> None:
        """The turn is the ticket's meanwhile: what the server is at when a request comes keeps it to its end.

        Where that comes to nothing (a file that is not fit, say) the request that needs it makes another plan.
        """
        turn = self._context.model.turn
        turn.hand_over(self._holder, ticket)
        ticket.n_ended = self._context.model.ledger.n_ended
        try:
            await self._executor.carry_out(ticket)
        except PlanAgain as error:
            ticket.plan = nothing(str(error))
        finally:
            turn.hand_over(ticket, self._holder)

    async def _welcome(self, marker: str) -> None:
        """A server process that nobody has used yet: probe it, give it the prefix that was used last."""
        model = self._context.model
        if model.process is not None and model.process.marker == marker:
            return  # a request was here first
        model.process = None
        await self._acquaintance.meet_first(self.auth)
        if not model.wants_probe:
            return
        await self._acquaintance.probe(self.auth)
        has_slept = marker == self._asleep
        is_unused = all(_is_worthless(belief.holds) for belief in model.ledger.slots)
        if has_slept or not is_unused or model.able.restores is False or model.gate.inside or model.gate.waiting:
            return
        self._building = self._context.spawn(self._give_latest())
        await asyncio.wait({self._building})

    async def _give_latest(self) -> None:
        """Restore the prefix that was used last, before anybody asks for it."""
        if latest := await latest_checkpoint(self._context):
            slot = self._own_slot
            ticket = self._own_ticket(latest.key, latest)
            ticket.plan = Plan(Source.RESTORE, "server_started", (Restore(slot, latest.key),), slot=slot)
            await self._carry_out(ticket)

    async def warm_now(self) -> str:
        """Somebody wants the last prefix in a slot: restore or build it if the server is idle."""
        model = self._context.model
        if model.gate.inside or model.gate.waiting or self.is_building:
            return "busy"
        if self._context.settings.observe_only:
            return "observing_only"
        done: list[str] = []
        self._building = self._context.spawn(self._with_turn(self._warm_last(done)))
        await asyncio.wait({self._building})
        if self._building.cancelled():
            return "busy"  # a request has come meanwhile
        return done[0] if done else "not_possible_now"

    async def _warm_last(self, done: list[str]) -> None:
        model = self._context.model
        await self._acquaintance.glance(self.auth, is_needed=True)
        latest = await latest_checkpoint(self._context)
        name = next(reversed(model.prefixes), "")
        prefix = latest or model.prefixes.get(name)
        if prefix is None or not prefix.tokens:
            done.append("no_prefix_known")
            return
        held = [belief.slot for belief in model.ledger.idle() if not isinstance(belief.holds, Nothing)]
        if any(isinstance(b.holds, Prefix) and b.holds.key == prefix.key for b in model.ledger.slots):
            done.append("already_warm")
            return
        if held and not model.able.keeps_copies:
            done.append("slots_hold_conversations")
            return
        await self._carry_out(ticket := self._warming(name, prefix, held, is_on_disk=latest is not None))
        if ticket.plan.source is not Source.NONE:
            done.append("restored" if latest else "built")

    def _warming(self, name: str, prefix: ExactPrefix, held: list[int], *, is_on_disk: bool) -> Ticket:
        model = self._context.model
        copies = tuple(Copy(slot) for slot in (held[:1] if model.able.clears_idle else held))
        ticket = self._own_ticket(name, prefix)
        ticket.patience_s = self._context.settings.warm_timeout
        if is_on_disk:
            slot = self._own_slot
            ticket.plan = Plan(Source.RESTORE, "asked_for", (*copies, Restore(slot, prefix.key)), slot=slot)
        else:
            save = (Save(prefix.key),) if self._context.store.disk(prefix.key).may_save else ()
            ticket.plan = Plan(Source.WARM_UP, "asked_for", (*copies, Warm(prefix.key), *save))
        return ticket

    async def _build(self) -> None:
        """Prefill and save a prefix that a client could not wait for; one that was not finished waits again."""
        rendering, reason = self._context.model.to_build.popitem(last=False)
        try:
            await self._build_one(rendering)
        except (asyncio.CancelledError, ControlFailed):
            self._context.model.to_build.setdefault(rendering, reason)
            raise

    async def _build_one(self, rendering: str) -> None:
        model = self._context.model
        prefix = model.prefixes.get(rendering)
        disk = self._context.store.disk(prefix.key) if prefix else None
        if prefix is None or disk is None or disk.has_checkpoint or not disk.may_save:
            return
        held = [belief.slot for belief in model.ledger.idle() if not isinstance(belief.holds, Nothing)]
        if held and not model.able.keeps_copies:
            return  # what the slots hold is worth more
        # Where a task empties the idle slots, one copy has the others copied too.
        copies = tuple(Copy(slot) for slot in (held[:1] if model.able.clears_idle else held))
        ticket = self._own_ticket(rendering, prefix)
        ticket.patience_s = self._context.settings.warm_timeout
        ticket.plan = Plan(Source.WARM_UP, "server_idle", (*copies, Warm(prefix.key), Save(prefix.key)))
        await self._carry_out(ticket)

    def _own_ticket(self, rendering: str, prefix: ExactPrefix) -> Ticket:
        visit = Visit(None, None, "", may_prepare=True, client="", auth=self.auth, rendering=rendering)
        ticket = Ticket(0, visit, lambda _: None, lambda _: None, self._context.settings.restore_timeout)
        # A slot with another prefix may have no more than its window of what the two have in common.
        common = self._context.model.common(prefix)
        ticket.need = Need(prefix_key=prefix.key, prefix_tokens=prefix.n_tokens, common=common)
        return ticket


def _is_worthless(holds: Holding) -> bool:
    """Whether nobody misses it: nothing, or what the probe has left."""
    return isinstance(holds, Nothing) or (isinstance(holds, Prefix) and not holds.key)
