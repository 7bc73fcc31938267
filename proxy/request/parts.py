"""Which part of a request changed: what decides its fingerprint, taken apart into hashes of lines and fields.

Two requests are compared long after their text is gone, so what is kept of each has no text in it: a salted hash of
each line of the stable system text, where its sections begin, and a hash of each field of each tool and of the other
rendering inputs. Named are sections (`<rules>`), tools and fields only, and of these only what looks like an
identifier; anything else is named by its number. Pure; counterpart: `fingerprint`, which hashes the same in one piece.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from proxy.request.body import ChatRequest
from proxy.request.prefix import StablePrefix
from proxy.request.rendering import rendering_inputs

LINE_BYTES = 4
MAX_LINES = 5_000
MAX_TOOLS = 128
MAX_DEPTH = 6
MAX_FIELDS = 64
"""Of one tool. What is nested deeper, or more than any of these limits, is hashed in one piece."""
_IDENTIFIER = re.compile(r"[A-Za-z0-9_$][A-Za-z0-9_.$/-]{0,63}")
_OPENING = re.compile(r"<([a-z][a-z0-9_-]{0,31})(?: [^>]*)?>\s*")

Fields = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Parts:
    """One fingerprint, taken apart."""

    lines: bytes
    """A hash of each line of the stable text, one after the other."""
    sections: tuple[tuple[int, str], ...]
    """At which line each section begins, and its name; "" between sections."""
    tools: Mapping[str, Fields]
    fields: Fields
    """The other rendering inputs, the client, the model."""

    @property
    def n_lines(self) -> int:
        """Lines of the stable text."""
        return len(self.lines) // LINE_BYTES


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two requests."""

    place: str
    """system text, tools, a tool's name after `tool `, or request."""
    name: str
    """The section or the field."""
    what: str
    """changed, added, removed, moved."""
    lines: str = ""
    """Of the system text: which lines of the section in the later request."""


def parts(request: ChatRequest, prefix: StablePrefix, others: Mapping[str, str], salt: bytes) -> Parts:
    """Take a request apart; `others` are the client's and the model's own parts of the fingerprint, by name."""
    lines = prefix.text.split("\n", MAX_LINES)
    inputs = rendering_inputs(request)
    tools = inputs.pop("tools", None)
    fields = dict(_fields(inputs, salt)) if inputs else {}
    fields |= {name: _hash(value.encode("utf-8", "backslashreplace"), salt) for name, value in others.items()}
    fields["role of the system message"] = _hash(prefix.role.encode(), salt)
    return Parts(
        lines=b"".join(_hash(line.encode("utf-8", "backslashreplace"), salt) for line in lines),
        sections=tuple(_sections(lines)),
        tools=_tools(tools if isinstance(tools, list) else [], salt),
        fields=fields if isinstance(tools, list) or tools is None else {**fields, "tools": _whole(tools, salt)},
    )


def likeness(one: Parts, other: Parts) -> int:
    """How much two have in common, in lines and fields."""
    before, after = _alike(one.lines, other.lines)
    tools = sum(_same(fields, other.tools[name]) for name, fields in one.tools.items() if name in other.tools)
    return before + after + tools + _same(one.fields, other.fields)


def changes(earlier: Parts, later: Parts) -> list[Change]:
    """What is different in the later one, the system text first."""
    return [
        *_text_changes(earlier, later),
        *_tool_changes(earlier.tools, later.tools),
        *_field_changes("request", earlier.fields, later.fields),
    ]


# Taking apart


