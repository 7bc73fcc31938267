"""The figures as people read them: a table, a file of JSON, a drawing."""

from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from bench.overhead.figures import Figures, goals

QUANTILES = (0.5, 0.95, 0.99)
COLOURS = {"direct": "#8c8c8c", "this proxy": "#2f6fb3", "bare": "#6aa84f", "nginx": "#b58b00", "hearth": "#b5483a"}
ROW, BAR, LEFT, WIDTH, TEXT = 22, 15, 190, 460, 12


def show(all_of: dict[str, Figures], console: Console) -> None:
    """Everything in two tables."""
    shown = Table(title="milliseconds: p50 / p95 / p99, cpu", box=box.SIMPLE_HEAD, title_justify="left")
    shown.add_column("", no_wrap=True)
    for name in all_of:
        shown.add_column(name, justify="right", no_wrap=True)
    for scenario in all_of["direct"].times:
        shown.add_row(scenario, *(_cell(figures, scenario) for figures in all_of.values()))
    shown.add_row("peak memory, MB", *(f"{f.peak_mb:.0f}" if f.peak_mb else "—" for f in all_of.values()))
    console.print(shown)
    reached = Table(title="reach", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("what", "reached", "at most", ""):
        reached.add_column(column, justify="left" if column == "what" else "right")
    for goal in goals(all_of):
        words = "[green]yes[/]" if goal.is_met else "[red]no[/]"
        reached.add_row(goal.what, f"{goal.reached:.3f} {goal.unit}", f"{goal.bound:.3f} {goal.unit}", words)
    console.print(reached)


def _cell(figures: Figures, scenario: str) -> str:
    if scenario not in figures.times:
        return "—"
    times = " / ".join(f"{figures.ms(scenario, part):.2f}" for part in QUANTILES)
    cpu = f"\n[dim]cpu {figures.cpu_ms(scenario):.3f}[/]" if figures.cpu.get(scenario) else ""
    lost = f"\n[red]{figures.lost[scenario]} lost[/]" if figures.lost.get(scenario) else ""
    return times + cpu + lost


def as_json(all_of: dict[str, Figures], about: dict[str, Any]) -> bytes:
    """Everything that was measured, without the single times."""
    ways = {
        name: {
            "scenarios": {
                scenario: {
                    **{f"p{part * 100:.0f}_ms": round(figures.ms(scenario, part), 4) for part in QUANTILES},
                    "count": figures.counts[scenario],
                    "cpu_ms_each": round(figures.cpu_ms(scenario), 5) if figures.cpu.get(scenario) else None,
                    "lost": figures.lost.get(scenario, 0),
                }
                for scenario in figures.times
            },
            "peak_mb": round(figures.peak_mb, 1),
        }
        for name, figures in all_of.items()
    }
    reach = [
        {"what": goal.what, "reached": round(goal.reached, 4), "at_most": round(goal.bound, 4), "unit": goal.unit}
        for goal in goals(all_of)
    ]
    return orjson.dumps({"about": about, "ways": ways, "reach": reach}, option=orjson.OPT_INDENT_2)


def as_svg(all_of: dict[str, Figures]) -> str:
    """A bar for each way in each scenario, each scenario on a scale of its own: its p50, with the figure beside it."""
    parts: list[str] = []
    y = 10
    for scenario in all_of["direct"].times:
        parts.append(f'<text x="0" y="{y + BAR}" font-weight="bold">{escape(scenario)}, p50 in ms</text>')
        y += ROW
        ways = {name: figures.ms(scenario) for name, figures in all_of.items() if scenario in figures.times}
        most = max(ways.values())
        for name, value in ways.items():
            wide = max(1.0, WIDTH * value / most)
            colour = COLOURS.get(name, "#444444")
            parts += [
                f'<text x="{LEFT - 8}" y="{y + TEXT}" text-anchor="end">{escape(name)}</text>',
                f'<rect x="{LEFT}" y="{y}" width="{wide:.1f}" height="{BAR}" fill="{colour}"/>',
                f'<text x="{LEFT + wide + 6:.1f}" y="{y + TEXT}">{value:.2f}</text>',
            ]
            y += ROW
        y += ROW // 2
    size = f'width="{LEFT + WIDTH + 80}" height="{y}" viewBox="0 0 {LEFT + WIDTH + 80} {y}"'
    style = f'font-family="sans-serif" font-size="{TEXT}" fill="#222222"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<g {style}>\n{body}\n</g>\n</svg>\n'


def write(all_of: dict[str, Figures], about: dict[str, Any], directory: Path) -> list[Path]:
    """The files."""
    directory.mkdir(parents=True, exist_ok=True)
    data, drawing = directory / "overhead.json", directory / "overhead.svg"
    data.write_bytes(as_json(all_of, about))
    drawing.write_text(as_svg(all_of), encoding="utf-8")
    return [data, drawing]
