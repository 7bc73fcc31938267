"""Those who do anything else: use other endpoints, read or write slowly, leave at any byte, send what nobody can read.

What a passer-by gets is compared with what the server itself said to the same; of the malformed it is only asked that
no answer is an error of ours that says it's the server's fault. Counterpart: `guests`.
"""

import asyncio
import random
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import orjson

from bench.soak.guests import BROKEN, CLIENT_PATIENCE_S, Guest, Scene, family, new_session, newcomer, talker, wire
from proxy.demo.servers import LlamaServer
from proxy.demo.sessions import USER_AGENTS
from tests.conformance.exchange import Ask, Told, ask, told
from tests.conformance.table import PLAIN
from tests.faults.test_visitors import SHAPES
from tests.fuzz.mutation import bodies
from tests.serving.test_requests import MALFORMED
from tests.wire import RawClient, client, read_body

AGENT = USER_AGENTS["1.6"]
TAKES_TOO_LONG = {"chat-too-long"}
TELLS_OF_THE_MOMENT = {"slots-fail"}
"""Refused or not, by what else runs."""
HEAD_ONLY = {"slots"}
ACTS_ON_SLOTS = {"chat-own-slot", "save", "restore", "restore-missing", "erase"}
"""Would spoil what others run there, by the server's own ways."""
ALWAYS_THE_SAME = {
    "health", "health-v1", "health-head", "models", "nowhere", "wrong-method", "root", "tokenize", "detokenize",
    "apply-template", "infill", "rerank", "embeddings", "messages-count", "chat-n-too-many", "chat-image", "chat-odd",
    "chat-nothing", "preflight", "cors-get", "props-post", "act-oddly", "save-elsewhere", "lora",
}  # fmt: skip
PASSED = {
    name: what for name, what in PLAIN.items() if name not in TAKES_TOO_LONG | ACTS_ON_SLOTS | TELLS_OF_THE_MOMENT
}
FUZZ_PATIENCE_S = 2.0
AIMED = (b'"id_slot"', b'"lora"')
OURS_TO_SAY = {400, 501, 505}
"""Statuses of our own by which a request is refused for what it is."""
SLOW_S = 2.5
ANSWER_TOKENS = 150


@dataclass(frozen=True, slots=True)
class References:
    """What the server itself says, asked before anything else happens."""

    told: dict[str, Told] = field(default_factory=dict)

    async def take(self, server: LlamaServer) -> None:
        """Ask for all of it."""
        self.told.update({name: await ask(server.port, what) for name, what in PASSED.items()})

    def differs(self, name: str, seen: Told) -> str:
        """In which way an answer is another one; values that follow from what else runs are not looked at."""
        wanted = self.told[name]
        if (wanted.start, wanted.headers) != (seen.start, seen.headers):
            return f"head: {seen.start!r} {seen.headers!r} for {wanted.start!r} {wanted.headers!r}, {seen.body!r:.200}"
        if name in ALWAYS_THE_SAME:
            return "" if wanted.body == seen.body else f"body: {seen.body!r:.200} for {wanted.body!r:.200}"
        if name in HEAD_ONLY:
            return ""
        mine, theirs = outline(seen.body), outline(wanted.body)
        return "" if mine == theirs else f"body: {mine!r:.300} for {theirs!r:.300}"


def outline(value: Any) -> Any:
    """Names and kinds, no values; of a list its ends only: how many there are may differ."""
    match value:
        case dict():
            return {name: outline(inner) for name, inner in value.items()}
        case list() if value:
            lines = [one for one in value if one != b""]
            return [outline(lines[0]), outline(lines[-1])] if lines else []
        case bytes() if value.startswith(b"data: [DONE]"):
            return "done"
    return type(value).__name__


def connected(scene: Scene, receive_buffer: int = 1 << 16) -> AbstractAsyncContextManager[RawClient]:
    """A raw connection that waits as long as any client here."""
    port = scene.house.proxy.port
    return client(port, receive_buffer=receive_buffer, limit=receive_buffer, patience_s=CLIENT_PATIENCE_S)


def passer_by(references: References) -> Guest:
    """Uses everything that the server has besides chats of agents."""

    async def live(scene: Scene, choose: random.Random) -> None:
        while not scene.is_over:
            name, began = choose.choice(list(PASSED)), time.monotonic()
            try:
                words = references.differs(name, await _passed(scene, PASSED[name]))
            except BROKEN as error:
                words = f"broken: {type(error).__name__} {error}"
            scene.tally.note("pass-through", began, f"{words} ({name})" if words else "")
            await asyncio.sleep(choose.uniform(0, 0.4))

    return live


async def _passed(scene: Scene, what: Ask) -> Told:
    async with connected(scene) as visitor:
        return told(await visitor.ask(what.wire(scene.house.proxy.port), bodiless=what.verb == "HEAD"))


async def slow_reader(scene: Scene, choose: random.Random) -> None:
    """Reads a long answer in small pieces, with pauses."""
    while not scene.is_over:
        body, began = new_session(choose, 1, 600, ANSWER_TOKENS), time.monotonic()
        try:
            async with connected(scene, receive_buffer=4096) as visitor:
                await visitor.send(wire(body, AGENT))
                flaw = _flaw(await _slowly(visitor, choose))
        except BROKEN as error:
            flaw = f"broken: {type(error).__name__} {error}"
        scene.tally.note("slow reader", began, flaw)
        await asyncio.sleep(choose.uniform(0, 2))


