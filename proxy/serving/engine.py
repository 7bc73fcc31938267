"""The engine: the one owner of what is believed about the server.

A request's way through it: *enter* (wait for admission and for the turn, see whether the server is still the same,
plan, have the plan carried out), *began* (the server has put it into a slot: the next may be prepared), *settled* (its
answer is over: enter what its slot holds now, from its own figures). Beliefs change only in methods without `await`;
slow work happens between two such calls.

Nothing here may fail or delay a request: every error ends in a log line and a request that goes on as it is, every wait
ends at `MAX_SILENCE`. Counterparts: `executor` carries plans out, `planner` makes them, `reporting` says what happened.
"""

import asyncio
import os
import time
from array import array
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import date
from http import HTTPStatus
from typing import Any

from proxy.checkpoints.key import checkpoint_key, temporary_name
from proxy.llama.answer import Figures
from proxy.llama.client import Auth, ControlFailed, LlamaClient
from proxy.llama.identity import file_identity, model_identity, process
from proxy.llama.probe import N_TOKENS as PROBE_TOKENS
from proxy.llama.probe import probe
from proxy.llama.renderer import exact_prefix
from proxy.request.fingerprint import fingerprint, shown
from proxy.serving.executor import Executor, PlanAgain, PlanBroken
from proxy.serving.model import ExactPrefix, Model
from proxy.serving.reporting import Reporter
from proxy.serving.store import Store, identity_text
from proxy.serving.ticket import Ticket
from proxy.serving.visit import Visit
from proxy.settings import Settings
from proxy.slots.holding import Need, Nothing, Prefix, Talk, Unknown, continues_talk
from proxy.slots.ledger import Look
from proxy.slots.plan import Source, nothing
from proxy.slots.planner import plan
from proxy.slots.prediction import choose
from proxy.slots.verdict import judge

STALE_S = 1.0
"""After this long without an answer the server may be another one."""
GLANCE_S = 0.05
"""How long a look that every request pays for may take."""
MAX_PLANS = 4
"""A checkpoint that turns out not to be fit makes another plan, but not for ever."""
PROBE_S = 10.0
PROBE_KEY = "0" * 16
RECLAIM_S = 2.0
"""How often, while somebody waits, it is looked whether a slot is idle though its answer is still being read."""
BEGUN_LOOKS_S = (0.01, 0.04, 0.15, 0.5)
"""When to look whether an answer that is not streamed has got its slot."""


