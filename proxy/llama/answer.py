"""Reading a server's figures from a copy of its answer, as the answer passes by.

Owns the way from answer bytes to `Figures`: server-sent events or one JSON document, plain or deflated. Does no I/O,
delays nothing, alters nothing and never raises: an answer that can't be read has no figures. Its counterpart is
`request.body`, which reads what was asked.

It runs for every chunk of every stream, so a chunk is only appended; every 64 kB the complete events are looked
through, from the last one back, and only those are parsed in which a wanted key stands as a key would (a quote within
a JSON string is escaped, so an answer that *talks* about `"timings"` does not match). What is read depends on the
bytes alone and not on where they were cut. Memory is bounded by the limits below and the largest chunk.
"""

import re
import zlib
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any

import orjson

from proxy.llama.figures import Figures, Found

SCAN_EVERY_BYTES = 64 * 1024
MAX_EVENT_BYTES = 1024 * 1024
"""A longer event is passed over."""
MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
TAIL_BYTES = 1024 * 1024
"""What is kept of a document longer than `MAX_DOCUMENT_BYTES`: the server writes its figures last."""
MAX_INFLATED_BYTES = 256 * 1024 * 1024
"""A packed answer that grows beyond this is given up."""

__all__ = ["AnswerReader", "Figures"]

_PLAIN = ("", "identity")
_WANTED = ("timings", "usage", "error")
_INFLATE_STEP = 256 * 1024
_VALUE_BYTES = 4096
_ERROR_LINES = (b"\nerror:", b"\nevent: error", b"\nevent:error")
_DONE = re.compile(rb"^data: ?\[DONE\][ \t]*$", re.MULTILINE)


class AnswerReader:
    """Fed copies of the passing chunks, asked once for the figures."""

    def __init__(self, content_type: str, content_encoding: str) -> None:
        self._shape = _shape_of(content_type)
        self._inflater = _inflater_for(content_encoding)
        if content_encoding.strip().lower() not in _PLAIN and self._inflater is None:
            self._shape = None

    def __repr__(self) -> str:
        return f"AnswerReader({type(self._shape).__name__}, packed={self._inflater is not None})"

    @property
    def error(self) -> bool:
        """Whether an error was reported, in the body or in an event; known once finished."""
        return self._shape is not None and self._shape.found.error

    @property
    def is_done(self) -> bool:
        """Whether a stream has said that it is over; known once finished."""
        return self._shape is not None and self._shape.found.is_done

    def feed(self, data: bytes) -> None:
        """Take the next chunk."""
        if self._shape is None:
            return
        if self._inflater is None:
            self._shape.feed(data)
        elif not self._inflater.pass_on(data, self._shape):
            self._shape = None

    def finish(self) -> Figures | None:
        """The figures of the whole answer, None if it has none."""
        if self._shape is None:
            return None
        self._shape.finish()
        return self._shape.found.best()


class _Events:
    """Server-sent events: complete ones are looked through now and then, the last one waits for its end."""

    def __init__(self) -> None:
        self.found = Found()
        self._waiting = bytearray()
        self._scan_at = SCAN_EVERY_BYTES
        self._passing_over = False  # the beginning of an event that is too long has been dropped

    def feed(self, data: bytes) -> None:
        self._waiting += data
        if len(self._waiting) > self._scan_at:
            self._scan()

    def finish(self) -> None:
        self._waiting += b"\n\n"
        self._scan()

    def _scan(self) -> None:
        held = b"\r" if self._waiting.endswith(b"\r") else b""  # may be half of a line end
        block = _line_feeds_only(bytes(self._waiting).removesuffix(held))
        complete, boundary, rest = block.rpartition(b"\n\n")
        if boundary and self._passing_over:
            complete = (complete + boundary).partition(boundary)[2]
            self._passing_over = False
        self._look_through(complete)
        if self._passing_over or len(rest.strip(b"\n")) > MAX_EVENT_BYTES:
            self._passing_over = True
            rest = rest[-1:]  # may be half of a boundary
        self._waiting = bytearray(rest + held)
        self._scan_at = len(self._waiting) + SCAN_EVERY_BYTES

    def _look_through(self, events: bytes) -> None:
        for key in _WANTED:
            for event in _events_with(_quoted(key), events):
                if self.found.take(key, _data_of(event).get(key)):
                    break
        self.found.is_done = self.found.is_done or (b"[DONE]" in events and _DONE.search(events) is not None)
        if not self.found.error and _is_error(events):
            self.found.error = any(map(_is_error, _events_with(b"error", events)))


