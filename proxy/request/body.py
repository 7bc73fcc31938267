"""Reading a chat-completions body: bytes in, one typed record out, and never an exception.

Owns what the words of a body mean to the server (is it streamed, how many choices, does it ask for a slot of its
own). Refuses to judge whether the request is a good one: that is the server's to say, and whatever can't be read
here is forwarded all the same, byte for byte. The bytes stay with the caller; nothing is ever written back from the
record. Its counterpart is `llama.answer`, which reads what came back.

A body that parses is also known to serialise again (`too_deep` otherwise), so nothing that hashes or renders a
`ChatRequest` needs to fear one.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

MAX_UNPACKED_BYTES = 8 * 1024 * 1024
"""What is read at most, packed or not: parsing holds up everybody else's stream, some 15 ms a MB. A longer body is
forwarded unread; the server is sent what the client sent in any case."""

_BOM = b"\xef\xbb\xbf"
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_RAW_DEFLATE = -zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One parsed chat-completions body; the bytes stay elsewhere, untouched."""

    model: str
    """"" when the body names none."""
    messages: tuple[Mapping[str, Any], ...]
    fields: Mapping[str, Any]
    """The whole parsed object, key order kept."""
    stream: bool
    choices: int
    """How many answers are asked for (`n`), at least 1: each takes a slot."""

    @property
    def cache_prompt(self) -> bool:
        """Whether the server may reuse what a slot holds; only an explicit `false` forbids it."""
        return self.fields.get("cache_prompt") is not False

    @property
    def own_slot(self) -> bool:
        """Whether the client picks the slot itself."""
        return "id_slot" in self.fields

    @property
    def own_lora(self) -> bool:
        """Whether the client brings LoRA adapters or scales of its own, which change the state."""
        return "lora" in self.fields

    @property
    def has_tools(self) -> bool:
        """Whether there is at least one tool."""
        tools = self.fields.get("tools")
        return isinstance(tools, list) and bool(tools)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A body that says nothing to us: it is forwarded and otherwise left alone."""

    reason: str
    """`not_json`, `not_an_object`, `no_messages`, `odd_message`, `too_deep`, `odd_encoding` or `too_large`."""


def read_chat(body: bytes, content_encoding: str = "", content_type: str = "") -> ChatRequest | Unreadable:
    """Read a body as the server would; whatever the bytes are, this returns.

    The server looks at the bytes and not at `Content-Type`, except that it takes a multipart body apart itself.
    """
    if content_type.strip().lower().startswith("multipart/"):
        return Unreadable("not_json")
    if len(body) > MAX_UNPACKED_BYTES:
        return Unreadable("too_large")
    plain = _unpacked(body, content_encoding.strip().lower())
    if isinstance(plain, Unreadable):
        return plain
    try:
        parsed = orjson.loads(plain.removeprefix(_BOM))  # the server skips the mark, orjson refuses it
    except ValueError:
        return Unreadable("not_json")
    if not isinstance(parsed, dict):
        return Unreadable("not_an_object")
    return _as_request(parsed)


def _as_request(fields: dict[str, Any]) -> ChatRequest | Unreadable:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return Unreadable("no_messages")
    if not all(isinstance(message, dict) for message in messages):
        return Unreadable("odd_message")
    if not _can_be_written(fields):
        return Unreadable("too_deep")
    model = fields.get("model")
    return ChatRequest(
        model=model if isinstance(model, str) else "",
        messages=tuple(messages),
        fields=fields,
        stream=fields.get("stream") is True,
        choices=max(_count(fields.get("n_cmpl")), _count(fields.get("n"))),
    )


def _can_be_written(fields: dict[str, Any]) -> bool:
    """Whether orjson, which reads deeper than it writes, can write this with four levels around it."""
    try:
        orjson.dumps([[[[fields]]]])
    except TypeError:  # orjson.JSONEncodeError
        return False
    return True


def _count(value: object) -> int:
    """A number of choices as the server reads it (`2.0` is 2); 1 where there is none or it makes no sense."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 1
    return max(1, int(value))


def _unpacked(body: bytes, encoding: str) -> bytes | Unreadable:
    match encoding:
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            return _inflated(body, _GZIP_OR_ZLIB)
        case "deflate":  # zlib by the book, bare deflate in the wild
            first = _inflated(body, _GZIP_OR_ZLIB)
            return _inflated(body, _RAW_DEFLATE) if first == Unreadable("odd_encoding") else first
        case _:
            return Unreadable("odd_encoding")


def _inflated(body: bytes, window: int) -> bytes | Unreadable:
    inflater = zlib.decompressobj(window)
    try:
        plain = inflater.decompress(body, MAX_UNPACKED_BYTES)
    except zlib.error:
        return Unreadable("odd_encoding")
    if inflater.eof:
        return plain
    return Unreadable("too_large" if inflater.unconsumed_tail else "odd_encoding")
