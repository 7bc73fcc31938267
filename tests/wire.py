"""Both ends of the wire as bytes: an upstream that records what reaches it, and a client that sends what it is told.

Neither corrects, completes or interprets anything beyond finding where a message ends.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

LIMIT = 1 << 26
PATIENCE_S = 20.0


@dataclass(slots=True)
class Message:
    """A request or an answer: its start line, headers as they came, the bytes of its body, and those of the wire."""

    start: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    chunks: list[bytes] = field(default_factory=list)

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    @property
    def status(self) -> int:
        return int(self.start.split(b" ")[1])

    @property
    def target(self) -> bytes:
        return self.start.split(b" ", 1)[1].rsplit(b" ", 1)[0]

    @property
    def chunked(self) -> bool:
        return b"chunked" in b"".join(self.values(b"transfer-encoding")).lower()


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with a reset."""
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def read_head(reader: asyncio.StreamReader) -> Message:
    """Start line and headers; raises IncompleteReadError when the peer closes before."""
    block = await reader.readuntil(b"\r\n\r\n")
    start, *lines = block[:-4].split(b"\r\n")
    pairs = [line.split(b":", 1) for line in lines]
    return Message(start, [(name, value.strip(b" \t")) for name, value in pairs])


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    """One chunk of a chunked body; empty for the last one."""
    size = int(await reader.readuntil(b"\r\n"), 16)
    data = await reader.readexactly(size)
    end = await reader.readexactly(2)
    if end != b"\r\n":
        raise ValueError(f"a chunk of {size} bytes ends in {end!r}")
    return data


async def read_body(reader: asyncio.StreamReader, message: Message, *, until_close: bool) -> None:
    """The body into `message`."""
    if message.chunked:
        while chunk := await read_chunk(reader):
            message.chunks.append(chunk)
        message.body = b"".join(message.chunks)
    elif lengths := message.values(b"content-length"):
        message.body = await reader.readexactly(int(lengths[0]))
    elif until_close:
        message.body = await reader.read(-1)


class Peer:
    """One connection that reached the upstream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.closed = asyncio.Event()

    async def request(self) -> Message:
        """The next request, body included."""
        message = await self.head()
        await read_body(self.reader, message, until_close=False)
        return message

    async def head(self) -> Message:
        """The next request's head, the body unread."""
        return await read_head(self.reader)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self) -> None:
        """Wait until the other side ends the connection, reading and dropping what it sends."""
        with suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass

    def reset(self) -> None:
        reset(self.writer)

    def close(self) -> None:
        self.writer.close()


Script = Callable[[Peer, Message], Awaitable[None]]


class RecordingUpstream:
    """Listens on a free port of the loopback, records each request and answers it by a script.

    The script gets the request whole, or only its head when `whole` is False.
    """

    def __init__(self, script: Script, *, whole: bool = True) -> None:
        self.script = script
        self.whole = whole
        self.requests: list[Message] = []
        self.peers: list[Peer] = []
        self.failures: list[BaseException] = []
        self.open = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.peers.append(peer)
        self.open += 1
        try:
            while True:
                message = await (peer.request() if self.whole else peer.head())
                self.requests.append(message)
                await self.script(peer, message)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as error:
            self.failures.append(error)
        finally:
            self.open -= 1
            peer.closed.set()
            writer.close()

    @property
    def tasks(self) -> int:
        """How many connections are still being looked after."""
        return len(self._tasks)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self.serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def recording(
    script: Script, *, whole: bool = True, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[RecordingUpstream]:
    """A recording upstream while the block runs; a script that failed fails the block."""
    upstream = RecordingUpstream(script, whole=whole)
    server = await asyncio.start_server(upstream.accept, host, 0, limit=LIMIT, ssl=tls)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        await upstream.end()
    if upstream.failures:
        raise upstream.failures[0]


class RawClient:
    """A client that sends bytes and reads answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Message:
        return await read_head(self.reader)

    async def chunk(self) -> bytes:
        return await read_chunk(self.reader)

    async def answer(self, *, bodiless: bool = False) -> Message:
        """The next answer, body included; one of a HEAD request, 204 or 304 is bodiless."""
        message = await self.head()
        if not bodiless:
            await read_body(self.reader, message, until_close=True)
        return message

    async def ask(self, data: bytes, *, bodiless: bool = False) -> Message:
        await self.send(data)
        return await self.answer(bodiless=bodiless)

    async def rest(self) -> bytes:
        """Everything until the other side closes; raises ConnectionResetError when it resets."""
        return await self.reader.read(-1)

    def half_close(self) -> None:
        self.writer.write_eof()

    def reset(self) -> None:
        reset(self.writer)

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def client(
    port: int, *, receive_buffer: int | None = None, limit: int = LIMIT, patience_s: float = PATIENCE_S
) -> AsyncIterator[RawClient]:
    """A raw connection while the block runs; everything in the block must be over within `patience_s`."""
    sock = socket.socket()
    sock.setblocking(False)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    try:
        async with asyncio.timeout(patience_s):
            yield RawClient(reader, writer)
    finally:
        writer.close()
