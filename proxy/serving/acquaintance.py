"""Knowing the server: which process it is, whether it is still the same, what it can do.

A process is met once (`/props`, `/v1/models`, `/lora-adapters`, `/slots`) and, if its slots are empty then, probed.
Later one glance after a silence tells whether it is another one, slept, or was used by somebody else.
Counterparts: `llama.identity` reads the answers, `llama.probe` asks the questions, `model` keeps what was found.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from proxy.checkpoints.key import temporary_name
from proxy.llama.client import Auth, ControlFailed
from proxy.llama.identity import file_identity, model_identity, process
from proxy.llama.model_file import sliding_window
from proxy.llama.probe import MOST_TOKENS, Probed, probe
from proxy.llama.probe import N_TOKENS as PROBE_TOKENS
from proxy.serving.adapters import adapters
from proxy.serving.context import Context
from proxy.serving.known_servers import Found, keep, recall
from proxy.serving.looked_over import is_as_left
from proxy.serving.saving import BLIND, REFUSALS
from proxy.serving.slot_steps import SlotSteps
from proxy.slots.holding import Nothing, Prefix, Unknown
from proxy.slots.ledger import Look

STALE_S = 1.0
"""After this long without an answer the server may be another one."""
GLANCE_S = 0.5
"""How long a look that every request pays for may take. Without it a conversation that goes on is sent to a server that
was restarted as if that still had it."""
RETRY_S = 2.0
GONE = (0, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.BAD_REQUEST)
"""No answer, one that loads, a router that has put this model out."""
NOT_LOADED = (HTTPStatus.BAD_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE)
"""A router's answers while a model of its is not in memory, or not yet."""
PROBE_S = 10.0
PROBE_KEY = "0" * 16
NOT_PROBED = (
    "what the server can do is not known, as its slots were in use when the proxy met it: until its answers have told, "
    "it is left to itself wherever it may do well alone"
)
RESTART_ONCE = "restart llama-server once while the proxy runs"


