"""A llama-server of one slot, pretended: what a real one can't be made to do, this one does on request.

Honest in what the proxy builds on: it renders, tokenises by the byte, reuses what its slot shares with a prompt, keeps
what it displaces in memory, and saves and restores. `test_pretender` holds it against the real one. A *fault* takes the
place of the answer to one kind of call, from the moment it is set.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from proxy.checkpoints.inspection import read_head
from proxy.checkpoints.state_file import Header
from tests.checkpoints.state_files import state_file
from tests.serving.route import answer
from tests.wire import Message, Peer

JSON, STREAM = b"Content-Type: application/json", b"Content-Type: text/event-stream"
CONTEXT = 1 << 20
TEXT = "done"
KEEPS, LOADS = 0.5, 0.25
CHAT = "chat"

Tokens = list[int]
Fault = Callable[[Peer, bytes], Awaitable[None]]
"""Answers in its own way; gets what would have been said."""


class RefusedError(Exception):
    """Answered with a status of its own."""

    def __init__(self, status: bytes) -> None:
        super().__init__(status)
        self.status = status


def kind_of(message: Message) -> str:
    """What kind of call this is, as faults name it."""
    path = message.target.decode().partition("?")[0]
    if path.startswith("/slots/"):
        return message.target.decode().rpartition("action=")[2]
    if path == "/completion":
        asked = orjson.loads(message.body)
        if asked["prompt"] == [[]]:
            return "copy"
        if "id_slot" in asked:
            return "displace"
        return "look" if "n_probs" in asked else "prefill" if asked.get("stream") else "prefill-plainly"
    return CHAT if path.endswith("/chat/completions") else path.removeprefix("/")


async def _at_once(work: Callable[..., bytes], *given: Any) -> bytes:
    return work(*given)


@dataclass(slots=True)
class Pretender:
    """The server; its `script` is what a recording upstream runs."""

    faults: dict[str, Fault] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    slot: Tokens = field(default_factory=list)
    memory: list[Tokens] = field(default_factory=list)
    files: dict[str, Tokens] = field(default_factory=dict)
    task: int = -1
    directory: Path | None = None
    """Where it writes what it saves; None keeps it to itself."""

    async def script(self, peer: Peer, message: Message) -> None:
        kind = kind_of(message)
        self.calls.append(kind)
        try:
            act = asyncio.to_thread if kind in ("save", "restore") else _at_once
            data = await act(self._answer, kind, message)
        except RefusedError as refused:
            data = answer(b'{"error":{"message":"no"}}', JSON, status=refused.status)
        if kind in self.faults:
            await self.faults[kind](peer, data)
        else:
            await peer.send(data)

    def _answer(self, kind: str, message: Message) -> bytes:
        asked = orjson.loads(message.body) if message.body[:1] == b"{" else {}
        if kind in ("prefill", CHAT) and asked.get("stream"):
            events, end = self._ran(asked), b"data: [DONE]\n\n" if kind == CHAT else b""
            return answer(b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events) + end, STREAM)
        return answer(orjson.dumps(self._told(kind, asked)), JSON)

    def _told(self, kind: str, asked: dict[str, Any]) -> Any:
        match kind:
            case "props":
                settings = {"n_ctx": CONTEXT}
                return {"total_slots": 1, "media_marker": "<one>", "default_generation_settings": settings}
            case "v1/models":
                return {"data": [{"id": "tiny", "meta": {"size": 1}}]}
            case "lora-adapters":
                return []
            case "slots":
                return [{"id": 0, "id_task": self.task, "n_prompt_tokens": len(self.slot), "is_processing": False}]
            case "apply-template":
                return {"prompt": rendered(asked)}
            case "tokenize":
                return {"tokens": [*asked["content"].encode()]}
            case "copy" | "displace" | "look" | "prefill-plainly" | "chat":
                return {**self._ran(asked)[-1], "completion_probabilities": [{"top_logprobs": LIKELY}]}
        return self._acted(kind, str(asked.get("filename")))

    def _acted(self, action: str, name: str) -> dict[str, Any]:
        match action:
            case "save" if "/" not in name:
                self.files[name] = [*self.slot]
                size = 100 if self.directory is None else state_file(self.directory / name, self.slot).stat().st_size
                return {"n_saved": len(self.slot), "n_written": size}
            case "restore" if (kept := self._kept(name)) is not None:
                self.slot = kept
                return {"n_restored": len(self.slot), "n_read": 100}
            case "erase":
                self.slot = []
                return {"n_erased": 1}
        raise RefusedError(b"400 Bad Request")

    def _kept(self, name: str) -> Tokens | None:
        if self.directory is None:
            return [*self.files[name]] if name in self.files else None
        head = read_head(self.directory / name)
        return [*head.tokens] if isinstance(head, Header) else None

    def _ran(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """A completion: what its slot holds afterwards, and its events."""
        is_chat = "messages" in asked
        prompt = [*rendered(asked).encode()] if is_chat else [*asked["prompt"]]
        if prompt == [[]]:
            self.memory.append([*self.slot])
            return [{"id_slot": 0, "timings": {"prompt_n": 0, "cache_n": 0, "prompt_ms": 0.1}}]
        self.task += 10
        if not self.slot or common(self.slot, prompt) < KEEPS * len(self.slot):
            self._load(prompt)
        cache_n = min(common(self.slot, prompt), len(prompt) - 1)
        self.slot = [*prompt, *TEXT.encode()] if is_chat else prompt
        prompt_n = len(prompt) - cache_n
        # A prompt takes its time, or no copy would be worth its own.
        timings = {"prompt_n": prompt_n, "cache_n": cache_n, "prompt_ms": prompt_n / 2, "predicted_n": len(TEXT)}
        last = {"id_slot": 0, "timings": timings}
        if not is_chat:
            return [{"prompt_progress": {"total": len(prompt), "processed": len(prompt)}}, last]
        said = [{"choices": [{"index": 0, "delta": {"content": letter}}]} for letter in TEXT]
        return [*said, {"choices": [], **last, "usage": {"prompt_tokens": len(prompt)}}]

    def _load(self, prompt: Tokens) -> None:
        """Something else is asked: what the slot holds is kept, and a better match taken from memory."""
        if self.slot:
            self.memory.append(self.slot)
        best = max(self.memory, key=lambda kept: common(kept, prompt), default=[])
        if common(best, prompt) > common(self.slot, prompt) and common(best, prompt) >= LOADS * len(best):
            self.memory.remove(best)
            self.slot = best


LIKELY = [{"id": 1, "logprob": -0.5}, {"id": 2, "logprob": -1.5}]


def common(one: Tokens, other: Tokens) -> int:
    """How many tokens both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def rendered(asked: dict[str, Any]) -> str:
    """The prompt: tools before the system text, then the turns."""
    system, *turns = asked["messages"]
    head = orjson.dumps(asked.get("tools")).decode() + str(system["content"])
    return head + "".join(f"\n<{turn['role']}>{turn.get('content')}" for turn in turns) + "\n<assistant>"