def _sections(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    name = ""
    yield 0, ""
    for number, line in enumerate(lines):
        if not name and (found := _OPENING.fullmatch(line)):
            name = found[1]
            yield number, f"<{name}>"
        elif name and line.strip() == f"</{name}>":
            name = ""
            yield number + 1, ""


def _tools(tools: Sequence[Any], salt: bytes) -> dict[str, Fields]:
    told: dict[str, Fields] = {}
    for number, tool in enumerate(tools[:MAX_TOOLS], 1):
        function = tool.get("function") if isinstance(tool, dict) else None
        given = function.get("name") if isinstance(function, dict) else None
        name = _named(given, f"number {number}")
        told[name if name not in told else f"{name} (number {number})"] = dict(_fields(tool, salt))
    if len(tools) > MAX_TOOLS:
        told["those after"] = {"": _whole(tools[MAX_TOOLS:], salt)}
    return told


def _fields(value: Any, salt: bytes) -> Iterator[tuple[str, bytes]]:
    found = list(_leaves(value, "", MAX_DEPTH))
    yield from ((path, _whole(leaf, salt)) for path, leaf in found[:MAX_FIELDS])
    if len(found) > MAX_FIELDS:
        yield "further fields", _whole([leaf for _, leaf in found[MAX_FIELDS:]], salt)


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value and depth:
        for number, (name, item) in enumerate(value.items(), 1):
            # `function` and `properties` say nothing to whoever reads it.
            step = "" if name in ("function", "properties") else _named(name, f"field {number}")
            yield from _leaves(item, ".".join(filter(None, (path, step))), depth - 1)
    else:
        yield path, value


def _named(value: object, otherwise: str) -> str:
    return value if isinstance(value, str) and _IDENTIFIER.fullmatch(value) else otherwise


def _whole(value: Any, salt: bytes) -> bytes:
    return _hash(orjson.dumps(value), salt)


def _hash(raw: bytes, salt: bytes) -> bytes:
    return blake2b(raw, digest_size=LINE_BYTES, key=salt).digest()


# Comparing


def _same(one: Fields, other: Fields) -> int:
    return sum(other.get(name) == digest for name, digest in one.items())


def _alike(one: bytes, other: bytes) -> tuple[int, int]:
    """How many lines are the same at the beginning, and of the rest at the end."""
    most = min(len(one), len(other)) // LINE_BYTES

    def first_other(line: int, from_end: bool) -> bool:
        at = slice(-line * LINE_BYTES or None, None) if from_end else slice(0, line * LINE_BYTES)
        return bool(line) and one[at] != other[at]

    def count(from_end: bool, limit: int) -> int:
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (low, middle - 1) if first_other(middle, from_end) else (middle, high)
        return low

    before = count(from_end=False, limit=most)
    return before, count(from_end=True, limit=most - before)


def _text_changes(earlier: Parts, later: Parts) -> Iterator[Change]:
    before, after = _alike(earlier.lines, later.lines)
    begin, end, old_end = before, later.n_lines - after, earlier.n_lines - after
    if begin == end == old_end:
        return
    what = "changed" if begin < end and begin < old_end else ("added" if begin < end else "removed")
    shown = later if begin < end else earlier
    yield from _in_sections(shown.sections, begin, end if begin < end else old_end, shown.n_lines, what)


def _in_sections(
    sections: Sequence[tuple[int, str]], begin: int, end: int, n_lines: int, what: str
) -> Iterator[Change]:
    """One change for each section that these lines are in."""
    ends = [*(start for start, _ in sections[1:]), n_lines]
    for (start, name), stop in zip(sections, ends, strict=True):
        first, last = max(begin, start), min(end, stop)
        if first < last:
            of = f"{first - start + 1}" if last - first == 1 else f"{first - start + 1}-{last - start}"
            yield Change("system text", name or "outside sections", what, f"{of} of {stop - start}")


def _tool_changes(earlier: Mapping[str, Fields], later: Mapping[str, Fields]) -> Iterator[Change]:
    for name in earlier:
        if name not in later:
            yield Change("tools", name, "removed")
    for name, fields in later.items():
        if name not in earlier:
            yield Change("tools", name, "added")
        else:
            yield from _field_changes(f"tool {name}", earlier[name], fields)
    if [name for name in earlier if name in later] != [name for name in later if name in earlier]:
        yield Change("tools", "their order", "moved")


def _field_changes(place: str, earlier: Fields, later: Fields) -> Iterator[Change]:
    for name in {**earlier, **later}:
        if earlier.get(name) != later.get(name):
            what = "added" if name not in earlier else "removed" if name not in later else "changed"
            yield Change(place, name or "all of it", what)
    if [name for name in earlier if name in later] != [name for name in later if name in earlier]:
        yield Change(place, "the order of its fields", "moved")
