"""The engine: the one owner of what is believed about the server.

A request's way through it: *enter* (wait for admission and for the turn, see whether the server is still the same,
plan, have the plan carried out), *began* (the server has put it into a slot: the next may be prepared), *settled* (its
answer is over: enter what its slot holds now, from its own figures). Beliefs change only in methods without `await`;
slow work happens between two such calls.

Nothing here may fail or delay a request: every error ends in a log line and a request that goes on as it is, every wait
ends at `MAX_SILENCE`. Counterparts: `executor` carries plans out, `planner` makes them, `reporting` says what happened.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus

from proxy.llama.client import Auth, ControlFailed, LlamaClient
from proxy.serving.accounting import Accounting, figures_from_slot
from proxy.serving.acquaintance import Acquaintance
from proxy.serving.context import Context, PlanAgain
from proxy.serving.executor import Executor
from proxy.serving.lifecycle import Lifecycle
from proxy.serving.model import Model
from proxy.serving.needs import Needs
from proxy.serving.neighbours import Neighbours
from proxy.serving.reporting import UNREACHABLE, Reporter
from proxy.serving.store import Store
from proxy.serving.ticket import Ticket
from proxy.serving.visit import Visit
from proxy.settings import Settings
from proxy.slots.holding import Unknown
from proxy.slots.ledger import Look
from proxy.slots.plan import Plan, Source, nothing
from proxy.slots.planner import plan

MAX_PLANS = 6
"""A checkpoint that turns out not to be fit makes another plan, but not for ever."""
FAILED_CLAIMS = 3
"""After so many in a row nothing is warmed or claimed on this server any more (`--no-cache-prompt`, say)."""
EXPLAIN_S = 0.25
"""How long a request that isn't prepared waits to be explained better."""
RECLAIM_S = 3.0
"""How often, while somebody waits, it is looked whether a slot is idle though its answer is still being read."""
SLOW_READER_S = 0.05
"""How long an answer that has come whole may take to be passed on before its slot is looked for."""
BEGUN_LOOKS_S = (0.01, 0.04, 0.15, 0.5)
"""When to look whether an answer that is not streamed has got its slot."""


