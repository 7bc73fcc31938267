"""Which headers and which framing go on to the next hop.  Pure: bytes and records in, bytes and records out.

Headers are taken raw, as pairs of bytes: aiohttp's parsed ones have the spelling of known names changed.  What belongs
to one connection only (RFC 9110, 7.6.1) is dropped; everything else keeps its order, spelling and repetitions.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxy.errors import RequestRefused

RawHeaders = Sequence[tuple[bytes, bytes]]

# `Trailer` goes too: aiohttp reads trailers and drops them, so they must not be announced.
HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
# What `Connection: …` may not take away: the framing, and whom the request is for.
PROTECTED = frozenset({b"content-length", b"host"})
NO_BODY_STATUS = frozenset({204, 304})
# Who asks, and how the body is to be read: with a byte left out these would say something else.
EXACT_OR_NOT_AT_ALL = frozenset(
    {b"authorization", b"proxy-authorization", b"x-api-key", b"cookie", b"content-type", b"content-encoding"}
)


class Framing(enum.Enum):
    """How the end of a body is told."""

    NONE = enum.auto()
    LENGTH = enum.auto()
    CHUNKED = enum.auto()
    UNTIL_CLOSE = enum.auto()


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request's headers as they go upstream."""

    headers: tuple[tuple[str, str], ...]
    chunked: bool
    length: int | None
    awaits_continue: bool


def _listed(raw: RawHeaders, name: bytes) -> set[bytes]:
    values = (value for key, value in raw if key.lower() == name)
    return {item.strip().lower() for value in values for item in value.split(b",")} - {b""}


def _dropped(raw: RawHeaders) -> frozenset[bytes]:
    return HOP_BY_HOP | (_listed(raw, b"connection") - PROTECTED)


def _text(value: bytes) -> str:
    # aiohttp's client writes headers as UTF-8: a byte that is not part of any cannot be carried.
    return value.decode("utf-8", "ignore")


def _carried(key: bytes, value: bytes) -> str:
    text = _text(value)
    if key in EXACT_OR_NOT_AT_ALL and text.encode() != value:
        raise RequestRefused(f"the header {key.decode()} holds bytes that are not UTF-8")
    return text


def outgoing(raw: RawHeaders, authority: str, *, http_1_0: bool = False) -> Outgoing:
    """The request's headers for the upstream: `Host` replaced in its place, `Expect: 100-continue` answered here.

    Raises RequestRefused where what can't be carried would turn, say, a wrong key into a right one.
    """
    dropped = _dropped(raw)
    chunked = b"chunked" in _listed(raw, b"transfer-encoding")
    expects = b"100-continue" in _listed(raw, b"expect")
    length: int | None = None
    named_host = False
    headers: list[tuple[str, str]] = []
    for name, value in raw:
        key = name.lower()
        if key == b"host":
            if not named_host:
                headers.append((_text(name), authority))
            named_host = True
        elif key == b"transfer-encoding" and chunked:
            headers.append((_text(name), _text(value)))
        elif key == b"expect" and expects:
            continue
        elif key not in dropped:
            if key == b"content-length":
                length = int(value)
            headers.append((_text(name), _carried(key, value)))
    if not named_host:
        headers.insert(0, ("Host", authority))
    return Outgoing(tuple(headers), chunked, length, expects and not http_1_0)


def answer_framing(method: str, status: int, raw: RawHeaders, *, http_1_0: bool = False) -> Framing:
    """How the answer's body is delimited for this client: as the upstream did it, where the client can read that."""
    if method == "HEAD" or status in NO_BODY_STATUS:
        return Framing.NONE
    if _listed(raw, b"transfer-encoding"):
        chunked = b"chunked" in _listed(raw, b"transfer-encoding")
        return Framing.CHUNKED if chunked and not http_1_0 else Framing.UNTIL_CLOSE
    if any(name.lower() == b"content-length" for name, _ in raw):
        return Framing.LENGTH
    return Framing.UNTIL_CLOSE


def answer_head(
    status: int, reason: str, raw: RawHeaders, framing: Framing, *, keep_alive: bool, http_1_0: bool = False
) -> bytes:
    """Status line and headers as they go to the client, blank line included."""
    lines = [b"HTTP/1.%d %d %b" % (0 if http_1_0 else 1, status, reason.encode("utf-8", "surrogateescape"))]
    lines += _passed(raw, framing, http_1_0)
    if not keep_alive:
        lines.append(b"Connection: close")
    elif http_1_0:
        lines.append(b"Connection: keep-alive")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def _passed(raw: RawHeaders, framing: Framing, http_1_0: bool) -> Iterable[bytes]:
    dropped = _dropped(raw)
    coded = bool(_listed(raw, b"transfer-encoding"))
    seen_length = False
    for name, value in raw:
        key = name.lower()
        if key == b"transfer-encoding":
            if http_1_0 or (framing is Framing.UNTIL_CLOSE and b"chunked" in value.lower()):
                continue
        elif key in dropped:
            continue
        elif key == b"content-length":
            # Never both, never twice: that is how one answer is read as two.
            if coded or seen_length:
                continue
            seen_length = True
        yield b"%b: %b" % (name, _one_line(value))


def _one_line(value: bytes) -> bytes:
    # aiohttp reads answers leniently: a folded value must not become two headers.
    return b" ".join(value.split()) if b"\n" in value or b"\r" in value else value


def origin_form(raw_target: str) -> str | None:
    """Path and query of a request target, byte for byte; an absolute one loses its authority; None without a path."""
    if raw_target.startswith("/"):
        return raw_target
    scheme, separator, rest = raw_target.partition("://")
    if not separator or not scheme.isalpha():
        return None
    cut = next((i for i, char in enumerate(rest) if char in "/?#"), len(rest))
    path = rest[cut:]
    return path if path.startswith("/") else f"/{path}"
