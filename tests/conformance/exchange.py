"""The same request asked of a server and of the proxy in front of it, and what of the two answers has to be equal.

Everything has, but for what no two answers of one server have in common: numbers that count or time, and new ids.
Headers are compared line by line, in their order and spelling, without those that end at one connection.
"""

from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.wire import Message, client

HOP_BY_HOP = {b"connection", b"keep-alive"}
VARYING = {"created", "id", "system_fingerprint", "created_at", "completed_at", "item_id", "call_id", "t_last"}
"""Fields that are another value each time."""
MEASURED = {"timings", "prompt_progress", "input_tokens_details", "prompt_tokens_details"}
"""Fields whose numbers say how long something took, or what was still in the slot."""
STATE = {"id_slot", "id_task", "n_saved", "n_restored", "n_written", "n_read", "n_erased", "tokens_cached"}
CACHE = {"cache_read_input_tokens", "input_tokens"}
DIGITS = 2
"""Log-probabilities move a little with what was prefilled together."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    target: str
    body: Any = None
    """An object is sent as JSON, bytes as they are."""
    method: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def verb(self) -> str:
        return self.method or ("GET" if self.body is None else "POST")

    def wire(self, port: int) -> bytes:
        data = self.body if isinstance(self.body, bytes) else b"" if self.body is None else orjson.dumps(self.body)
        lines = [f"{self.verb} {self.target} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.body is not None:
            lines += [f"Content-Length: {len(data)}"]
            lines += [] if "Content-Type" in self.headers else ["Content-Type: application/json"]
        return "\r\n".join([*lines, "", ""]).encode() + data


@dataclass(frozen=True, slots=True)
class Told:
    """An answer as far as it is the same each time."""

    start: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: Any


async def ask(port: int, what: Ask) -> Told:
    """Ask whoever listens there."""
    async with client(port) as visitor:
        message = await visitor.ask(what.wire(port), bodiless=what.verb == "HEAD")
    return told(message)


def told(message: Message) -> Told:
    # The length of a body whose numbers vary varies too; that the bytes are as many as it says is checked on reading.
    varies = (_is_json(message) or _is_metrics(message)) and not message.chunked
    headers = [
        (name, b"#" if varies and name.lower() == b"content-length" else value)
        for name, value in message.headers
        if name.lower() not in HOP_BY_HOP
    ]
    return Told(message.start, tuple(headers), _body(message))


def _body(message: Message) -> Any:
    if _is_json(message):
        return steady(orjson.loads(message.body))
    if b"event-stream" in b"".join(message.values(b"content-type")):
        return [_line(line) for line in message.body.split(b"\n")]
    if _is_metrics(message):
        return [line.rpartition(b" ")[0] if line[:1] != b"#" else line for line in message.body.split(b"\n")]
    return message.body


def _is_json(message: Message) -> bool:
    return b"json" in b"".join(message.values(b"content-type")) and message.body[:1] in (b"{", b"[")


def _is_metrics(message: Message) -> bool:
    return message.body.startswith(b"# HELP")


def _line(line: bytes) -> Any:
    return steady(orjson.loads(line[6:])) if line.startswith(b"data: {") else line


def steady(value: Any) -> Any:
    """The value without what is another one each time."""
    match value:
        case dict():
            return {name: _field(name, inner) for name, inner in value.items()}
        case list():
            return [steady(inner) for inner in value]
        case float():
            return round(value, DIGITS) + 0.0
    return value


def _field(name: str, value: Any) -> Any:
    if name in MEASURED:
        return _shape(value)
    if name in VARYING | STATE | CACHE:
        return type(value).__name__
    return steady(value)


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shape(inner) for name, inner in value.items()}
    return "number" if isinstance(value, int | float) else value
