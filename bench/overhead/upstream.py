"""A server that answers at once, so that what is measured is what stands before it.

It tells a proxy what a llama-server tells (many slots, renderings with a common beginning, timings), so that requests
go the way they go in earnest; nothing it says depends on a body's content, which it reads and drops. A chat that asks
to be streamed gets a number of events at a steady pace, each of which carries the time at which it was sent.
"""

import asyncio
import itertools
import re
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

import orjson
import uvloop

PREFIX = [*range(1000, 1600)]
REST = [5] * 999
CHUNKS, PACE_S = 500, 0.02
MARK = b'data: {"choices":[{"index":0,"delta":{"content":"word"}}],"sent":%d}\n\n'
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
STREAMED = re.compile(rb'"stream": ?true')
TIMINGS = {"prompt_n": 10, "cache_n": 1590, "prompt_ms": 1.0, "predicted_n": 1, "predicted_ms": 1.0}
SAID = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "word"}, "finish_reason": "stop"}]}
CHAT_ANSWER = orjson.dumps({**SAID, "usage": {"prompt_tokens": 1600, "completion_tokens": 1}, "timings": TIMINGS})
LAST = b"data: " + orjson.dumps({"choices": [], "timings": TIMINGS}) + b"\n\ndata: [DONE]\n\n"
MODELS = orjson.dumps({"object": "list", "data": [{"id": "tiny", "meta": {"size": 1}}]})
PROPS = {"media_marker": "<m>", "default_generation_settings": {"n_ctx": 1 << 20}, "model_path": ""}


class Slots:
    """Which slot ran which task."""

    def __init__(self, n_slots: int = 1, directory: str = ".") -> None:
        self.directory = Path(directory)
        self.tasks: list[int | None] = [None] * n_slots
        self.busy = [False] * n_slots
        self.count = 0
        self.prompt: list[int] = []
        """Of the last completion: all of them run in the same slot unless chats run."""

    def take(self) -> int:
        slot = self.busy.index(False) if False in self.busy else 0
        self.count += 1
        self.busy[slot], self.tasks[slot] = True, self.count
        return slot

    def shown(self) -> bytes:
        return orjson.dumps(
            [
                {"id": slot, "is_processing": self.busy[slot]}
                | ({} if task is None else {"id_task": task, "n_prompt_tokens": 1600})
                for slot, task in enumerate(self.tasks)
            ]
        )


SLOTS = Slots()


class Connection(asyncio.Protocol):
    """One connection, one request after the other."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends_at = 0
        self.line: asyncio.Transport | None = None
        self.streams: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.line = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.data += data
        while self._has_request():
            head, _, body = bytes(self.data[: self.ends_at]).partition(b"\r\n\r\n")
            del self.data[: self.ends_at]
            self.ends_at = 0
            self._answer(head, body)

    def _has_request(self) -> bool:
        if not self.ends_at:
            end = self.data.find(b"\r\n\r\n")
            if end < 0:
                return False
            found = LENGTH.search(self.data, 0, end + 2)
            self.ends_at = end + 4 + (int(found[1]) if found else 0)
        return len(self.data) >= self.ends_at

    def _answer(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1].partition(b"?")[0]
        if path.endswith(b"/chat/completions"):
            self._chat(body)
        else:
            told = ANSWERS.get(path)
            self._say(told(body) if told else acted(body))

    def _say(self, body: bytes) -> None:
        assert self.line is not None
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.line.write(head + body)

    def _chat(self, body: bytes) -> None:
        slot = SLOTS.take()
        # A stream's body is short; of a long one only the ends are looked at.
        if STREAMED.search(body[:200] + body[-200:]):
            task = asyncio.ensure_future(self._stream(slot))
            self.streams.add(task)
            task.add_done_callback(self.streams.discard)
        else:
            SLOTS.busy[slot] = False
            self._say(CHAT_ANSWER)

    async def _stream(self, slot: int) -> None:
        assert self.line is not None
        self.line.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        began = time.monotonic()
        for number in range(CHUNKS):
            await asyncio.sleep(max(0.0, began + number * PACE_S - time.monotonic()))
            if self.line.is_closing():
                break
            event = MARK % time.monotonic_ns()
            self.line.write(b"%x\r\n%b\r\n" % (len(event), event))
        SLOTS.busy[slot] = False
        self.line.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(LAST), LAST))


def acted(body: bytes) -> bytes:
    """A slot action; one that saves leaves a file, for those who look whether it does."""
    told = orjson.loads(body) if body else {}
    if "/" not in (name := str(told.get("filename", "/"))):
        (SLOTS.directory / name).write_bytes(b"x")
    return b'{"n_saved":1600,"n_restored":1600,"n_written":1}'


def rendered(body: bytes) -> bytes:
    return orjson.dumps({"prompt": str(zlib.crc32(body))})


def tokens(body: bytes) -> bytes:
    """What all have in common, what tells them apart, and the rest, as many as the answers say."""
    told = zlib.crc32(body) % 1_000_000
    return orjson.dumps({"tokens": [*PREFIX, told, *REST]})


def completion(body: bytes) -> bytes:
    prompt = orjson.loads(body)["prompt"]
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(SLOTS.prompt, prompt, strict=False))
    cache_n = min(sum(1 for _ in pairs), max(0, len(prompt) - 1))
    if prompt != [[]]:
        SLOTS.prompt = prompt
    slot = SLOTS.take()
    SLOTS.busy[slot] = False
    timings = {**TIMINGS, "prompt_n": len(prompt) - cache_n, "cache_n": cache_n}
    told = orjson.dumps({"id_slot": slot, "timings": timings})
    return b"data: " + told + b"\n\n" if STREAMED.search(body) else told


ANSWERS: dict[bytes, Callable[[bytes], bytes]] = {
    b"/props": lambda _: orjson.dumps({**PROPS, "total_slots": len(SLOTS.tasks)}),
    b"/v1/models": lambda _: MODELS,
    b"/health": lambda _: b'{"status":"ok"}',
    b"/slots": lambda _: SLOTS.shown(),
    b"/lora-adapters": lambda _: b"[]",
    b"/apply-template": rendered,
    b"/tokenize": tokens,
    b"/completion": completion,
}


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    SLOTS = Slots(int(sys.argv[3]), sys.argv[2])
    uvloop.run(serve(int(sys.argv[1])))
