"""What the proxy writes about itself: a line for people, or a JSON object, for each thing that happened.

    log = get_logger()
    log.info("request", line="observed normal request: prompt_n=1360 …", prompt_n=1360)

The event's name and its fields are what a program reads; where people should see other words than `event key=value …`,
`line` has them and appears on the console only.

Prompt text has no business here. Nobody may pass any; and should it happen, what gets through is bounded: text to 200
characters, containers to 20 items, bytes to nothing. Lines of other libraries keep their template but not its values,
and tracebacks their places but not their messages: both may quote what a client sent.

Writing never fails: a closed pipe or an unprintable character mustn't cost anybody an answer.
"""

import json
import logging
import sys
import traceback
from collections import OrderedDict
from collections.abc import Hashable, Iterator, MutableMapping
from types import TracebackType
from typing import Any, Final, Literal, Protocol, cast

import orjson
import structlog

TEXT_LIMIT: Final = 200
ITEM_LIMIT: Final = 20
INTEGER_BITS: Final = 63
FRAME_LIMIT: Final = 12
MARK: Final = "[prefix-cache]"

Format = Literal["console", "json"]
Event = MutableMapping[str, Any]


class Logger(Protocol):
    """What the rest of the proxy may do with a logger."""

    def bind(self, **fields: Any) -> "Logger": ...  # noqa: D102
    def debug(self, event: str, **fields: Any) -> None: ...  # noqa: D102
    def info(self, event: str, **fields: Any) -> None: ...  # noqa: D102
    def warning(self, event: str, **fields: Any) -> None: ...  # noqa: D102
    def error(self, event: str, **fields: Any) -> None: ...  # noqa: D102
    def exception(self, event: str, **fields: Any) -> None: ...  # noqa: D102


def configure(format: Format = "console", level: str = "info") -> None:  # noqa: A002
    """Write lines of this level and above to stderr; may be called again, loggers already handed out follow."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    shape: list[structlog.typing.Processor] = [_console] if format == "console" else [stamp, _json]
    structlog.configure(
        processors=[structlog.processors.add_log_level, _with_places, _bounded_fields, *shape],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=_Lines,
        # Looked up at each line (2 µs), so that loggers made at import follow a later configure.
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_Foreign()], level=logging.WARNING, force=True)


def get_logger(**fields: Any) -> Logger:
    """Give a logger whose lines all carry these fields."""
    return cast("Logger", structlog.get_logger(**fields))


class _Lines:
    """Writes whole lines to stderr, whatever stands there now."""

    def __init__(self, *_: object) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = self.exception = self.msg

    @staticmethod
    def msg(line: str) -> None:
        try:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            return  # closed, full or none at all: nobody reads it, and no request may suffer for it


class _Foreign(logging.Handler):
    """Lines of other libraries, in our shape and without the values they were formatted with."""

    def emit(self, record: logging.LogRecord) -> None:
        write = structlog.get_logger().error if record.levelno >= logging.ERROR else structlog.get_logger().warning
        write(str(record.msg), logger=record.name, **({"exc_info": record.exc_info} if record.exc_info else {}))


def _bounded(value: Any, depth: int = 3) -> Any:
    match value:
        case int() if value.bit_length() > INTEGER_BITS:
            return "<huge int>"  # beyond 4300 digits Python refuses to write it
        case None | bool() | int() | float():
            return value
        case str():
            return value if len(value) <= TEXT_LIMIT else value[:TEXT_LIMIT] + "…"
        case _ if depth == 0:
            return f"<{type(value).__name__}>"
        case dict():
            kept = ((key, item) for key, item in list(value.items())[:ITEM_LIMIT] if not _is_bytes(item))
            return {str(_bounded(key, 0)): _bounded(item, depth - 1) for key, item in kept}
        case list() | tuple():
            return [_bounded(item, depth - 1) for item in value[:ITEM_LIMIT] if not _is_bytes(item)]
        case _:
            return _bounded(str(value))


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)


def _bounded_fields(_: Any, __: str, event: Event) -> Event:
    return {key: value if key == "trace" else _bounded(value) for key, value in event.items() if not _is_bytes(value)}


def _with_places(_: Any, __: str, event: Event) -> Event:
    """Put an exception's type and the places it came through where structlog would put its whole text."""
    if (given := event.pop("exc_info", None)) is None:
        return event
    if isinstance(given, BaseException):
        event["trace"] = _places(given, given.__traceback__)
    elif (found := given if isinstance(given, tuple) else sys.exc_info())[1] is not None:
        event["trace"] = _places(found[1], found[2])
    return event


def _places(error: BaseException, at: TracebackType | None) -> str:
    # Not `extract_tb`, which reads the source from the disk.
    places = [f"{frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(at)][-FRAME_LIMIT:]
    cause = error.__cause__ or error.__context__
    because = f" after {type(cause).__name__}" if cause else ""
    return " < ".join([f"{type(error).__name__}{because}", *reversed(places)])


def _json(_: Any, __: str, event: Event) -> str:
    event.pop("line", None)
    try:
        return orjson.dumps(event).decode()
    except (TypeError, ValueError):
        # Half a surrogate pair.
        return json.dumps(event, default=str)


def _console(_: Any, __: str, event: Event) -> str:
    name, level, line = event.pop("event", ""), event.pop("level", ""), event.pop("line", None)
    loud = [f"{level.upper()}:"] if level not in {"info", "debug"} else []
    said = [_printable(str(line))] if line is not None else [_printable(str(name)), *_pairs(event)]
    return " ".join([MARK, *loud, *said])


def _pairs(event: Event) -> Iterator[str]:
    for key, value in event.items():
        if value is not None:
            yield f"{key}={_quoted(value)}"


def _quoted(value: Any) -> str:
    text = value if isinstance(value, str) else _shown(value)
    is_plain = text.isprintable() and text and not any(mark in text for mark in ' "=')
    return text if is_plain or not isinstance(value, str) else json.dumps(text, ensure_ascii=not text.isprintable())


def _shown(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list | bool) else str(value)


def _printable(text: str) -> str:
    """Keep one line one line, and a client's escape codes out of the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class SaidOnce:
    """Says which warnings are due: each once, and again after a while with how many were held back.

    Knows no clock: `now` is any steadily growing number of seconds. Beyond `limit` keys the one said longest ago is
    forgotten.
    """

    __slots__ = ("_again_s", "_limit", "_said")

    def __init__(self, again_s: float = 3600.0, limit: int = 256) -> None:
        self._again_s = again_s
        self._limit = limit
        self._said: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def due(self, key: Hashable, now: float) -> int | None:
        """How often this was held back since it was last said, if it is to be said now; else None."""
        said_at, held_back = self._said.get(key, (None, 0))
        if said_at is not None and now - said_at < self._again_s:
            self._said[key] = (said_at, held_back + 1)
            return None
        self._said[key] = (now, 0)
        self._said.move_to_end(key)
        if len(self._said) > self._limit:
            self._said.popitem(last=False)
        return held_back

    def forget(self, key: Hashable) -> None:
        """The reason is gone: say it at once if it comes back."""
        self._said.pop(key, None)

    def __repr__(self) -> str:
        return f"<SaidOnce {len(self._said)} of {self._limit} again_s={self._again_s}>"