# --- faults ---


async def hangs(peer: Peer, _: bytes) -> None:
    """Never answers."""
    await peer.gone()


async def hangs_half_way(peer: Peer, data: bytes) -> None:
    await peer.send(data[: len(data) // 2])
    await peer.gone()


async def hangs_after_the_head(peer: Peer, data: bytes) -> None:
    await peer.send(data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    await peer.gone()


async def dies(peer: Peer, _: bytes) -> None:
    """Resets the connection before a word."""
    peer.reset()


async def is_cut(peer: Peer, data: bytes) -> None:
    """Closes in the middle of the body."""
    await peer.send(data[:-2])
    peer.close()


async def never_ends(peer: Peer, data: bytes) -> None:
    """The body goes on for ever."""
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    while True:
        await peer.send(b'data: {"prompt_progress": {}}\n\n' * 200)
        await asyncio.sleep(0.005)  # or it would have the event loop for itself


def says(body: bytes, status: bytes = b"200 OK", head: bytes = JSON) -> Fault:
    """Answers something else."""

    async def fault(peer: Peer, _: bytes) -> None:
        await peer.send(answer(body, head, status=status))

    return fault


async def lies_in_types(peer: Peer, data: bytes) -> None:
    """Each value is of another type than it should be."""
    await _changed(peer, data, twisted)


async def leaves_out_fields(peer: Peer, data: bytes) -> None:
    """No object has any field; lists are as long as they were."""
    await _changed(peer, data, emptied)


async def _changed(peer: Peer, data: bytes, change: Callable[[Any], Any]) -> None:
    head, _, body = data.partition(b"\r\n\r\n")
    if STREAM in head:
        events = [line[6:] for line in body.split(b"\n\n") if line.startswith(b"data: {")]
        told = b"".join(b"data: %b\n\n" % orjson.dumps(change(orjson.loads(event))) for event in events)
        await peer.send(answer(told, STREAM))
    else:
        await peer.send(answer(orjson.dumps(change(orjson.loads(body))), JSON))


def twisted(value: Any) -> Any:
    match value:
        case dict():
            return {name: twisted(inner) for name, inner in value.items()}
        case list():
            return [twisted(inner) for inner in value] or {"a": 1}
        case str():
            return [7]
        case bool() | None:
            return "yes"
        case _:
            return {"a": -1}


def emptied(value: Any) -> Any:
    return {} if isinstance(value, dict) else [emptied(inner) for inner in value] if isinstance(value, list) else value


FAULTS: dict[str, Fault] = {
    "hangs": hangs,
    "hangs-half-way": hangs_half_way,
    "hangs-after-the-head": hangs_after_the_head,
    "dies": dies,
    "is-cut": is_cut,
    "never-ends": never_ends,
    "says-500": says(b'{"error":{"code":500,"message":"oops"}}', b"500 Internal Server Error"),
    "says-404": says(b'{"error":{"code":404,"message":"no"}}', b"404 Not Found"),
    "says-html": says(b"<html>welcome</html>", head=b"Content-Type: text/html"),
    "says-nothing": says(b""),
    "says-nonsense": says(b'{"timings": \xff\xfe'),
    "says-a-number": says(b"7"),
    "says-null": says(b"null"),
    "says-deep": says(b"[" * 5000 + b"]" * 5000),
    "redirects": says(b"", b"307 Temporary Redirect", b"Location: http://127.0.0.1:1/"),
    "lies-in-types": lies_in_types,
    "leaves-out-fields": leaves_out_fields,
}
