"""A client that adds as little as it can to what it measures: bytes on a connection that stays open."""

import asyncio
import re
import time
from dataclasses import dataclass, field

import orjson

from proxy.demo.sessions import session

GET = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SENT = re.compile(rb'"sent":(\d+)\}')
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
PATIENCE_S = 60.0
LIMIT = 1 << 24


def chat(size: int, *, stream: bool = False, folder: str = "/a", max_tokens: int = 1) -> bytes:
    """A chat request with about so many bytes, of an agent in a folder: what is beyond its prompt is what was said."""
    body = {**session(folder, prefix_tokens=300, max_tokens=max_tokens), "stream": stream, "temperature": 0}
    if size < 4000:
        system = {"role": "system", "content": "a" * 400 + f"\n\n<cwd>\n{folder}\n</cwd>"}
        body = {**body, "tools": [], "messages": [system, {"role": "user", "content": "b" * max(1, size - 600)}]}
    else:
        missing = max(0, size - len(orjson.dumps(body)))
        said = [{"role": "user", "content": "say on " * 140}, {"role": "assistant", "content": "on and on " * 100}]
        rounds = missing // len(orjson.dumps(said))
        body["messages"] = [body["messages"][0], *said * rounds, body["messages"][1]]
    # Where the server looks for it.
    told = orjson.dumps({**{name: value for name, value in body.items() if name != "stream"}, "stream": stream})
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(told) + told


class Line:
    """A connection, opened when needed and again when the other side has closed it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.reader is None or self.writer is None or self.reader.at_eof() or self.writer.is_closing():
            self.close()
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=LIMIT)
        return self.reader, self.writer

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None

    async def ask(self, request: bytes) -> float:
        """Seconds from sending a request to the end of its answer."""
        reader, writer = await self.open()
        began = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
            raise RuntimeError(f"{head[:60]!r}")
        if found := LENGTH.search(head):
            await reader.readexactly(int(found[1]))
        elif b"chunked" in head.lower():
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await reader.readexactly(size + 2)
            await reader.readexactly(2)
        else:
            await reader.read(-1)
        return time.perf_counter() - began


@dataclass(slots=True)
class Streamed:
    """What was seen of streams: seconds."""

    first: list[float] = field(default_factory=list)
    """From sending a request to the first event."""
    delays: list[float] = field(default_factory=list)
    """From the sending of each event to its arrival."""
    lost: int = 0


async def stream(port: int, request: bytes, seen: Streamed) -> None:
    """One streamed answer to its end."""
    line = Line(port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await line.open()
            began = time.monotonic_ns()
            writer.write(request)
            first, tail = True, b""
            while data := await reader.read(1 << 16):
                now = time.monotonic_ns()
                data = tail + data
                whole = data.rfind(b"\n") + 1
                tail = data[whole:]
                for sent in SENT.finditer(data, 0, whole):
                    seen.delays.append((now - int(sent[1])) / 1e9)
                    if first:
                        seen.first.append((now - began) / 1e9)
                        first = False
                if b"[DONE]" in data:
                    return
        seen.lost += 1
    except (TimeoutError, OSError):
        seen.lost += 1
    finally:
        line.close()


async def streams(port: int, requests: list[bytes]) -> Streamed:
    """All at once."""
    seen = Streamed()
    await asyncio.gather(*(stream(port, request, seen) for request in requests))
    return seen