class _Document:
    """One JSON document: read whole, or, where it is too long for that, its last part."""

    def __init__(self) -> None:
        self.found = Found()
        self._kept = bytearray()
        self._cut = False

    def feed(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > MAX_DOCUMENT_BYTES:
            self._cut = True
            del self._kept[:-TAIL_BYTES]

    def finish(self) -> None:
        if self._cut:
            self._look_through(bytes(self._kept[-TAIL_BYTES:]))
            return
        answer = _object(self._kept)
        for key in _WANTED:
            self.found.take(key, answer.get(key))

    def _look_through(self, tail: bytes) -> None:
        for key in ("timings", "usage"):
            for at in _places(_quoted(key), tail):
                if self.found.take(key, _value_after(tail, at + len(key) + 2)):
                    break


class _Inflater:
    """Unpacks an answer piece by piece, straight into a reader."""

    def __init__(self, *, may_be_bare: bool) -> None:
        self._engine = None if may_be_bare else zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._start = b""
        self._total = 0

    def pass_on(self, data: bytes, reader: "_Events | _Document") -> bool:
        """Unpack a chunk; False if the answer can't be read (any further)."""
        if self._engine is None:  # the first two bytes tell zlib from bare deflate
            self._start += data
            if len(self._start) < 2:  # noqa: PLR2004 - the length of zlib's header
                return True
            data = self._start
            self._engine = zlib.decompressobj(zlib.MAX_WBITS if _is_zlib(data) else -zlib.MAX_WBITS)
        try:
            return self._inflate(self._engine, data, reader)
        except zlib.error:
            return False

    def _inflate(self, engine: "zlib._Decompress", data: bytes, reader: "_Events | _Document") -> bool:
        while data and not engine.eof:
            plain = engine.decompress(data, _INFLATE_STEP)
            data = engine.unconsumed_tail
            self._total += len(plain)
            if self._total > MAX_INFLATED_BYTES:
                return False
            reader.feed(plain)
        return True


def _shape_of(content_type: str) -> _Events | _Document | None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return _Events()
    return _Document() if not kind or kind.endswith("json") else None


def _inflater_for(content_encoding: str) -> _Inflater | None:
    encoding = content_encoding.strip().lower()
    if encoding in ("gzip", "x-gzip", "deflate"):
        return _Inflater(may_be_bare=encoding == "deflate")
    return None


def _is_zlib(start: bytes) -> bool:
    return start[0] & 0x0F == zlib.DEFLATED and int.from_bytes(start[:2], "big") % 31 == 0


def _line_feeds_only(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text


def _quoted(key: str) -> bytes:
    return b'"%b"' % key.encode()


def _places(needle: bytes, text: bytes) -> Iterator[int]:
    """Where a text occurs, from the last place back."""
    at = text.rfind(needle)
    while at >= 0:
        yield at
        at = text.rfind(needle, 0, at)


def _events_with(needle: bytes, events: bytes) -> Iterator[bytes]:
    """The events, none too long, in which a text occurs, from the last one back, each once."""
    begin = len(events)
    while (at := events.rfind(needle, 0, begin)) >= 0:
        begin = events.rfind(b"\n\n", 0, at) + 1  # 0 where there is none
        end = events.find(b"\n\n", at)
        event = events[begin : end if end >= 0 else len(events)].strip(b"\n")
        if len(event) <= MAX_EVENT_BYTES:
            yield event


def _data_of(event: bytes) -> dict[str, Any]:
    return _object(b"\n".join(line[5:] for line in event.split(b"\n") if line.startswith(b"data:")))


def _is_error(event: bytes) -> bool:
    return any(event.startswith(line[1:]) or line in event for line in _ERROR_LINES)


def _object(text: bytes | bytearray) -> dict[str, Any]:
    """A JSON object, empty where the text is none."""
    try:
        parsed = orjson.loads(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _value_after(text: bytes, at: int) -> object:
    """The JSON value after a key and its colon, None if there is no whole one."""
    after = text[at : at + _VALUE_BYTES].decode("utf-8", "replace").lstrip()
    if not after.startswith(":"):
        return None
    try:
        value: object = JSONDecoder().raw_decode(after[1:].lstrip())[0]
    except (ValueError, RecursionError):
        return None
    return value