class Acquaintance:
    """Gets to know the server of one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._slots = SlotSteps(context)
        self._not_before = 0.0
        """When a server that did not answer in time is asked again: those who wait for it don't ask one by one."""

    async def probe(self, auth: Auth) -> None:
        """Find out what the server can do; the caller holds the turn, and the slots are empty."""
        model = self._context.model
        model.wants_probe, model.was_probed = False, True
        writes = self._context.settings.persist and not self._context.settings.observe_only
        name = temporary_name(PROBE_KEY, os.getpid(), self._context.number) if writes else None
        try:
            async with asyncio.timeout(PROBE_S):
                found = await probe(model.client, model.able, auth, name, PROBE_S)
        except (ControlFailed, TimeoutError) as error:
            model.ledger.forget()
            self._context.report.trouble(
                "probe", f"the server could not be probed ({type(error).__name__}); learning from requests"
            )
            return
        finally:
            version = await self._context.store.forget_probe(name) if name is not None else None
        model.able = replace(found.able, format_version=version)
        model.prompt_ms_per_token = found.prompt_ms_per_token
        if version is None and found.able.restores and self._context.store.directory is not None:
            # The server has read what it had written, and it was never seen in SLOT_DIR.
            self._context.store.shelf.is_blind = True
            self._context.report.trouble(f"not_saved:{BLIND}", f"no checkpoint is saved: {REFUSALS[BLIND]}")
        await self._after_probe(found, auth)
        await self._keep()
        self._context.report.probed(model.able)
        self._warn()
        if writes:
            self._advise()

    async def _keep(self) -> None:
        """For the proxy that comes after this one."""
        model, settings = self._context.model, self._context.settings
        if model.process is not None:
            found = Found(model.able, model.prompt_ms_per_token, str(settings.slot_dir or ""))
            await asyncio.to_thread(keep, settings.dir, model.process, found)

    async def _take_up(self) -> None:
        """What the proxy before this one has found out, where the slots are in use and it can't be asked again."""
        model, settings = self._context.model, self._context.settings
        if model.wants_probe or model.process is None:
            return
        known = await asyncio.to_thread(recall, settings.dir, model.process)
        if known is not None:
            known = known.seen_from(str(settings.slot_dir or ""))
            model.take_up(known.able, known.prompt_ms_per_token)
            # The one before did not try what only checkpoints need.
            are_files_known = known.able.acts_on_slots is False or known.able.restores is not None
            model.was_probed = are_files_known or not settings.persist
            self._context.report.recalled(model.able)
            self._warn()
        elif model.able.shows_slots and not settings.observe_only:
            self._context.report.trouble("not_probed", f"{NOT_PROBED}; {RESTART_ONCE}")

    def _warn(self) -> None:
        """Say once that, and why, there is nothing to do here."""
        able, report = self._context.model.able, self._context.report
        if able.reuses is False:
            report.trouble("reuse_useless", "the server reuses no prompt (--no-cache-prompt): nothing is prepared")
        elif able.finds_alike is False:
            report.trouble(
                "reuse_useless",
                "the server chooses slots whatever they hold (--slot-prompt-similarity): nothing is prepared",
            )

    def _advise(self) -> None:
        """Say once what keeps checkpoints from being of use here."""
        able, report = self._context.model.able, self._context.report
        if able.acts_on_slots is False:
            report.trouble("slot_actions_off", "checkpoints need --slot-save-path on the server")
        elif able.restores is False:
            report.trouble(
                "restore_useless",
                "a restored prefix is not reused here, so no checkpoint is saved or restored; "
                "a sliding-window model needs --swa-full on the server",
            )

    async def _after_probe(self, found: Probed, auth: Auth) -> None:
        """Leave slots that are empty: where they share a buffer, what is in one takes room from the others' windows."""
        model = self._context.model
        if not model.able.shows_slots:
            model.ledger.hold(found.slot, Prefix("", PROBE_TOKENS))
            if model.able.acts_on_slots:
                await self._emptied([found.slot], found, auth)
            return
        looks = await model.client.slots(auth)
        # One that is longer, or busy, is somebody else's by now.
        new = [look for look in looks if self._context.is_new(look)]
        ours = [look for look in new if look.n_tokens <= MOST_TOKENS and not look.is_busy]
        for look in new:
            probed = Prefix("", look.n_tokens) if look.n_tokens else Nothing()
            model.ledger.hold(look.slot, probed if look in ours else Unknown(look.n_tokens))
        self._context.observe(looks, [look.slot for look in new])
        await self._emptied([look.slot for look in ours if look.n_tokens], found, auth)

    async def _emptied(self, slots: Sequence[int], found: Probed, auth: Auth) -> None:
        with suppress(ControlFailed, TimeoutError):
            async with asyncio.timeout(self._context.settings.control_timeout):
                for slot, token in zip(slots, found.spare, strict=False):
                    await self._slots.clear(slot, auth, token)

    async def glance(self, auth: Auth, *, is_needed: bool = False, may_load: bool = False) -> bool:
        """Is it still the same server, and has anybody else used it? Only after a silence; whether it was looked."""
        model = self._context.model
        if model.process is None:
            await self.meet_first(auth, may_load=may_load)
            return True
        is_fresh = time.monotonic() - model.last_answer < STALE_S and model.is_welcome(auth)
        if is_fresh and not is_needed:
            return False
        limit_s = self._context.settings.control_timeout if is_needed else GLANCE_S
        try:
            now = process(await self._props(auth, limit_s, may_load=may_load))
        except ControlFailed as error:
            if error.is_timeout and not is_needed:
                return False
            if error.code in GONE and not error.is_timeout:
                model.process = None
            raise
        model.welcomed(auth)
        self._context.report.answers_again()
        if model.process is None:  # gone by another look meanwhile, and back
            await self.meet_first(auth, may_load=may_load)
        elif now.marker != model.process.marker or now.total_slots != model.process.total_slots:
            await self._meet(auth)
        elif now.is_sleeping:
            self._context.report.trouble("slept", "the server sleeps (--sleep-idle-seconds): its slots are empty then")
            model.ledger.emptied()
        elif model.able.shows_slots:
            self._context.observe(await model.client.slots(auth, self._context.settings.control_timeout), ())
        model.last_answer = time.monotonic()
        return True

    async def meet_first(self, auth: Auth, *, may_load: bool = False) -> None:
        """Meet the server unless it is known; raises ControlFailed where it does not answer.

        `may_load` for a request whose model a router loads in any case: so it is met before anybody has used it.
        """
        async with self._context.model.meeting:
            if self._context.model.process is not None:
                return
            if time.monotonic() < self._not_before:
                raise ControlFailed("the server did not answer a moment ago", is_timeout=True)
            try:
                await self._meet(auth, may_load=may_load)
            except ControlFailed as error:
                if error.is_timeout:
                    self._not_before = time.monotonic() + RETRY_S
                raise

    async def _props(self, auth: Auth, limit_s: float | None = None, *, may_load: bool) -> dict[str, Any]:
        client = self._context.model.client
        try:
            return await client.props(auth, limit_s)
        except ControlFailed as error:
            if not (may_load and client.model and error.code in NOT_LOADED):
                raise
        return await client.props_once_loaded(auth, self._context.settings.max_silence)

    async def _meet(self, auth: Auth, *, may_load: bool = False) -> None:
        """Get to know a server process."""
        model, client = self._context.model, self._context.model.client
        now = process(await self._props(auth, may_load=may_load))
        model.is_router = now.is_router
        if now.is_router:
            model.process = None
            raise ControlFailed("a router has no slots of its own")
        models, lora = await asyncio.gather(client.models(auth), adapters(client, auth))
        file, window = await asyncio.to_thread(_look_at_file, now.model_path)
        server_id = self._context.settings.server_id
        identity = model_identity(now, models, lora, server_id=server_id, file=file, wanted=client.model)
        looks = await self._first_looks(auth) if not now.is_sleeping else []
        was_unused = await asyncio.to_thread(is_as_left, self._context.settings.dir, now.marker, looks or ())
        model.began_process(now, identity, looks, window=window, was_unused=was_unused)
        await self._context.store.met(now.marker)
        model.welcomed(auth)
        model.last_answer = time.monotonic()
        self._context.report.answers_again()
        self._context.report.met(model)
        await self._take_up()

    async def _first_looks(self, auth: Auth) -> list[Look] | None:
        """The slots of a server that was just met; None where it hides them."""
        try:
            return await self._context.model.client.slots(auth)
        except ControlFailed as error:
            if error.code != HTTPStatus.NOT_IMPLEMENTED:
                raise
            self._context.report.trouble("no_slots", "the server hides its slots (--no-slots): others go unnoticed")
            return None


def _look_at_file(path: str) -> tuple[str, int | None]:
    """What the model's file tells of itself (blocking)."""
    return file_identity(path), sliding_window(path)
