"""Which connection to the server carries a request: one that was in use a moment ago and is still open, or a new one.

A connection that has been idle may be closing at the other end, and what carries a body must not be sent twice (RFC
9110, 9.2.2). So one is taken up again only after an answer that told its length: after a streamed one llama-server
closes it, though it has just promised to keep it for five seconds. Only within `REUSE_S`, long before any server gives
it up. And only if the system shows neither its end nor anything to read on it, looked at in the moment of use: a server
that was killed and started anew is not asked on a connection to the old one. One of each kind is kept and no more,
since an idle connection can hold one of llama-server's few HTTP threads: of twelve requests at once the last waited
2 s so, 5 s with `--threads-http 2`.
"""

import asyncio
import select
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakSet

import aiohttp
from aiohttp import ClientRequest, ClientResponse, hdrs
from aiohttp.client_middlewares import ClientHandlerType
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from proxy.errors import UpstreamIsSelf
from proxy.serving.line import Line

REUSE_S = 1.0
"""How long an idle connection may wait for the next request that must not be sent twice."""
_LINE: ContextVar[Line] = ContextVar("line")


@contextmanager
def on_line(line: Line) -> Iterator[None]:
    """Whatever connection a request within gets, this is told of it."""
    token = _LINE.set(line)
    try:
        yield
    finally:
        _LINE.reset(token)


async def give_up_streamed(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
    """Client middleware: a connection whose answer does not tell its length serves no other request."""
    line = _LINE.get(None) or Line()
    with on_line(line):  # the answer itself does not know its connection any more where all of it has come
        answer = await send(request)
    if hdrs.CONTENT_LENGTH not in answer.headers and line.protocol is not None:
        line.protocol.force_close()
    return answer


class Connector(aiohttp.TCPConnector):
    """Takes up no connection that has ended, tells each request its own, and refuses one to ourselves."""

    own: tuple[str, int] | None = None

    def __init__(self, idle_s: float, **options: object) -> None:
        # A container that is started anew has another address under the same name.
        super().__init__(limit=0, use_dns_cache=False, keepalive_timeout=idle_s, **options)  # type: ignore[arg-type]
        self._used: WeakSet[ResponseHandler] = WeakSet()

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  (aiohttp's signature)
    ) -> Connection:
        """A connection that is open; raises what aiohttp's does, and UpstreamIsSelf."""
        connection = await super().connect(req, traces, timeout)
        while self._was_used(connection) and not _is_quiet(connection):
            connection.close()
            connection = await super().connect(req, traces, timeout)
        transport = connection.transport
        if self.own is not None and transport is not None and _leads_to(transport, self.own):
            connection.close()
            raise UpstreamIsSelf("the upstream is this proxy itself: PI_PREFIX_CACHE_BASE_URL must name llama-server")
        line = _LINE.get(None)
        if line is not None:
            line.transport, line.protocol = transport, connection.protocol
        return connection

    def _release(self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        """Give back a connection; while one is idle, others are closed: a request may wait for the thread they hold."""
        # aiohttp limits how many are open, not how many of them are idle.
        super()._release(key, protocol, should_close=should_close or bool(self._conns.get(key)))

    def _was_used(self, connection: Connection) -> bool:
        """Whether it has carried a request before; from now on it has."""
        protocol = connection.protocol
        if protocol is None or protocol in self._used:
            return True
        self._used.add(protocol)
        return False


def _is_quiet(connection: Connection) -> bool:
    """Whether it is open, and nothing has come on it that no request asked for."""
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or transport is None or protocol.should_close or transport.is_closing():
        return False
    sock = transport.get_extra_info("socket")
    if sock is None:
        return False
    waiting = select.poll()
    waiting.register(sock.fileno(), select.POLLIN)
    return not waiting.poll(0)


def _leads_to(transport: asyncio.Transport, own: tuple[str, int]) -> bool:
    here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    if not here or not there or there[1] != own[1]:
        return False
    # A connection to this machine has the same address at both ends.
    return there[0] == own[0] or (own[0] in {"0.0.0.0", "::"} and here[0] == there[0])  # noqa: S104
