"""The side that faces the server: connections to it, requests as aiohttp's client sends them, whose fault a failure is.

What carries a body goes over a fresh connection, so that it can't meet one that the server is closing; `GET` and `HEAD`
may reuse one, and are sent once more when a reused one breaks.  The pool forgets connections before llama-server does
(it closes them after 5 s).  aiohttp's client closes a connection only after what was written is flushed; a server that
does not read would never learn that its client has gone, hence `Line.cut`.  Counterpart: `inbound`.

Not carried, by aiohttp's nature: trailers, informational answers (1xx), header bytes that aren't UTF-8 (`headers` says
where the request is refused for them), `OPTIONS *`.
"""

import asyncio
import ssl
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import ClientRequest, ClientResponse
from aiohttp.client_middlewares import ClientHandlerType
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import (
    RequestRefused,
    UpstreamBroken,
    UpstreamIsSelf,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from proxy.llama.upstream import Upstream, is_loopback
from proxy.serving.headers import Outgoing
from proxy.serving.line import Line

KEEP_ALIVE_S = 4.0
READ_BUFFER = 1 << 16
HEADER_LIMIT = 1 << 20
REUSING = frozenset({"GET", "HEAD"})
SWITCHING_PROTOCOLS = 101
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the upstream."""

    method: str
    url: URL
    outgoing: Outgoing
    body: AsyncIterable[bytes | memoryview] | None
    line: Line

    @property
    def may_reuse(self) -> bool:
        """Whether an idle connection may carry it: then it is also safe to send it once more."""
        return self.method in REUSING and self.body is None


_LINE: ContextVar[Line] = ContextVar("line")


class _Connector(aiohttp.TCPConnector):
    """Tells each request the connection it got, and refuses one to ourselves."""

    own: tuple[str, int] | None = None

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  (aiohttp's signature)
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        transport = connection.transport
        if self.own is not None and transport is not None and _leads_to(transport, self.own):
            connection.close()
            raise UpstreamIsSelf("the upstream is this proxy itself: PI_PREFIX_CACHE_BASE_URL must name llama-server")
        line = _LINE.get(Line())
        line.transport, line.protocol = transport, connection.protocol
        return connection


def _leads_to(transport: asyncio.Transport, own: tuple[str, int]) -> bool:
    here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    if not here or not there or there[1] != own[1]:
        return False
    # A connection to this machine has the same address at both ends.
    return there[0] == own[0] or (own[0] in {"0.0.0.0", "::"} and here[0] == there[0])  # noqa: S104


class Outbound:
    """The client side: `start`, then `ask` as often as needed, then `close`."""

    def __init__(self, upstream: Upstream, connect_s: float) -> None:
        self.upstream = upstream
        self._connect_s = connect_s
        self.contained = False
        self._connectors: list[_Connector] = []
        self._fresh: aiohttp.ClientSession | None = None
        self._pooled: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the sessions, on the running loop."""
        self.contained = await asyncio.to_thread(_in_container)
        trust = await asyncio.to_thread(_trust) if self.upstream.scheme == "https" else True
        # A container that is started anew has another address under the same name.
        fresh = _Connector(limit=0, ssl=trust, use_dns_cache=False, force_close=True)
        pooled = _Connector(limit=0, ssl=trust, use_dns_cache=False, keepalive_timeout=KEEP_ALIVE_S)
        self._fresh, self._pooled = self._session(fresh), self._session(pooled)

    def _session(self, connector: _Connector) -> aiohttp.ClientSession:
        self._connectors.append(connector)
        return aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            raise_for_status=False,
            timeout=aiohttp.ClientTimeout(
                total=None, connect=self._connect_s, sock_connect=self._connect_s, sock_read=None
            ),
            read_bufsize=READ_BUFFER,
            max_line_size=HEADER_LIMIT,
            max_field_size=HEADER_LIMIT,
            max_headers=10_000,
        )

    def refuse(self, host: str, port: int) -> None:
        """Never connect to this address: it is our own."""
        for connector in self._connectors:
            connector.own = (host, port)

    async def close(self) -> None:
        """Close what is idle; requests in progress are their callers'."""
        for session in (self._fresh, self._pooled):
            if session is not None:
                await session.close()

    async def ask(self, call: Call) -> ClientResponse:
        """Send the request and wait for the answer's headers; raises a PrefixCacheError."""
        session = self._pooled if call.may_reuse else self._fresh
        if session is None:
            raise RuntimeError("not started")

        async def shape(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
            # aiohttp rearranges and completes headers; the way round that is to set them last.
            request.headers = CIMultiDict(call.outgoing.headers)
            if call.may_reuse:
                return await send(request)
            # Mapped here already, because aiohttp would send some of these once more.
            with self.blamed():
                return await send(request)

        _LINE.set(call.line)
        length = call.outgoing.length
        framing = {"Content-Length": str(length)} if length is not None and not call.outgoing.chunked else None
        with self.blamed():
            answer = await session.request(
                call.method,
                call.url,
                headers=framing,
                data=call.body,
                chunked=call.outgoing.chunked or None,
                allow_redirects=False,
                middlewares=(shape,),
            )
        if answer.status == SWITCHING_PROTOCOLS:
            call.line.cut()
            answer.close()
            raise UpstreamBroken(f"{self.upstream.address} switched protocols without being asked")
        return answer

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Turn the client library's failures into ours."""
        try:
            yield
        except (aiohttp.ServerTimeoutError, TimeoutError) as error:
            raise UpstreamTimeout(self.advice("did not accept a connection in time")) from error
        except aiohttp.ClientConnectorError as error:
            raise UpstreamUnreachable(self.advice(f"cannot be reached ({_cause(error)})")) from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamBroken(self.advice("broke off or did not answer in HTTP")) from error
        except ValueError as error:
            raise RequestRefused("the request cannot be sent on: a control character stands in it") from error

    def advice(self, what: str) -> str:
        """What is wrong with the upstream, where it should be, and what to look at."""
        hint = ""
        if self.contained and is_loopback(self.upstream.host):
            hint = " Inside a container, localhost is the container itself: name the server's service or host."
        where = f"llama-server at {self.upstream.address}"
        return f"{where} {what}. Is it running, and is PI_PREFIX_CACHE_BASE_URL right?{hint}"


def _trust() -> ssl.SSLContext:
    # Made here, off the loop: aiohttp's own is made at import, before SSL_CERT_FILE of a .env file can be read.
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _in_container() -> bool:
    return any(mark.exists() for mark in CONTAINER_MARKS)


def _cause(error: aiohttp.ClientConnectorError) -> str:
    return error.os_error.strerror or type(error.os_error).__name__
