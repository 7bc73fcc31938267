"""Clients that leave leave nothing behind, however many: no task, no descriptor, no memory, no place, no turn."""

import asyncio
import gc
import tracemalloc
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.conftest import StartLlama
from tests.load.quiet import at_rest
from tests.serving.route import HOST
from tests.serving.running import Running, running, sessions, talking
from tests.serving.scripted import Whole, whole
from tests.wire import Message, Peer, RawClient, client

LEAVERS = 20
ROUND = 80
ROUNDS = 3
PATIENCE_S = 5.0
SPARE_BYTES = 100_000
"""Of noise: 400 bytes for each leaver, where a request that is kept would be some 10,000."""
(BODY,) = sessions("/a", tokens=600)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WAYS = ("reset", "half_close", "close")


def left(proxied: Running) -> tuple[int, int]:
    """Tasks and descriptors."""
    return len(asyncio.all_tasks()), len(list(Path("/proc/self/fd").iterdir()))


async def as_before(proxied: Running, before: tuple[int, int]) -> None:
    """Wait until there are as many tasks and descriptors again."""
    async with asyncio.timeout(PATIENCE_S):
        while left(proxied) != before:
            await asyncio.sleep(0.01)


async def test_clients_that_leave_in_mid_answer(start_llama: StartLlama) -> None:
    """Twenty of them, one after the other: as many tasks and descriptors as before."""
    long = {**BODY, "max_completion_tokens": 400}
    server = start_llama("dense", "-np", "1")
    async with running(server) as proxied:
        await proxied.ask(BODY)
        await at_rest(proxied)
        before = left(proxied)
        async with talking() as visitor:
            for _ in range(LEAVERS):
                answer = await visitor.post(f"{proxied.base_url}/chat/completions", json=long)
                await answer.content.readany()
                answer.close()
        await proxied.heard.until(lambda: len(proxied.heard.requests) > LEAVERS)
        await at_rest(proxied)
        await as_before(proxied, before)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


class Leaving:
    """Clients that leave, one after the other, in each phase and way in turn."""

    def __init__(self) -> None:
        self.number = 0
        self.asked = asyncio.Event()
        self.path: Whole

    async def reply(self, peer: Peer, message: Message) -> None:
        if b"unanswered" not in message.body:
            await peer.send(HEAD + b"3\r\nabc\r\n")
        self.asked.set()
        await peer.gone()

    async def some(self, count: int) -> None:
        """So many clients, each gone for good before the next comes."""
        for _ in range(count):
            self.number += 1
            phase = (self.unanswered, self.in_mid_answer, self.waiting, self.in_mid_upload)[self.number % 4]
            async with client(self.path.port) as visitor:
                await phase(visitor)
            await at_rest(self.path.proxied)
        async with asyncio.timeout(PATIENCE_S):
            while self.path.upstream.open or self.path.upstream.tasks:
                await asyncio.sleep(0)
        self.path.server.asked.clear()
        self.path.upstream.requests.clear()
        self.path.upstream.peers.clear()
        self.path.proxied.heard.requests.clear()
        self.path.proxied.heard.warm_ups.clear()

    async def unanswered(self, visitor: RawClient) -> None:
        self.asked.clear()
        await visitor.send(self.request("unanswered"))
        await self.asked.wait()
        self.leave(visitor)

    async def in_mid_answer(self, visitor: RawClient) -> None:
        await visitor.send(self.request())
        await visitor.head()
        await visitor.chunk()
        self.leave(visitor)

    async def waiting(self, visitor: RawClient) -> None:
        gate = self.path.proxied.proxy.engine.model.gate
        async with client(self.path.port) as holder:
            await self.in_mid_answer_of(holder)
            await visitor.send(self.request())
            while not gate.waiting:
                await asyncio.sleep(0)
            self.leave(visitor)
            while gate.waiting:
                await asyncio.sleep(0)
            holder.reset()

    async def in_mid_answer_of(self, holder: RawClient) -> None:
        await holder.send(self.request())
        await holder.head()

    async def in_mid_upload(self, visitor: RawClient) -> None:
        await visitor.send(self.request()[:-10])
        self.leave(visitor)

    def leave(self, visitor: RawClient) -> None:
        getattr(visitor, WAYS[self.number // 4 % 3])()

    def request(self, words: str = "question") -> bytes:
        user = {"role": "user", "content": f"{words} {self.number}"}
        body = orjson.dumps({**BODY, "messages": [BODY["messages"][0], user]})
        head = b"POST /v1/chat/completions HTTP/1.1\r\nX-Client: of the test\r\n" + HOST
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def used() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.usefixtures("traced")
async def test_hundreds_that_leave_in_every_phase() -> None:
    """After a first round, which fills what is remembered, the others leave no bytes, no task and no descriptor."""
    leaving = Leaving()
    async with whole(leaving.reply) as leaving.path:
        proxied = leaving.path.proxied
        proxied.proxy.admin.history.requests = deque(maxlen=8)
        await leaving.some(ROUND)
        before, bytes_before = left(proxied), used()
        await leaving.some(ROUND * ROUNDS)
        await as_before(proxied, before)
        grown = used() - bytes_before
        assert SPARE_BYTES > grown
