"""The side that faces the server: connections to it, requests as aiohttp's client sends them, whose fault a failure is.

`GET` and `HEAD` are sent once more when a connection that was idle breaks; anything else is sent once, and `connector`
says over which connection. The pools forget connections before llama-server does (it closes them after 5 s). aiohttp's
client closes a connection only after what was written is flushed; a server that does not read would never learn that
its client has gone, hence `Line.cut`. Counterpart: `inbound`.

Not carried, by aiohttp's nature: trailers, informational answers (1xx), header bytes that aren't UTF-8 (`headers` says
where the request is refused for them), `OPTIONS *`.
"""

import asyncio
import ssl
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import ClientRequest, ClientResponse
from aiohttp.client_middlewares import ClientHandlerType
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import (
    RequestRefused,
    UpstreamBroken,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from proxy.llama.upstream import Upstream, is_loopback
from proxy.serving.connector import REUSE_S, Connector, give_up_streamed, on_line
from proxy.serving.headers import Outgoing
from proxy.serving.line import Line

KEEP_ALIVE_S = 4.0
READ_BUFFER = 1 << 16
HEADER_LIMIT = 1 << 20
REPEATABLE = frozenset({"GET", "HEAD"})
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
    def may_be_repeated(self) -> bool:
        """Whether it is safe to send it once more, where the connection ends before an answer."""
        return self.method in REPEATABLE and self.body is None


class Outbound:
    """The client side: `start`, then `ask` as often as needed, then `close`."""

    def __init__(self, upstream: Upstream, connect_s: float) -> None:
        self.upstream = upstream
        self._connect_s = connect_s
        self.contained = False
        self._connectors: list[Connector] = []
        self._once: aiohttp.ClientSession | None = None
        self._again: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the sessions, on the running loop."""
        self.contained = await asyncio.to_thread(_in_container)
        trust = await asyncio.to_thread(_trust) if self.upstream.scheme == "https" else True
        self._once = self._session(Connector(REUSE_S, ssl=trust))
        self._again = self._session(Connector(KEEP_ALIVE_S, ssl=trust))

    def _session(self, connector: Connector) -> aiohttp.ClientSession:
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
        for session in (self._once, self._again):
            if session is not None:
                await session.close()

    async def ask(self, call: Call) -> ClientResponse:
        """Send the request and wait for the answer's headers; raises a PrefixCacheError."""
        session = self._again if call.may_be_repeated else self._once
        if session is None:
            raise RuntimeError("not started")

        async def shape(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
            # aiohttp rearranges and completes headers; the way round that is to set them last.
            request.headers = CIMultiDict(call.outgoing.headers)
            if call.may_be_repeated:
                return await send(request)
            # Mapped here already, because aiohttp would send some of these once more.
            with self.blamed():
                return await send(request)

        length = call.outgoing.length
        framing = {"Content-Length": str(length)} if length is not None and not call.outgoing.chunked else None
        with self.blamed(), on_line(call.line):
            answer = await session.request(
                call.method,
                call.url,
                headers=framing,
                data=call.body,
                chunked=call.outgoing.chunked or None,
                allow_redirects=False,
                middlewares=(shape, give_up_streamed),
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