async def _slowly(visitor: RawClient, choose: random.Random) -> bytes:
    head = await visitor.head()
    if head.status != 200:
        await read_body(visitor.reader, head, until_close=True)
        return head.start + b"\r\n\r\n" + head.body
    data, until = head.start + b"\r\n\r\n", time.monotonic() + SLOW_S
    while b"\r\n0\r\n\r\n" not in data[-16:]:
        piece = await visitor.reader.read(512)
        if not piece:
            break
        data += piece
        if time.monotonic() < until:
            await asyncio.sleep(choose.uniform(0, 0.05))
    return data


async def slow_writer(scene: Scene, choose: random.Random) -> None:
    """Sends a chat in pieces, with pauses."""
    while not scene.is_over:
        data, began = wire(new_session(choose, 2, 900), AGENT), time.monotonic()
        step = choose.randint(200, len(data))
        try:
            async with connected(scene) as visitor:
                for at in range(0, len(data), step):
                    await visitor.send(data[at : at + step])
                    await asyncio.sleep(choose.uniform(0, min(0.5, SLOW_S * step / len(data))))
                answer = await visitor.answer()
                flaw = _flaw(answer.start + b"\r\n\r\n" + answer.body)
        except BROKEN as error:
            flaw = f"broken: {type(error).__name__} {error}"
        scene.tally.note("slow writer", began, flaw)
        await asyncio.sleep(choose.uniform(0, 2))


def _flaw(data: bytes) -> str:
    status, _, _ = data.partition(b"\r\n")
    if b" 200 " not in status:
        return f"{status.decode(errors='replace')}: {data[-160:]!r}"
    return "" if b"data: [DONE]" in data and b'"timings"' in data else f"no end: {data[-160:]!r}"


async def leaver(scene: Scene, choose: random.Random) -> None:
    """Leaves at any byte of its request or of the answer, in any way."""
    while not scene.is_over:
        data = wire(new_session(choose, choose.choice((1, 2)), 600, 40), AGENT)
        is_whole = choose.random() < 0.7
        try:
            async with connected(scene) as visitor:
                await visitor.send(data if is_whole else data[: choose.randrange(len(data))])
                async with asyncio.timeout(choose.uniform(0, 1.5)):
                    await visitor.reader.read(choose.randint(1, 4000))
                choose.choice((visitor.reset, visitor.half_close, visitor.close))()
        except BROKEN:
            pass
        scene.tally.note_left("leaver")
        await asyncio.sleep(choose.uniform(0, 0.5))


async def vandal(scene: Scene, choose: random.Random) -> None:
    """Sends what is no HTTP, or could be read in two ways, or is no chat that anybody understands."""
    shapes = [*MALFORMED.values(), *SHAPES.values()]
    while not scene.is_over:
        mutated = (body for body in bodies(choose.randrange(1 << 30), 8) if not any(name in body for name in AIMED))
        for data in [choose.choice(shapes), *(wire(body, AGENT) for body in mutated)]:
            await _vandalise(scene, data)
            await asyncio.sleep(choose.uniform(0, 0.3))


async def _vandalise(scene: Scene, data: bytes) -> None:
    began = time.monotonic()
    try:
        async with connected(scene) as visitor:
            await visitor.send(data)
            async with asyncio.timeout(FUZZ_PATIENCE_S):
                answer = await visitor.answer()
    except BROKEN:
        scene.tally.note_left("malformed")
        return
    is_ours = b'"proxy_error"' in answer.body and answer.status not in OURS_TO_SAY
    scene.tally.note("malformed", began, f"{answer.status}: {answer.body[:160]!r} to {data!r:.300}" if is_ours else "")


async def onlooker(scene: Scene, choose: random.Random) -> None:
    """Has the status page open for a while, and uses what it offers."""
    looks = ["/status", "/checkpoints", "/prune", "/explain", "/readyz", "/"]
    while not scene.is_over:
        began = time.monotonic()
        try:
            async with (
                asyncio.timeout(choose.uniform(0.2, 3)),
                scene.client.get(f"{scene.house.admin_url}/events") as page,
            ):
                async for line in page.content:
                    if line.startswith(b"data: "):
                        orjson.loads(line[6:])
        except TimeoutError:
            scene.tally.note_left("status page")
        except BROKEN as error:
            scene.tally.note("status page", began, f"broken: {type(error).__name__} {error}")
        for path in choose.sample(looks, k=2):
            await _look(scene, "GET", path)
        if choose.random() < 0.2:
            await _look(scene, "POST", choose.choice(("/prune", "/warm")))


async def _look(scene: Scene, method: str, path: str) -> None:
    began = time.monotonic()
    try:
        async with scene.client.request(method, f"{scene.house.admin_url}{path}") as answer:
            data = await answer.read()
            words = f"{answer.status}: {data[:160]!r} ({method} {path})" if answer.status in (500, 502) else ""
    except BROKEN as error:
        words = f"broken: {type(error).__name__} {error} ({method} {path})"
    scene.tally.note("admin", began, words)


def guests(references: References, talkers: int) -> list[Guest]:
    """Everybody who is there at once."""
    odd: list[Guest] = [slow_reader, slow_writer, leaver, vandal, onlooker]
    return [*[talker] * talkers, newcomer, family, passer_by(references), *odd]
