"""The running proxy: every request's way on one screen.

Chat completions are read whole and go through the engine; everything else streams past it, and what may have used a
slot makes the engine forget what it believed.
"""

import asyncio
from contextlib import AsyncExitStack
from http import HTTPStatus
from urllib.parse import unquote

import aiohttp
from aiohttp import web
from multidict import CIMultiDictProxy

from proxy.llama.client import LlamaClient
from proxy.llama.upstream import Upstream
from proxy.logs import get_logger
from proxy.serving.admin import Admin
from proxy.serving.answers import OwnError
from proxy.serving.engine import Engine
from proxy.serving.engines import Engines
from proxy.serving.forward import Forwarder
from proxy.serving.headers import origin_form
from proxy.serving.inbound import Listener, TooLong, listen, read_whole
from proxy.serving.reporting import Reporter
from proxy.serving.store import Store
from proxy.serving.visit import Visit, understand
from proxy.settings import Settings

CHAT_PATHS = frozenset({"/v1/chat/completions", "/chat/completions"})
READ_LIMIT = 256 * 1024 * 1024
LARGE_BODY = 256 * 1024
"""Larger ones are read off the event loop."""
HARMLESS_POSTS = frozenset(
    {
        "/tokenize", "/detokenize", "/apply-template", "/chat/completions/input_tokens",
        "/v1/chat/completions/input_tokens", "/responses/input_tokens", "/v1/responses/input_tokens",
        "/v1/messages/count_tokens",
    }
)  # fmt: skip
"""POSTs that only compute something; all others may change what slots hold, those of builds to come included."""

log = get_logger()


class Proxy:
    """Forwards, and prepares slots on the way."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.upstream = Upstream.parse(settings.base_url)
        self.forwarder = Forwarder(self.upstream)
        self.reporter = Reporter()
        self._control: aiohttp.ClientSession | None = None
        self._engines: Engines | None = None
        self._listener: Listener | None = None
        self._admin: Admin | None = None

    @property
    def engines(self) -> Engines:
        """The engines; there are some once started."""
        if self._engines is None:
            raise RuntimeError("the proxy has not started")
        return self._engines

    @property
    def engine(self) -> Engine:
        """The engine that was used last: of a plain server the only one."""
        return self.engines.latest

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._listener.port if self._listener else 0

    @property
    def admin(self) -> Admin:
        """The admin listener, whether it listens or not; there is one once started."""
        if self._admin is None:
            raise RuntimeError("the proxy has not started")
        return self._admin

    async def start(self) -> None:
        """Listen."""
        await self.forwarder.start()
        self._control = control_session(self.settings)
        client = LlamaClient(self.upstream, self._control, control_s=self.settings.control_timeout)
        store = Store(self.settings, self.reporter)
        await store.open()
        self._engines = Engines(self.settings, client, self.reporter, store)
        self._admin = Admin(self.settings, self._engines, self.reporter)
        self._engines.start()
        self._listener = await listen(self.handle, self.settings.host, self.settings.port)
        self.forwarder.refuse_self(self._listener.host, self._listener.port)
        await self._admin.open()

    async def close(self, drain_s: float = 0.0) -> None:
        """Stop listening, let answers end within the limit, stop; all of it, whatever fails on the way."""
        if self._engines is not None:
            self._engines.wind_down()
        async with AsyncExitStack() as ending:  # from the last line to the first
            ending.push_async_callback(self.forwarder.close)
            if self._control is not None:
                ending.push_async_callback(self._control.close)
            if self._engines is not None:
                ending.push_async_callback(self._engines.close)
            if self._admin is not None:
                ending.push_async_callback(self._admin.close)
            if self._listener is not None:
                ending.push_async_callback(self._listener.close, drain_s)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request."""
        path = path_of(request.raw_path)
        if request.method == "POST" and path in CHAT_PATHS:
            return await self._chat(request, path)
        if request.method == "POST" and path.rstrip("/").endswith("/lora-adapters"):
            self.engines.meet_anew()
        is_harmless = request.method != "POST" or path in HARMLESS_POSTS
        return await self.forwarder.forward(request, None, None if is_harmless else Touching(self.engines))

    async def _chat(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        body = await read_whole(request, READ_LIMIT)
        if isinstance(body, TooLong):
            return await self.forwarder.forward(request, body, Touching(self.engines))
        engine, ticket = await self.engines.enter(await self._understand(body, request))
        ticket.path = path  # without the query, which may carry a key
        own_status = 0
        try:
            self.reporter.proceeding(ticket)
            engine.sent(ticket)
            answer = await self.forwarder.forward(request, body, ticket)
            own_status = answer.status if isinstance(answer, OwnError) else 0
            return answer
        finally:
            ticket.settle()
            self.reporter.left(ticket, own_status)

    async def _understand(self, body: bytes, request: web.BaseRequest) -> Visit:
        if len(body) > LARGE_BODY or "Content-Encoding" in request.headers:
            return await asyncio.to_thread(understand, body, request.headers, self.settings, request.query_string)
        return understand(body, request.headers, self.settings, request.query_string)


class Touching:
    """Watches an answer of which only that it may have used a slot is known."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._is_refused = False

    def began(self, status: int, headers: CIMultiDictProxy[str]) -> None:
        """The server answers; what it refuses touches nothing."""
        self._is_refused = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
        self._touched()

    def passed(self, data: bytes) -> None:
        """Nothing to see."""

    def ended(self, complete: bool) -> None:
        """What it left behind is not known."""
        self._touched()

    def _touched(self) -> None:
        if not self._is_refused:
            self._engines.touched()


def path_of(raw_target: str) -> str:
    """The path as llama-server reads it: without authority, query and fragment, its escapes undone."""
    path = (origin_form(raw_target) or "").partition("?")[0].partition("#")[0]
    return unquote(path)


def control_session(settings: Settings) -> aiohttp.ClientSession:
    """For our own calls: nothing from the environment, no cookies, each over a connection of its own.

    Several are made at once, and of llama-server's few HTTP threads each idle connection holds one.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, use_dns_cache=False, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.control_timeout),
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=1 << 20,
    )
