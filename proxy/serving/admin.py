"""The admin listener: status page, status as JSON, metrics, health, and a few actions, on an address of its own.

Owns its paths and what they answer; the main port has none of them. It never stands in the way of a request: what goes
wrong here ends here, and a listener that can't or mustn't open is said and left closed. Counterparts: `access` decides
who may ask, `snapshot` and `metrics` what is told, `actions` has what is done for a person.
"""

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import orjson
from aiohttp import web

from proxy.logs import get_logger
from proxy.serving.access import COOKIE, Access, cookie_value, is_token, start_refusal
from proxy.serving.actions import Actions, as_json
from proxy.serving.engine import Engine
from proxy.serving.engines import Engines
from proxy.serving.explanations import Explanations
from proxy.serving.history import MAX_REQUESTS, History
from proxy.serving.metrics import Metrics
from proxy.serving.presence import Presence
from proxy.serving.reporting import Reporter
from proxy.serving.snapshot import SHOWN_REQUESTS, disk_bytes, snapshot
from proxy.serving.status import schema
from proxy.settings import Settings

PAGE = Path(__file__).with_name("page.html")
TICK_S = 5.0
"""How often a page hears something even if nothing has happened."""
MIN_GAP_S = 0.25
"""How often it hears at most."""
MAX_PAGES = 32
PAGE_CHECKPOINTS = 100
COOKIE_S = 30 * 86_400
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = get_logger()


@dataclass(frozen=True, slots=True)
class Page:
    """The status page and what a browser may run on it: its own script and style, by their hashes."""

    html: bytes
    policy: str

    @classmethod
    def read(cls) -> "Page":
        """From the file beside this one (blocking)."""
        html = PAGE.read_bytes()
        script, style = _hashes(html, b"script"), _hashes(html, b"style")
        rules = f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:"
        return cls(html, f"{rules}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")


def _hashes(html: bytes, tag: bytes) -> str:
    found = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), html, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'" for text in found)


