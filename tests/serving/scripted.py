"""A scripted llama-server of one slot: answers our own calls as a real one does, and clients as a test likes."""

import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.serving.route import answer
from tests.serving.running import Running, running
from tests.wire import Message, Peer, RecordingUpstream, Script, recording

PROMPT_TOKENS, PREFIX_TOKENS = 900, 600
JSON = b"Content-Type: application/json"
STREAM = b"Content-Type: text/event-stream"
PROPS = {"total_slots": 1, "model_path": "", "default_generation_settings": {"n_ctx": 4096}}


class Quiet:
    """A server of one slot whose chat answers have neither timings nor usage."""

    def __init__(self) -> None:
        self.starts = 0
        self.restart()

    def restart(self) -> None:
        """Be another process, which holds nothing."""
        self.starts += 1
        self.task = -1
        self.n_tokens = 0
        self.held: list[int] = []

    def _slots(self) -> list[Mapping[str, Any]]:
        return [{"id": 0, "id_task": self.task, "n_prompt_tokens": self.n_tokens, "is_processing": False}]

    async def script(self, peer: Peer, message: Message) -> None:
        path = message.target.partition(b"?")[0]
        told: dict[bytes, Any] = {
            b"/props": {**PROPS, "media_marker": f"<{self.starts}>"},
            b"/slots": self._slots(),
            b"/v1/models": {"data": []},
        }
        told |= {b"/lora-adapters": [], b"/apply-template": {"prompt": message.body.decode(errors="replace")}}
        if path == b"/tokenize":
            text = orjson.loads(message.body)["content"]
            tail = text[-(PROMPT_TOKENS - PREFIX_TOKENS) :].encode()
            told[path] = {"tokens": [self._install(text), *range(1, PREFIX_TOKENS), *tail]}
        if path == b"/completion":
            asked = orjson.loads(message.body)
            event = orjson.dumps({"id_slot": 0, "timings": self._complete(asked["prompt"])})
            is_streamed = asked.get("stream", False)
            words = answer(b"data: " + event + b"\n\n", STREAM) if is_streamed else answer(event, JSON)
            await peer.send(words)
        elif path == b"/v1/chat/completions":
            self._ran(PROMPT_TOKENS)
            await peer.send(answer(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n', STREAM))
        elif path in told:
            await peer.send(answer(orjson.dumps(told[path]), JSON))
        else:
            await peer.send(answer(b"{}", JSON, status=b"404 Not Found"))

    def _install(self, text: str) -> int:
        """The first token: the same whatever session is rendered."""
        return 0

    def _complete(self, prompt: list[Any]) -> dict[str, Any]:
        """Prefill a prompt; an empty one leaves the slot as it is."""
        tokens = self.held if prompt == [[]] else prompt
        pairs = enumerate(zip(self.held, tokens, strict=False))
        shared = next((at for at, (mine, his) in pairs if mine != his), min(len(self.held), len(tokens)))
        self._ran(len(tokens))
        self.held = tokens
        return {"prompt_n": len(tokens) - shared, "cache_n": shared, "prompt_ms": 1.0}

    def _ran(self, n_tokens: int) -> None:
        self.task += 10
        self.n_tokens = n_tokens


MARK = (b"X-Client", b"of the test")
"""A header that tells a client's request from a call of the proxy's own."""


@dataclass
class Scripted(Quiet):
    """A server of one slot whose answers to clients are the test's; each system text is an install of its own."""

    reply: Script
    asked: list[Message] = field(default_factory=list)
    """What clients asked."""

    def __post_init__(self) -> None:
        super().__init__()

    async def script(self, peer: Peer, message: Message) -> None:
        if MARK not in message.headers:
            await super().script(peer, message)
            return
        self.asked.append(message)
        self._ran(PROMPT_TOKENS)
        await self.reply(peer, message)

    def _install(self, text: str) -> int:
        try:
            return zlib.crc32(orjson.loads(text)["messages"][0]["content"][:6].encode()) >> 1
        except (ValueError, LookupError, TypeError):
            return 0


@dataclass(frozen=True, slots=True)
class Whole:
    """client → the whole proxy → a scripted server."""

    server: Scripted
    upstream: RecordingUpstream
    proxied: Running

    @property
    def port(self) -> int:
        return self.proxied.proxy.port


@asynccontextmanager
async def whole(reply: Script, **settings: Any) -> AsyncIterator[Whole]:
    """The whole proxy in front of a scripted server while the block runs."""
    server = Scripted(reply)
    async with (
        recording(server.script) as upstream,
        running(f"http://127.0.0.1:{upstream.port}/v1", **settings) as proxied,
    ):
        yield Whole(server, upstream, proxied)
