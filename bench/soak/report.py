"""The mix as people read it: a row for each day while it runs, then what grew and what was wrong; and as JSON."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.text import Text

from bench.soak.mix import Day, Outcome

HEADS = (
    "minute",
    "asked",
    "fine",
    "left",
    "excused",
    "WRONG",
    "reuse",
    "MB",
    "fds",
    "tasks",
    "queue",
    "p95 ms",
    "faults",
)
WIDTHS = (7, 6, 6, 5, 8, 6, 6, 6, 4, 9, 6, 7, 0)
MOST_A_DAY, MOST_SHOWN = 4, 40
LEGEND = (
    "MB, fds, tasks: of the proxy at rest after that day (and the most under load); queue: the most that waited; "
    "p95: until the headers of chats while nothing was wrong; excused: answers spoilt by a fault of the server."
)


class Table:
    """Writes a row whenever a day is over: an hour is long."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self, words: str) -> None:
        self._console.print(words, highlight=False)
        self._row(HEADS, style="bold")

    def day(self, day: Day) -> None:
        tally, rest = day.tally, day.rest
        faults = ", ".join(f"{name} {count}" if count > 1 else name for name, count in day.faults.items())
        cells = (
            f"{day.ended_at_s / 60:.1f}", tally.asked.total(), tally.fine.total(), tally.left.total(),
            tally.excused.total(), len(day.wrong), f"{day.reuse:.0%}", f"{rest.rss_mb:.1f}", rest.fds,
            f"{rest.tasks} ({day.most_tasks})", day.most_waiting, f"{tally.p95_s * 1000:.0f}", faults,
        )  # fmt: skip
        self._row(cells, style="red" if day.wrong else "")
        for words in day.wrong[:MOST_A_DAY]:
            self._console.print(Text(f"        {words}", style="red"), soft_wrap=True)

    def end(self, outcome: Outcome) -> None:
        self._console.print(LEGEND, style="dim", highlight=False)
        self._console.print(_kinds(outcome), highlight=False)
        counts = ", ".join(f"{name} {count}" for name, count in outcome.counted.items())
        self._console.print(f"the proxy's own counts: {counts}", highlight=False)
        for grown in outcome.grown:
            self._console.print(str(grown), style="red" if grown.is_too_much else "", highlight=False)
        for words in outcome.wrong[:MOST_SHOWN]:
            self._console.print(Text(words, style="red"), soft_wrap=True)
        if (more := len(outcome.wrong) - MOST_SHOWN) > 0:
            self._console.print(f"… and {more} more", style="red")
        said = f"{outcome.compared} answers compared with a quiet server's; seed {outcome.seed}: "
        self._console.print(said + ("FAILED" if outcome.has_failed else "fine"), style="bold", highlight=False)

    def _row(self, cells: Iterable[Any], style: str) -> None:
        line = " ".join(str(cell).rjust(width) for cell, width in zip(cells, WIDTHS, strict=True))
        self._console.print(Text(line, style=style), soft_wrap=True)


def _kinds(outcome: Outcome) -> str:
    """How many there were of each kind of request, and by what spoilt ones were excused."""
    asked = {
        name: sum(day.tally.asked[name] for day in outcome.days) for day in outcome.days for name in day.tally.asked
    }
    excused = {
        name: sum(day.tally.excused[name] for day in outcome.days) for day in outcome.days for name in day.tally.excused
    }
    lines = [f"{label}: {', '.join(f'{name} {count}' for name, count in sorted(of.items()))}" for label, of in (
        ("requests", asked), ("excused", excused),
    )]  # fmt: skip
    return "\n".join(lines)


def write(outcome: Outcome, about: dict[str, Any], directory: Path) -> Path:
    """The file."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "soak.json"
    days = [
        {
            "ended_at_s": round(day.ended_at_s, 1),
            **{name: dict(getattr(day.tally, name)) for name in ("asked", "fine", "left", "excused")},
            "wrong": day.wrong,
            "p95_ms": round(day.tally.p95_s * 1000, 1),
            "faults": day.faults,
            "reuse": round(day.reuse, 4),
            "most": {"waiting": day.most_waiting, "tasks": day.most_tasks, "rss_mb": day.most_rss_mb},
            "rest": asdict(day.rest),
        }
        for day in outcome.days
    ]
    grown = [{**asdict(one), "is_too_much": one.is_too_much} for one in outcome.grown]
    told = {
        "about": about,
        "failed": outcome.has_failed,
        "counted": outcome.counted,
        "wrong": outcome.wrong,
        "growth": grown,
        "days": days,
    }
    path.write_bytes(orjson.dumps(told, option=orjson.OPT_INDENT_2))
    return path
