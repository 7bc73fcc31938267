"""The results of `prefill` as a person reads them: a table a trace, a row a server, a column a way.

Owns: how outcomes look. In each cell the prompt tokens that were prefilled (answers and warm-ups) and the efficiency,
below it the server's own count, which knows the proxy's probes and verifications too.
"""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from bench.runs import Outcome

GOOD, BAD = 0.95, 0.8
LEGEND = (
    "prefilled: answers and warm-ups, efficiency = ideal / prefilled. Below, dim: the server's own count of all that "
    "it prefilled, probes and verifications included. ideal: each token of each distinct beginning once."
)


def table(title: str, outcomes: Sequence[Outcome], ways: Sequence[str]) -> Table:
    """All outcomes of one trace."""
    shown = Table(title=title, title_style="bold", box=box.SIMPLE_HEAD, title_justify="left")
    shown.add_column("server", no_wrap=True)
    shown.add_column("ideal", justify="right")
    for way in ways:
        shown.add_column(way, justify="right", no_wrap=True)
    for config in dict.fromkeys(outcome.config for outcome in outcomes):
        row = {outcome.way: outcome for outcome in outcomes if outcome.config == config}
        ideal = next(iter(row.values())).ideal
        shown.add_row(config, f"{ideal:,}", *(_cell(row.get(way)) for way in ways))
    return shown


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "—"
    style = "green" if outcome.efficiency >= GOOD else "red" if outcome.efficiency < BAD else "yellow"
    lost = f" [red]{outcome.lost} lost[/]" if outcome.lost else ""
    return f"{outcome.total:,} [{style}]{outcome.efficiency:.2f}[/]{lost}\n[dim]{outcome.server:,}     [/]"