class Engine:
    """Prepares slots for chat completions."""

    def __init__(
        self,
        settings: Settings,
        client: LlamaClient,
        reporter: Reporter,
        store: Store,
        *,
        number: int = 0,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.context = Context(settings, reporter, store, Model(client), number)
        self.settings, self.report, self.store, self.model = settings, reporter, store, self.context.model
        self.acquaintance = Acquaintance(self.context)
        self.needs = Needs(self.context)
        self.accounting = Accounting(self.context)
        self._inside: dict[int, Ticket] = {}
        """Requests that have passed the gate, by number."""
        self.neighbours = Neighbours(self.context, self._inside)
        self.executor = Executor(self.context, self.neighbours)
        self.lifecycle = Lifecycle(self.context, self.acquaintance, self.executor)
        self._numbers = numbers or itertools.count(1)
        self._reclaimed_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a request is being prepared here, or answered."""
        return bool(self.model.interest) or self.model.gate.inside > 0

    # Entering

    async def enter(self, visit: Visit, patience_s: float | None = None) -> Ticket:
        """Admit a request and prepare its slot; raises nothing but CancelledError."""
        patience_s = self.settings.max_silence if patience_s is None else patience_s
        ticket = Ticket(next(self._numbers), visit, self._began, self._settled, patience_s)
        if not visit.may_prepare:
            ticket.plan = nothing(visit.reason)
        self.lifecycle.make_way()
        self.model.interest[visit.rendering] += 1
        try:
            async with asyncio.timeout(patience_s):
                if visit.may_prepare:
                    await self._admit(ticket)
                    await self._prepare(ticket)
                else:
                    await self._explain(ticket)
        except TimeoutError:
            self.report.trouble("too_slow", "waited long enough; the request goes on unprepared")
            ticket.plan = nothing("too_slow")
        except ControlFailed as error:
            self._failed(ticket, error)
        except asyncio.CancelledError:
            ticket.settle()
            raise
        except Exception as error:
            self.report.bug(error)
            ticket.plan = nothing("bug")
        finally:
            self._lose_interest(visit.rendering)
        ticket.prepared()
        return ticket

    async def _admit(self, ticket: Ticket) -> None:
        model = self.model
        await self.acquaintance.meet_first(ticket.visit.auth, may_load=ticket.visit.may_load)
        wanted = ticket.visit.request.choices if ticket.visit.request else 1
        ticket.places = model.gate.enter_now(wanted) or await self._wait_at_gate(wanted, ticket.visit.auth)
        ticket.admitted()
        self._inside[ticket.number] = ticket
        await model.turn.take(ticket)

    async def _wait_at_gate(self, wanted: int, auth: Auth) -> int:
        gate = self.model.gate
        waiting = asyncio.ensure_future(gate.enter(wanted))
        try:
            while not (await asyncio.wait({waiting}, timeout=RECLAIM_S))[0]:
                self._reclaim_when_due(auth)
        except asyncio.CancelledError:
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                gate.leave(await waiting)
            raise
        return waiting.result()

    async def _prepare(self, ticket: Ticket) -> None:
        model = self.model
        if model.settling:
            await asyncio.wait(model.settling)
        has_looked = await self._look(ticket)
        self.needs.identify(ticket)
        if model.process is None:
            return
        ticket.need = await self.needs.of(ticket)
        for _ in range(MAX_PLANS):
            ticket.n_ended = model.ledger.n_ended
            made = self._plan(ticket)
            if made.source is not Source.CONTINUE and not has_looked:
                # Beliefs are about to be acted on, and a server can be restarted within a second.
                has_looked = await self._look(ticket, is_needed=True)
                continue
            self._take_up(ticket, made)
            try:
                await self.executor.carry_out(ticket)
                if made.source is Source.CONTINUE:
                    return
                if not await self.neighbours.have_ended(ticket):
                    await self.neighbours.keep_away(ticket)
                    return
            except PlanAgain:
                ticket.plan = nothing("no_plan_worked")
                continue
            if model.settling:
                await asyncio.wait(model.settling)

    def _take_up(self, ticket: Ticket, made: Plan) -> None:
        """Go by this plan; what an earlier one has brought into a slot keeps its name."""
        before, ticket.plan = ticket.plan, made
        has_prepared = before.source in (Source.RESTORE, Source.WARM_UP) and made.reason == "slot_holds_prefix"
        if has_prepared:
            ticket.plan = replace(made, source=before.source, reason=before.reason)
        elif made.source is Source.CONTINUE:
            # Nothing is to be done for it; so it is on its way before that is told.
            asyncio.get_running_loop().call_soon(self.report.planned, ticket)
        elif (before.source, before.reason) != (made.source, made.reason):
            self.report.planned(ticket)
        if made.reason == "mid_conversation":
            self.needs.was_rewritten(ticket)

    async def _look(self, ticket: Ticket, *, is_needed: bool = False) -> bool:
        """Look whether the server is still the same, and probe one that has just started."""
        visit = ticket.visit
        has_looked = await self.acquaintance.glance(visit.auth, is_needed=is_needed, may_load=visit.may_load)
        if self.model.wants_probe:
            await self.acquaintance.probe(ticket.visit.auth)
        return has_looked

    def _plan(self, ticket: Ticket) -> Plan:
        model, need = self.model, ticket.need
        disk, known = self.store.files(need), model.by_key(need.prefix_key)
        if known is not None and known.chat_body and model.able.truncates:
            # What a chat leaves ends behind the prefix, and what was restored can't be gone back in.
            disk = replace(disk, has_checkpoint=False, may_save=False)
        only = None if self.settings.slot == "auto" else self.settings.slot
        if only is not None and only >= len(model.ledger.slots):
            self.report.trouble("slot_out_of_range", f"SLOT={only}: the server has {len(model.ledger.slots)} slot(s)")
            return nothing("other_slot")
        made = plan(need, model.ledger, model.able, disk, only)
        if made.source in (Source.WARM_UP, Source.HIT) and model.failed_claims >= FAILED_CLAIMS:
            return nothing("reuse_useless")
        if made.reason == "built_when_idle":
            model.to_build[ticket.visit.rendering] = made.reason
        # Why there is no prefix the request itself tells best.
        return replace(made, reason=ticket.visit.reason) if made.reason == "no_prefix" and ticket.visit.reason else made

    async def _explain(self, ticket: Ticket) -> None:
        """Only what is needed for a log line."""
        if self.model.identity is None and ticket.visit.prefix is not None:
            with suppress(ControlFailed, TimeoutError):
                async with asyncio.timeout(EXPLAIN_S):
                    await self.acquaintance.meet_first(ticket.visit.auth)
        self.needs.identify(ticket)

    # Beginning

    def _began(self, ticket: Ticket) -> None:
        """The answer's headers came."""
        self.model.last_answer = time.monotonic()
        if ticket.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return
        self.context.spawn(self._entered(ticket))

    def sent(self, ticket: Ticket) -> None:
        """The request is on its way. An answer that is not streamed does not tell when it has got its slot."""
        ticket.was_sent = True
        ticket.tasks = tuple(belief.seen.task if belief.seen else None for belief in self.model.ledger.slots)
        # With one slot nobody else can be prepared meanwhile.
        if not ticket.is_streamed and ticket.places and len(self.model.ledger.slots) > 1:
            self.context.spawn(self._watch_begin(ticket))

    async def _watch_begin(self, ticket: Ticket) -> None:
        for pause in BEGUN_LOOKS_S:
            await asyncio.sleep(pause)
            if ticket.has_begun or await self._find_slot(ticket):
                break
        self.model.turn.give_back(ticket)

    async def _entered(self, ticket: Ticket) -> None:
        if not ticket.is_streamed:
            # The headers come with the end: the last look tells the slot too, unless a slow reader keeps it waiting.
            with suppress(TimeoutError):
                await asyncio.wait_for(ticket.over.wait(), SLOW_READER_S)
        if not ticket.over.is_set():
            await self._find_slot(ticket)
        self.model.turn.give_back(ticket)

    async def _find_slot(self, ticket: Ticket) -> bool:
        """Which slot it got: the only one, or the one that works on a new task; whether that is known now."""
        model = self.model
        if ticket.slot is not None:
            return True
        if len(model.ledger.slots) == 1:
            self.accounting.take_slot(ticket, 0)
            return True
        if not model.able.shows_slots:
            if ticket.plan.slot is not None:
                self.accounting.take_slot(ticket, ticket.plan.slot)
            return ticket.plan.slot is not None
        with suppress(ControlFailed):
            looks = await model.client.slots(ticket.visit.auth)
            new = [look for look in looks if self.context.is_new(look)]
            fresh = self.context.begun(looks)
            if len(fresh) == 1:
                self.accounting.take_slot(ticket, fresh[0].slot, fresh[0].task)
                ticket.seen = fresh[0]
            slots, is_over = [look.slot for look in new], not any(look.is_busy for look in new)
            self.context.observe(looks, slots, slots if is_over and ticket.slot is None else ())
        return ticket.slot is not None

    # Settling

    def _settled(self, ticket: Ticket) -> None:
        """The request is over, in whatever way."""
        model = self.model
        self._leave_gate(ticket)
        if ticket.was_sent and not ticket.has_begun and model.process is not None:
            self._account_later(ticket)
        elif ticket.has_begun:
            model.last_answer = time.monotonic()
            self._account_later(ticket)
        else:
            self._release(ticket)

    def _account_later(self, ticket: Ticket) -> None:
        settling = self.model.settling
        task = self.context.spawn(self._account(ticket))
        settling.add(task)
        task.add_done_callback(settling.discard)

    async def _account(self, ticket: Ticket) -> None:
        try:
            looks = await self._last_look(ticket)
            ticket.figures = ticket.figures or figures_from_slot(ticket, looks)
            self.accounting.enter(ticket, looks)
            if ticket.has_begun:
                self.report.settled(ticket, self.model)
        finally:
            self._release(ticket)

    async def _last_look(self, ticket: Ticket) -> list[Look]:
        if not self.model.able.shows_slots or ticket.status not in (0, HTTPStatus.OK):
            return []
        with suppress(ControlFailed):
            return await self.model.client.slots(ticket.visit.auth)
        return []

    def _leave_gate(self, ticket: Ticket) -> None:
        self._inside.pop(ticket.number, None)
        if ticket.places:
            places, ticket.places = ticket.places, 0
            self.model.gate.leave(places)

    def _release(self, ticket: Ticket) -> None:
        self.model.ledger.release(ticket.number)
        ticket.over.set()
        self.model.turn.give_back(ticket)

    # Other users and other servers

    def touched(self) -> None:
        """Something that is not ours to understand used a slot: any of them may hold anything now."""
        for belief in self.model.ledger.slots:
            if not belief.lease:
                belief.holds = Unknown()
        self.model.ledger.saw_start = False

    def _reclaim_when_due(self, auth: Auth) -> None:
        """One look for all who wait: looking often keeps the server from noticing that a client has gone."""
        now = time.monotonic()
        if now - self._reclaimed_at >= RECLAIM_S:
            self._reclaimed_at = now
            self.context.spawn(self._reclaim(auth))

    async def _reclaim(self, auth: Auth) -> None:
        """A slot that is idle though its answer is still being read makes room for those who wait."""
        if not self.model.able.shows_slots:
            return
        with suppress(ControlFailed):
            looks = {look.slot: look for look in await self.model.client.slots(auth)}
            for ticket in [*self._inside.values()]:
                look = looks.get(-1 if ticket.slot is None else ticket.slot)
                if look is not None and not look.is_busy and ticket.has_begun:
                    self._reclaim_slot(ticket, look)

    def _reclaim_slot(self, ticket: Ticket, look: Look) -> None:
        ticket.is_reclaimed = True
        self.model.ledger.hold(look.slot, Unknown(look.n_tokens))
        self._release(ticket)
        self._leave_gate(ticket)

    def meet_anew(self) -> None:
        """Somebody changed the model's adapters: what is known of it is out of date."""
        self.model.process = None

    def _failed(self, ticket: Ticket, error: ControlFailed) -> None:
        if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            ticket.plan = nothing("not_authorised")
            return
        if self.model.client.model and error.code == HTTPStatus.BAD_REQUEST:
            ticket.plan = nothing("model_not_loaded")  # what becomes of it is the router's affair
            return
        if error.is_unreachable:
            self.report.trouble(UNREACHABLE, f"{error}; requests get a 502 until it answers")
        else:
            self.report.trouble(f"control:{error.code}", f"{error}; the request goes on unprepared")
        ticket.plan = nothing(
            "server_not_ready" if error.code == HTTPStatus.SERVICE_UNAVAILABLE else "control_call_failed"
        )

    # Housekeeping

    def _lose_interest(self, rendering: str) -> None:
        self.model.interest[rendering] -= 1
        if self.model.interest[rendering] <= 0:
            del self.model.interest[rendering]
            self._end_unwanted()

    def _end_unwanted(self) -> None:
        """Warm-ups that went on for others end when the last of those has gone."""
        model = self.model
        prefixes = [model.prefixes[name] for name in model.interest if name in model.prefixes]
        # A head is wanted by whoever wants the exact prefix that it begins with, and so are the stems of that.
        wanted = {key for prefix in prefixes for key in (prefix.key, *(prefix.stems or ()))}
        for key, flight in model.flights.items():
            prefix = model.by_key(key)
            is_wanted = key in wanted or (prefix is not None and prefix.base_key in wanted)
            if not is_wanted and not self.lifecycle.is_building:
                flight.cancel()

    def wind_down(self) -> None:
        """The proxy is told to stop: no save begins, what runs may end."""
        self.context.is_stopping = True

    async def close(self) -> None:
        """Let what is being accounted for end, stop everything else."""
        await self.lifecycle.stop()
        await self.context.close()
