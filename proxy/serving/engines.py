"""The engines: one for a plain server; behind a router (`--models-dir`) one for each model that is asked for.

A router has no slots. Each of its models runs in a process of its own and has its own slots, prefixes and beliefs,
hence its own engine with its own record. Which models there are the router says; none is ever loaded for work of ours:
only for a request that has the router load it anyway, which then meets it empty. Counterpart: `engine`.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from proxy.llama.client import ControlFailed, LlamaClient
from proxy.llama.identity import names_of_models
from proxy.serving.engine import Engine
from proxy.serving.reporting import Reporter
from proxy.serving.store import Store
from proxy.serving.ticket import Ticket
from proxy.serving.visit import Visit
from proxy.settings import Settings

ASK_AGAIN_S = 2.0
"""How soon a router may be asked again which models it has."""
LOST = ("control_call_failed", "server_not_ready", "too_slow")
"""What becomes of a request whose model was put out by somebody else's before it was prepared; or takes too long, or
can't be loaded at all."""
LOAD_AGAIN_S = 600.0
"""How long afterwards requests have their models loaded themselves: clients of several models may be at work."""


class Engines:
    """Prepares slots for chat completions, of whichever model."""

    def __init__(self, settings: Settings, client: LlamaClient, reporter: Reporter, store: Store) -> None:
        self._settings, self._client, self._report, self._store = settings, client, reporter, store
        self._numbers = itertools.count(1)
        self.first = Engine(settings, client, reporter, store, numbers=self._numbers)
        """The only one of a plain server."""
        self._of_models: dict[str, Engine] = {}
        self._gone: list[Engine] = []
        self.latest = self.first
        """The one that was used last."""
        self._names: dict[str, str] = {}
        self._asked_at = float("-inf")
        self._load_again_at = float("-inf")

    def __iter__(self) -> Iterator[Engine]:
        return iter([self.first, *self._of_models.values()])

    def start(self) -> None:
        """Begin to watch the server."""
        self.first.lifecycle.start()

    async def enter(self, visit: Visit) -> tuple[Engine, Ticket]:
        """Admit a request and prepare its slot, in the engine of its model; raises nothing but CancelledError."""
        began = time.monotonic()
        patience_s = self._settings.max_silence
        if visit.may_prepare and not self.first.model.is_router:
            # Whether it is one must be known before anybody waits for a slot of the wrong model.
            with suppress(ControlFailed, TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self.first.acquaintance.meet_first(visit.auth)
        if self.first.model.is_router:
            name = await self._name(visit)
            if name is None:
                visit = replace(visit, may_prepare=False, reason=_barred(visit))
            engine = self.first if name is None else self._of(name)
        else:
            await self._forget_models()
            engine = self.first
        is_beside_another = any(other.is_busy for other in self._of_models.values() if other is not engine)
        if is_beside_another or time.monotonic() < self._load_again_at:
            visit = replace(visit, may_load=False)  # one of the two could put the other's model out meanwhile
        if engine is not self.latest:
            engine.model.last_answer = 0.0  # for another model the router may have put this one out
        self.latest = engine
        ticket = await engine.enter(visit, max(0.0, patience_s - (time.monotonic() - began)))
        if visit.may_load and self.first.model.is_router and ticket.plan.reason in LOST:
            self._load_again_at = time.monotonic() + LOAD_AGAIN_S
        return engine, ticket

    def _of(self, name: str) -> Engine:
        if name not in self._of_models:
            client, number = self._client.of_model(name), len(self._of_models) + 1
            engine = Engine(self._settings, client, self._report, self._store, number=number, numbers=self._numbers)
            engine.lifecycle.start()
            self._of_models[name] = engine
        return self._of_models[name]

    async def _name(self, visit: Visit) -> str | None:
        """The id of the model that the request names; None where the router has no such model, or doesn't tell."""
        wanted = visit.request.model if visit.request is not None else ""
        if wanted and wanted not in self._names and time.monotonic() - self._asked_at >= ASK_AGAIN_S:
            with suppress(ControlFailed):
                self._names = names_of_models(await self._client.models(visit.auth))
                self._asked_at = time.monotonic()
        return self._names.get(wanted)

    async def _forget_models(self) -> None:
        """The server is no router any more."""
        gone, self._of_models = [*self._of_models.values()], {}
        self._gone += gone
        for engine in gone:
            engine.wind_down()
            await engine.lifecycle.stop()

    # Other users and other servers

    def touched(self) -> None:
        """Something that is not ours to understand used a slot, of whichever model."""
        for engine in self:
            engine.touched()

    def meet_anew(self) -> None:
        """Somebody changed a model's adapters: what is known of it is out of date."""
        for engine in self:
            engine.meet_anew()

    # The end

    def wind_down(self) -> None:
        """The proxy is told to stop: no save begins, what runs may end."""
        for engine in self:
            engine.wind_down()

    async def close(self) -> None:
        """Let what is being accounted for end, stop everything else."""
        await asyncio.gather(*(engine.close() for engine in [*self, *self._gone]))
        await self._store.close()


def _barred(visit: Visit) -> str:
    """Why nothing is prepared for a request that names no model of the router."""
    return visit.reason or "unknown_model"
