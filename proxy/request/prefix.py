r"""The stable prefix: what all sessions of one install have in common at the start of their system text.

A coding agent writes one long system message. What belongs to the install (rules, tool notes, documentation paths,
the user's own addendum) comes first, and what belongs to the folder and the day (project files, skills, the date,
the working directory) comes last. The earliest opening of such a section is the boundary; the text before it,
trailing whitespace stripped, is the stable prefix.

The openings below are Pi's, all versions together, since their wordings never collide:

- up to 0.74: a `# Project Context` heading, then skills, `Current date: `, `Current working directory: `;
- 0.75 to 0.81: `<project_context>`, then skills, date and directory as before; 0.82 to 0.85: no date;
- from 0.86: `<project_context>`, `<skills>`, `<cwd>`, each a section of its own, then those of extensions.

Each carries the line breaks it is written with, so the same words in a sentence are no boundary. A section of the
user's own (`<addendum>`) is the same in every folder and stays in. An opening that the stable text happens to quote
exactly makes the prefix shorter, never wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.request.body import ChatRequest

MARKERS: tuple[str, ...] = (
    "\n\n# Project Context\n\n",
    "\n\n<project_context>\n",
    "\n\nThe following skills provide specialized instructions for specific tasks.\n",
    "\n\n<skills>\n",
    "\n\n<cwd>\n",
    "\nCurrent date: ",
    "\nCurrent date and time: ",
    "\nCurrent working directory: ",
)
SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class StablePrefix:
    """The stable text, and where it was found."""

    text: str
    role: str
    marker: str
    """The opening that ended it."""
    position: int
    """Index of the message."""


@dataclass(frozen=True, slots=True)
class NoPrefix:
    """Why a request has no stable prefix."""

    reason: str
    """`no_system_message`, `non_text_part`, `no_boundary` or `empty_prefix`."""


def stable_prefix(request: ChatRequest, extra_markers: Sequence[str] = ()) -> StablePrefix | NoPrefix:
    """Find the stable prefix in the first system or developer message."""
    position = next((i for i, m in enumerate(request.messages) if m.get("role") in SYSTEM_ROLES), None)
    if position is None:
        return NoPrefix("no_system_message")
    message = request.messages[position]
    text = joined_text(message.get("content"))
    if text is None:
        return NoPrefix("non_text_part")
    boundary = _boundary(text, (*MARKERS, *extra_markers))
    if boundary is None:
        return NoPrefix("no_boundary")
    end, marker = boundary
    stable = text[:end].rstrip()
    if not stable:
        return NoPrefix("empty_prefix")
    return StablePrefix(text=stable, role=str(message["role"]), marker=marker, position=position)


def joined_text(content: object) -> str | None:
    """The text of a content as the server joins it for a template without parts; None if it is not all text.

    A line break goes between two parts, but none before the first part that has any text.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    text = ""
    for part in content:
        piece = _text_of(part)
        if piece is None:
            return None
        text = f"{text}\n{piece}" if text else piece
    return text


def with_tail(content: str | list[dict[str, Any]], kept: int, tail: str) -> str | list[dict[str, Any]]:
    """The same content, in the same shape, with everything after `kept` characters of its joined text replaced."""
    if isinstance(content, str):
        return content[:kept] + tail
    parts: list[dict[str, Any]] = []
    end = 0
    for part in content:
        start = end + 1 if end else 0
        end = start + len(part["text"])
        if end >= kept:
            return [*parts, {**part, "text": part["text"][: kept - start] + tail}]
        parts.append(part)
    return parts


def _text_of(part: object) -> str | None:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    return None


def _boundary(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """The earliest marker and where it begins; of two that begin together, the longer."""
    found = ((text.find(marker), marker) for marker in markers if marker)
    return min((hit for hit in found if hit[0] >= 0), key=lambda hit: (hit[0], -len(hit[1])), default=None)