class Admin:
    """Listens for people and their tools."""

    def __init__(self, settings: Settings, engines: Engines, reporter: Reporter) -> None:
        self.settings, self._engines = settings, engines
        self.history, self.metrics = History(), Metrics()
        self.presence = Presence(engines.first.model.client, engines.first.lifecycle.auth)
        self.port = 0
        """Where it listens; 0 where it doesn't."""
        self._token = settings.admin_token.get_secret_value()
        self._access = Access.of(settings.admin_host, settings.admin_allowed_hosts, self._token)
        self._page = Page(b"", "")
        self._pages = 0
        self._is_closing = False
        self._runner: web.AppRunner | None = None
        reporter.listen(self.history)
        reporter.listen(self.metrics)
        self.explanations = Explanations(lambda: self.engine.model, self.history)
        if settings.admin_port is not None:
            reporter.listen(self.explanations)  # where nobody can ask, nothing is taken apart
        self._watch()

    @property
    def engine(self) -> Engine:
        """What is shown: of a router's models the one that was used last."""
        return self._engines.latest

    def _watch(self) -> None:
        """Gauges of how it is now."""
        watch, index = self.metrics.watch, self.engine.store.index
        watch("upstream_up", "Whether llama-server answers.", lambda: float(self.presence.is_ready))
        watch("queue_length", "Requests that wait for a free slot.", self._waiting)
        watch("requests_running", "Requests passed to the server and not over.", lambda: len(self.history.running))
        watch(
            "places_taken", "Places of requests that have passed the queue and are not over, one a slot.", self._inside
        )
        watch("slots", "Slots of the server.", self._slots)
        watch("slots_leased", "Slots in which a request is believed to run.", self._leased)
        watch("tasks", "Tasks of the event loop.", lambda: len(asyncio.all_tasks()))
        watch("checkpoints", "Checkpoints on disk.", lambda: len(index.records) if index else 0)
        watch("checkpoints_size_bytes", "All checkpoints together.", lambda: disk_bytes(self.engine))
        watch(
            "prefill_seconds_per_token",
            "What prefilling a token costs here.",
            lambda: self.engine.model.prompt_ms_per_token / 1000,
        )

    def _waiting(self) -> int:
        return sum(engine.model.gate.waiting for engine in self._engines)

    def _inside(self) -> int:
        return sum(engine.model.gate.inside for engine in self._engines)

    def _leased(self) -> int:
        return sum(bool(belief.lease) for engine in self._engines for belief in engine.model.ledger.slots)

    def _slots(self) -> int:
        process = self.engine.model.process
        return process.total_slots if process else 0

    # Listening

    async def open(self) -> None:
        """Listen, if that is wanted, allowed and possible; else say why not."""
        host, port = self.settings.admin_host, self.settings.admin_port
        if port is None:
            return
        if refusal := start_refusal(host, self._token):
            log.error("admin_off", line=f"no status page, no metrics: {refusal}")
            return
        self._page = await asyncio.to_thread(Page.read)
        self._runner = web.AppRunner(self._application(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            log.error("admin_off", line=f"no status page, no metrics: {host}:{port}: {error.strerror}; see ADMIN_PORT")
            await self.close()
            return
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop; pages that listen are let go."""
        self._is_closing = True
        self.history.touch()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._admit])
        application.add_routes([
            web.get("/", self._show_page),
            web.get("/metrics", self._show_metrics),
            web.get("/healthz", self._show_health),
            web.get("/readyz", self._show_readiness),
            web.get("/status", self._show_status),
            web.get("/status/schema", self._show_schema),
            web.get("/events", self._show_events, allow_head=False),
            *Actions(lambda: self.engine, self.history, self.explanations).routes(),
        ])  # fmt: skip
        return application

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        is_entering = request.path == "/" and self._token and "token" in request.query
        headers = dict(request.headers)
        if is_entering and is_token(request.query["token"], self._token):
            headers["Authorization"] = f"Bearer {self._token}"
        refused = self._access.refuses(request.path, headers, request.cookies)
        if refused is not None:
            return web.json_response({"error": refused.words}, status=refused.status, headers=HEADERS)
        answer = self._let_in(request) if is_entering else await handler(request)
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    def _let_in(self, request: web.Request) -> web.Response:
        """A cookie in place of the token, which then leaves the address bar."""
        answer = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "/"})
        answer.set_cookie(
            COOKIE, cookie_value(self._token), max_age=COOKIE_S, httponly=True, samesite="Strict", secure=request.secure
        )
        return answer

    # Looking

    async def _show_page(self, _: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": self._page.policy}
        return web.Response(body=self._page.html, content_type="text/html", charset="utf-8", headers=headers)

    async def _show_metrics(self, request: web.Request) -> web.Response:
        await self.presence.look()
        body, content_type = self.metrics.text(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _show_health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _show_readiness(self, _: web.Request) -> web.Response:
        state = await self.presence.look()
        is_ready = self.presence.is_ready
        return web.Response(text=f"{state}\n", status=HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _show_status(self, request: web.Request) -> web.Response:
        limit = _count(request.query.get("requests", ""), SHOWN_REQUESTS)
        state = await self.presence.look()
        return as_json(snapshot(self.engine, self.history, state, time.time(), limit=min(limit, MAX_REQUESTS)))

    async def _show_schema(self, _: web.Request) -> web.Response:
        return as_json(await asyncio.to_thread(schema))

    async def _show_events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: the status at once, at each change, and now and then; each request once."""
        if self._pages >= MAX_PAGES:
            return as_json({"error": "too many pages are open"}, HTTPStatus.SERVICE_UNAVAILABLE)
        answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        self._pages += 1
        try:
            await answer.prepare(request)
            with suppress(ConnectionError):
                await self._stream(answer)
        finally:
            self._pages -= 1
        return answer

    async def _stream(self, answer: web.StreamResponse) -> None:
        number = 0
        while not self._is_closing:
            state, seen = await self.presence.look(TICK_S), self.history.changes
            told = snapshot(
                self.engine, self.history, state, time.time(), after=number, max_checkpoints=PAGE_CHECKPOINTS
            )
            number = max([number, *(one.number for one in told.requests[:1])])
            await answer.write(b"data: " + orjson.dumps(told) + b"\n\n")
            await asyncio.sleep(MIN_GAP_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self.history.changed(seen)


def _count(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else default  # noqa: PLR2004
