"""How figures look in a terminal: sizes, ages, tables that also read well in a pipe."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleRenderable, JustifyMethod
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 200
ROOMY = 120
"""Columns of a terminal from which on there is room between those of a table."""
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def console() -> Console:
    """Where answers for people go; a pipe is given whole lines."""
    is_terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if is_terminal else PIPE_WIDTH, highlight=False)


def size(count: int) -> str:
    """`4.2 MB`."""
    return decimal(count, precision=1)


def age(seconds: float) -> str:
    """`3 h`: the largest unit that fits."""
    for length, unit in _STEPS:
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return "0 s"


def tokens(count: float | None) -> str:
    """`13,000`, or nothing where it isn't known."""
    return "" if count is None else f"{count:,.0f}"


def plain(value: object) -> str:
    """Text that can't set up the terminal: no control characters."""
    return "".join(c if c.isprintable() else "?" for c in str(value))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[str] = (), yields: Iterable[str] = ()
) -> Table:
    """A table without frame; the named columns stand to the right, or give way where it is narrow.

    The others keep their whole width: a number or key cut short is worse than none.
    """
    to_right, giving = set(right), set(yields)
    gap = 2 if console().width >= ROOMY else 1
    made = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for column in columns:
        justify: JustifyMethod = "right" if column in to_right else "left"
        made.add_column(column, justify=justify, no_wrap=column not in giving, overflow="ellipsis")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, ConsoleRenderable) else Text(plain(cell)) for cell in row))
    return made