class Engine:
    """Prepares slots for chat completions."""

    def __init__(self, settings: Settings, client: LlamaClient, reporter: Reporter, store: Store) -> None:
        self.settings = settings
        self.report = reporter
        self.store = store
        self.model = Model(client)
        self.executor = Executor(self)
        self._numbers = 0
        self._tasks: set[asyncio.Task[None]] = set()

    # Entering

    async def enter(self, visit: Visit) -> Ticket:
        """Admit a request and prepare its slot; raises nothing but CancelledError."""
        self._numbers += 1
        ticket = Ticket(self._numbers, visit, self._began, self._settled)
        if not visit.may_prepare:
            ticket.plan = nothing(visit.reason)
            await self._identify(ticket)
            ticket.prepared()
            return ticket
        self.model.interest[visit.rendering] += 1
        try:
            async with asyncio.timeout(self.settings.max_silence):
                await self._admit(ticket)
                await self._prepare(ticket)
        except TimeoutError:
            self.report.trouble("too_slow", "waited long enough; the request goes on unprepared")
        except ControlFailed as error:
            self._failed(ticket, error)
        except asyncio.CancelledError:
            ticket.settle()
            raise
        except Exception as error:
            self.report.bug(error)
        finally:
            self._lose_interest(visit.rendering)
        ticket.prepared()
        return ticket

    async def _admit(self, ticket: Ticket) -> None:
        model = self.model
        await self._meet_first(ticket.visit.auth)
        waiting = asyncio.ensure_future(model.gate.enter(ticket.visit.request.choices if ticket.visit.request else 1))
        try:
            while not (await asyncio.wait({waiting}, timeout=RECLAIM_S))[0]:
                await self._reclaim(ticket.visit.auth)
        except asyncio.CancelledError:
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                model.gate.leave(await waiting)
            raise
        ticket.places = waiting.result()
        await model.turn.take(ticket)

    async def _prepare(self, ticket: Ticket) -> None:
        model = self.model
        if model.settling:
            await asyncio.wait(model.settling)
        has_looked = await self._glance(ticket.visit.auth)
        await self._identify(ticket)
        if model.process is None:
            return
        if model.wants_probe:
            await self.probe(ticket.visit.auth)
        ticket.need = await self._need(ticket)
        only = None if self.settings.slot == "auto" else self.settings.slot
        for _ in range(MAX_PLANS):
            ticket.plan = plan(ticket.need, model.ledger, model.able, self.store.disk(ticket.need.prefix_key), only)
            is_native = ticket.plan.source in (Source.CONTINUE, Source.HIT) and not ticket.plan.steps
            if not is_native and not has_looked:
                # Beliefs are about to be acted on, and a server can be restarted within a second.
                has_looked = await self._glance(ticket.visit.auth, is_needed=True)
                if model.wants_probe:
                    await self.probe(ticket.visit.auth)
                continue
            self.report.planned(ticket)
            try:
                await self.executor.carry_out(ticket)
            except PlanAgain:
                continue
            return
        ticket.plan = nothing("no_plan_worked")

    async def probe(self, auth: Auth) -> None:
        """Find out what the server can do; the caller holds the turn, and the slots are empty."""
        model = self.model
        model.wants_probe = False
        writes = self.settings.persist and not self.settings.observe_only
        name = temporary_name(PROBE_KEY, os.getpid(), 0) if writes else None
        try:
            async with asyncio.timeout(PROBE_S):
                found = await probe(model.client, model.able, auth, name, PROBE_S)
        except (ControlFailed, TimeoutError) as error:
            model.ledger.forget()
            self.report.trouble(
                "probe", f"the server could not be probed ({type(error).__name__}); learning from requests"
            )
            return
        finally:
            if name is not None:
                await self.store.forget_probe(name)
        model.able, model.prompt_ms_per_token = found.able, found.prompt_ms_per_token
        await self._after_probe(found.slot, auth)
        self.report.probed(model.able)

    async def _after_probe(self, slot: int, auth: Auth) -> None:
        """Leave a slot that is empty, or at least one that shares nothing with anybody."""
        model = self.model
        if model.able.acts_on_slots:
            with suppress(ControlFailed):
                await model.client.erase(slot, auth, self.settings.control_timeout)
        if not model.able.shows_slots:
            model.ledger.hold(slot, Prefix("", PROBE_TOKENS))
            return
        looks = await model.client.slots(auth)
        for look in looks:
            model.ledger.hold(look.slot, Prefix("", look.n_tokens) if look.n_tokens else Nothing())
        self._observe(looks, [look.slot for look in looks])

    async def _glance(self, auth: Auth, *, is_needed: bool = False) -> bool:
        """Is it still the same server, and has anybody else used it? Only after a silence; whether it was looked."""
        model = self.model
        if model.process is None:
            await self._meet_first(auth)
            return True
        is_fresh = time.monotonic() - model.last_answer < STALE_S and model.is_welcome(auth)
        if is_fresh and not is_needed:
            return False
        limit_s = self.settings.control_timeout if is_needed else GLANCE_S
        try:
            now = process(await model.client.props(auth, limit_s))
        except ControlFailed as error:
            if error.is_timeout and not is_needed:
                return False
            if error.code in (0, HTTPStatus.SERVICE_UNAVAILABLE) and not error.is_timeout:
                self._lost_server()
            raise
        model.welcomed(auth)
        if now.marker != model.process.marker or now.total_slots != model.process.total_slots:
            await self._meet(auth)
        elif now.is_sleeping:
            self.report.trouble("slept", "the server slept, its slots are empty")
            model.ledger.forget()
        elif model.able.shows_slots:
            self._observe(await model.client.slots(auth, self.settings.control_timeout), ())
        model.last_answer = time.monotonic()
        return True

    async def _meet_first(self, auth: Auth) -> None:
        async with self.model.meeting:
            if self.model.process is None:
                await self._meet(auth)

    async def _meet(self, auth: Auth) -> None:
        """Get to know a server process."""
        model, client = self.model, self.model.client
        now = process(await client.props(auth))
        models, lora = await asyncio.gather(client.models(auth), client.lora_adapters(auth))
        file = await asyncio.to_thread(file_identity, now.model_path)
        identity = model_identity(now, models, lora, server_id=self.settings.server_id, file=file)
        looks: list[Look] = []
        if not now.is_sleeping:
            try:
                looks = await client.slots(auth)
            except ControlFailed as error:
                if error.code != HTTPStatus.NOT_IMPLEMENTED:
                    raise
                self.report.trouble(
                    "no_slots", "the server hides its slots (--no-slots); other users of it go unnoticed"
                )
        model.began_process(now, identity, looks)
        await self.store.met(now.marker)
        model.welcomed(auth)
        model.last_answer = time.monotonic()
        self.report.met(model)

    async def _identify(self, ticket: Ticket) -> None:
        visit, identity = ticket.visit, self.model.identity
        if visit.request is None or visit.prefix is None:
            return
        if identity is None:
            with suppress(ControlFailed):
                await self._meet_first(visit.auth)
            identity = self.model.identity
        if identity is not None:
            ticket.fingerprint = fingerprint(visit.request, visit.prefix, identity, visit.client)

    async def _need(self, ticket: Ticket) -> Need:
        visit = ticket.visit
        need = Need(
            visit.chain, visit.sizes, has_past=visit.has_past, slots=visit.request.choices if visit.request else 1
        )
        if visit.prefix is None:
            return need
        known = self.model.recall(visit.rendering, date.today())
        if known is None and any(continues_talk(need, belief.holds) for belief in self.model.ledger.idle()):
            return need  # it needs no prefix now, and rendering would cost it some milliseconds
        known = known or await self._render(ticket)
        if known is None or known.n_tokens < self.settings.min_prefix_tokens:
            return need
        takes_ms = known.n_tokens * self.model.prompt_ms_per_token
        return replace(
            need,
            prefix_key=known.key,
            prefix_tokens=known.n_tokens,
            is_slow=takes_ms > self.settings.max_silence * 1000,
        )

    async def _render(self, ticket: Ticket) -> ExactPrefix | None:
        visit, model = ticket.visit, self.model
        if visit.request is None or visit.prefix is None or model.identity is None or not model.renders:
            return None
        rendered = await exact_prefix(model.client, visit.request, visit.prefix, visit.auth)
        identity = model.identity
        key = checkpoint_key(identity_text(identity), identity.lora, identity.server_id, rendered.tokens)
        found = ExactPrefix(key, array("i", rendered.tokens), rendered.n_real, date.today())
        model.remember(visit.rendering, found)
        ticket.n_rendered = rendered.n_real
        return found

    # Beginning

    def _began(self, ticket: Ticket) -> None:
        """The answer's headers came."""
        self.model.last_answer = time.monotonic()
        if ticket.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return
        self._spawn(self._entered(ticket))

    def sent(self, ticket: Ticket) -> None:
        """The request is on its way. An answer that is not streamed does not tell when it has got its slot."""
        is_streamed = ticket.visit.request is not None and ticket.visit.request.stream
        # With one slot nobody else can be prepared meanwhile.
        if not is_streamed and ticket.places and len(self.model.ledger.slots) > 1:
            self._spawn(self._watch_begin(ticket))

    async def _watch_begin(self, ticket: Ticket) -> None:
        for pause in BEGUN_LOOKS_S:
            await asyncio.sleep(pause)
            if ticket.has_begun or await self._find_slot(ticket):
                break
        self.model.turn.give_back(ticket)

    async def _entered(self, ticket: Ticket) -> None:
        await self._find_slot(ticket)
        self.model.turn.give_back(ticket)

    async def _find_slot(self, ticket: Ticket) -> bool:
        """Which slot it got: the only one, or the one that works on a new task; whether that is known now."""
        model = self.model
        if ticket.slot is not None:
            return True
        if len(model.ledger.slots) == 1:
            self._take_slot(ticket, 0)
            return True
        if not model.able.shows_slots:
            if ticket.plan.slot is not None:
                self._take_slot(ticket, ticket.plan.slot)
            return ticket.plan.slot is not None
        with suppress(ControlFailed):
            looks = await model.client.slots(ticket.visit.auth)
            fresh = [look for look in looks if look.is_busy and self._is_new(look)]
            if len(fresh) == 1:
                self._take_slot(ticket, fresh[0].slot)
                ticket.seen = fresh[0]
            self._observe(looks, [look.slot for look in fresh])
        return ticket.slot is not None

    def _is_new(self, look: Look) -> bool:
        if not 0 <= look.slot < len(self.model.ledger.slots):
            return False
        belief = self.model.ledger.slots[look.slot]
        return not belief.lease and (belief.seen is None or belief.seen.task != look.task)

    def _take_slot(self, ticket: Ticket, slot: int) -> None:
        ledger = self.model.ledger
        if ledger.slots[slot].lease not in (0, ticket.number):
            return
        choice = choose(ticket.need, ledger.idle())
        if ticket.plan.slot is not None:
            self.report.predicted(ticket, slot)
        old = ledger.slots[slot].holds
        if self.model.able.keeps_copies and choice and choice.slot == slot and not choice.overwrites:
            ledger.copied(old)
        if continues_talk(ticket.need, old) and isinstance(old, Talk):
            ledger.taken(old)
        elif (copy := ledger.longest_copy(ticket.need)) is not None:
            ledger.taken(copy)
        elif ticket.plan.reason == "host_memory_begins_with_prefix":
            ledger.taken_for(ticket.need.prefix_key)
        ledger.lease(slot, ticket.number)
        ticket.slot = slot

    # Settling

    def _settled(self, ticket: Ticket) -> None:
        """The request is over, in whatever way."""
        model = self.model
        if ticket.places:
            model.gate.leave(ticket.places)
            ticket.places = 0
        if ticket.has_begun:
            model.last_answer = time.monotonic()
            task = self._spawn(self._account(ticket))
            model.settling.add(task)
            task.add_done_callback(model.settling.discard)
        else:
            self._release(ticket)

    async def _account(self, ticket: Ticket) -> None:
        try:
            looks = await self._last_look(ticket)
            ticket.figures = ticket.figures or figures_from_slot(ticket, looks)
            self._enter_outcome(ticket, looks)
            self.report.settled(ticket, self.model)
        finally:
            self._release(ticket)

    async def _last_look(self, ticket: Ticket) -> list[Look]:
        if not self.model.able.shows_slots or ticket.status != HTTPStatus.OK:
            return []
        with suppress(ControlFailed):
            return await self.model.client.slots(ticket.visit.auth)
        return []

    def _enter_outcome(self, ticket: Ticket, looks: list[Look]) -> None:
        """Beliefs after a request, from its own figures; a look tells the slot where that is not known yet."""
        model, ledger = self.model, self.model.ledger
        if ticket.slot is None and len(ledger.slots) == 1:
            self._take_slot(ticket, 0)
        if ticket.slot is None:
            changed = [look.slot for look in looks if self._is_new(look)]
            if len(changed) == 1:
                self._take_slot(ticket, changed[0])
        ledger.release(ticket.number)
        figures = ticket.figures
        if ticket.slot is not None and ticket.status == HTTPStatus.OK:
            ledger.hold(ticket.slot, self._outcome(ticket, looks))
        self._observe(looks, () if ticket.slot is None else (ticket.slot,))
        if figures is None:
            return
        self._learn_rate(ticket)
        if ticket.n_rendered and figures.prompt_tokens not in (None, ticket.n_rendered):
            model.renders = False
            self.report.trouble(
                "rendering", f"/apply-template gives {ticket.n_rendered} tokens, the answer {figures.prompt_tokens}"
            )
        verdict = judge(ticket.plan, figures.cache_n)
        if not verdict.is_kept:
            self._claim_failed(ticket, verdict.reason)
        elif (figures.cache_n or 0) >= ticket.need.prefix_tokens > 0:
            self.store.used(ticket.need.prefix_key, shown(ticket.fingerprint))

    def _outcome(self, ticket: Ticket, looks: Iterable[Look]) -> Talk | Unknown:
        figures, need, visit = ticket.figures, ticket.need, ticket.visit
        seen = next((look for look in looks if look.slot == ticket.slot), None)
        if not visit.chain or visit.request is None or not visit.may_prepare or visit.request.choices > 1:
            return Unknown(seen.n_tokens if seen else 0)
        known = self.model.prefixes.get(visit.rendering)
        is_whole = figures is not None and ticket.is_whole
        prompt = (figures.prompt_tokens if figures else None) or 0
        answer = (figures.predicted_n if figures else None) or 0
        believed = prompt + max(0, answer - 1)
        marked = ticket.plan.source in (Source.WARM_UP, Source.HIT, Source.RESTORE) or self._was_marked(ticket)
        return Talk(
            visit.chain,
            visit.sizes,
            n_prompt=prompt,
            n_tokens=seen.n_tokens if seen and not (is_whole and not seen.n_tokens) else believed,
            prefix_key=known.key if known else need.prefix_key,
            prefix_tokens=known.n_tokens if known else need.prefix_tokens,
            is_whole=is_whole,
            is_marked=marked,
        )

    def _was_marked(self, ticket: Ticket) -> bool:
        if ticket.plan.source not in (Source.CONTINUE, Source.RESUME) or ticket.slot is None:
            return False
        before = self.model.ledger.slots[ticket.slot].holds
        return (isinstance(before, Talk) and before.is_marked) or ticket.plan.source is Source.RESUME

    def _claim_failed(self, ticket: Ticket, reason: str) -> None:
        model = self.model
        self.report.claim_failed(ticket, reason)
        model.prefixes.pop(ticket.visit.rendering, None)
        for belief in model.ledger.idle():
            if belief.slot != ticket.slot:
                belief.holds = belief.holds if isinstance(belief.holds, Nothing) else Unknown(belief.holds.n_tokens)
        if ticket.plan.source is Source.RESUME:
            model.ledger.copies.clear()
        if ticket.plan.source is Source.RESTORE:
            self.store.useless(ticket.need.prefix_key)

    def _learn_rate(self, ticket: Ticket) -> None:
        figures = ticket.figures
        if figures and figures.prompt_ms and figures.prompt_n and figures.prompt_n >= self.settings.min_prefix_tokens:
            self.model.prompt_ms_per_token = figures.prompt_ms / figures.prompt_n

    def _release(self, ticket: Ticket) -> None:
        self.model.ledger.release(ticket.number)
        self.model.turn.give_back(ticket)

    # Other users and other servers

    def touched(self) -> None:
        """Something that is not ours to understand used a slot: any of them may hold anything now."""
        for belief in self.model.ledger.slots:
            if not belief.lease:
                belief.holds = Unknown()
        self.model.ledger.saw_start = False

    def _observe(self, looks: list[Look], ours: Iterable[int]) -> None:
        surprised = self.model.ledger.observe(looks, ours)
        if surprised:
            self.report.surprised(surprised)

    async def _reclaim(self, auth: Auth) -> None:
        """Slots that are idle though their answers are still being read make room for those who wait."""

    def _lost_server(self) -> None:
        self.model.process = None

    def _failed(self, ticket: Ticket, error: ControlFailed) -> None:
        if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            ticket.plan = nothing("not_authorised")
            return
        self.report.trouble(f"control:{error.code}", f"{error}; the request goes on unprepared")
        ticket.plan = nothing(
            "server_not_ready" if error.code == HTTPStatus.SERVICE_UNAVAILABLE else "control_call_failed"
        )

    # Housekeeping

    def _lose_interest(self, rendering: str) -> None:
        self.model.interest[rendering] -= 1
        if self.model.interest[rendering] <= 0:
            del self.model.interest[rendering]

    def watch_over(self, task: asyncio.Task[None]) -> None:
        """Somebody's unfinished work goes on; what becomes of it is told."""
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def tidy_up(self) -> None:
        """After a save: clean up and write the index, while requests go on."""
        self._spawn(self._tidy_up())

    async def _tidy_up(self) -> None:
        await self.store.clean_up()
        await self.store.flush()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, PlanAgain | PlanBroken | ControlFailed):
            self.report.bug(error)

    async def close(self) -> None:
        """Let what is being accounted for end, stop everything else."""
        tasks = [*self._tasks, *self.model.flights.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=1.0)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self.store.close()


def figures_from_slot(ticket: Ticket, looks: Iterable[Look]) -> Figures | None:
    """The fallback where an answer has no figures: what `/slots` showed while it ran, or what the slot holds now.

    Newer builds show counters of prefilled and reused tokens only during the run, and afterwards only the slot's
    length, which the generated tokens are part of.
    """
    if ticket.status != HTTPStatus.OK or not ticket.is_whole:
        return None
    last = next((look for look in looks if look.slot == (ticket.slot or 0)), None)
    for look in (ticket.seen, last):
        if look is not None and look.n_processed:
            return Figures(look.n_processed, look.n_cache, None, None, None, "slots")
    return Figures(last.n_tokens, None, None, None, None, "slots") if last is not None and last.n_tokens else None
