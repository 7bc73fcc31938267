"""What the doctor says: findings, each with a grade and with what to change."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from rich.text import Text

from proxy.commands.shown import console, plain


class Grade(IntEnum):
    """How good it is; the worst one is the exit code."""

    OK = 0
    ADVICE = 1
    """It works, with less than there could be, or could not be looked at."""
    WRONG = 2
    """Something that is wanted does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    check: str
    grade: Grade
    words: str
    change: str = ""
    """The flag or setting to change, and how."""


def ok(check: str, words: str) -> Finding:
    """All is well."""
    return Finding(check, Grade.OK, words)


def advice(check: str, words: str, change: str = "") -> Finding:
    """It could be better."""
    return Finding(check, Grade.ADVICE, words, change)


def wrong(check: str, words: str, change: str) -> Finding:
    """It must be changed."""
    return Finding(check, Grade.WRONG, words, change)


def worst(findings: Iterable[Finding]) -> Grade:
    """The grade of all together."""
    return max((one.grade for one in findings), default=Grade.OK)


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """For programs."""
    told = [
        {"check": one.check, "grade": one.grade.name.lower(), "words": one.words, "change": one.change}
        for one in findings
    ]
    return {"grade": worst(findings).name.lower(), "findings": told}


_STYLES = {Grade.OK: "green", Grade.ADVICE: "yellow", Grade.WRONG: "bold red"}


def print_out(findings: Sequence[Finding]) -> None:
    """For people: a line each, and under it what to change."""
    screen = console()
    width = max(len(one.check) for one in findings)
    for one in findings:
        name = one.grade.name.lower()
        head = Text.assemble((f"{name:<7}", _STYLES[one.grade]), f" {one.check:<{width}}  {plain(one.words)}")
        screen.print(head, soft_wrap=True)
        if one.change:
            screen.print(Text(f"{'':<{width + 8}}  → {plain(one.change)}"), soft_wrap=True)
    screen.print(Text(_sum(findings), style=_STYLES[worst(findings)]))


def _sum(findings: Sequence[Finding]) -> str:
    counts = {grade: sum(one.grade is grade for one in findings) for grade in Grade}
    if not counts[Grade.WRONG] and not counts[Grade.ADVICE]:
        return "nothing wrong"
    return f"{counts[Grade.WRONG]} wrong, {counts[Grade.ADVICE]} advice"
