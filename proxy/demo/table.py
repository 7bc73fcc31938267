"""The demo's result as a person reads it: a row a turn, direct beside proxied, within eighty columns.

Owns: the records of a comparison and how they look. What the proxy itself had the server prefill is in no turn's own
figures, so the caption tells what either server counted in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from proxy.demo.asking import Turn

MUCH = 0.5  # a proxied turn that prefills less than this share of the direct one is shown in green
BOTH = "direct proxied"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same turn, both ways, and how the proxy says that it came to be warm."""

    direct: Turn
    proxied: Turn
    source: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """All turns of a scene, and all that either server prefilled: what the proxy itself had it prefill included."""

    comparisons: list[Comparison]
    direct_prefilled: int
    proxied_prefilled: int


def table(title: str, outcome: Outcome) -> Table:
    """The whole comparison, sums below."""
    caption = (
        f"prefilled by the server in all: {outcome.direct_prefilled:,} tokens directly, "
        f"{outcome.proxied_prefilled:,} through the proxy, warm-ups included"
    )
    shown = Table(title=title, title_style="bold", caption=caption, box=box.SIMPLE_HEAD, show_footer=True)
    shown.pad_edge = False
    shown.collapse_padding = True
    shown.title_justify = shown.caption_justify = "left"
    shown.add_column("session", "all", no_wrap=True)
    shown.add_column("source", no_wrap=True)
    for name, total in zip(_names(), _figures(outcome.comparisons), strict=True):
        shown.add_column(name, total, justify="right", no_wrap=True)
    for pair in outcome.comparisons:
        shown.add_row(f"{pair.direct.session} {pair.direct.number}", pair.source, *_figures([pair]))
    return shown


def _names() -> list[str]:
    return ["prompt\ntokens", f"prefilled\n{BOTH}", f"reused\n{BOTH}", f"first token, ms\n{BOTH}"]


def _figures(pairs: Sequence[Comparison]) -> list[str]:
    """Prompt tokens, then what was prefilled and reused and how long the first token took, summed over the pairs."""
    direct, proxied = [pair.direct for pair in pairs], [pair.proxied for pair in pairs]
    prefilled = sum(turn.prefilled for turn in direct), sum(turn.prefilled for turn in proxied)
    reused = sum(turn.reused for turn in direct), sum(turn.reused for turn in proxied)
    first_token_ms = sum(turn.first_token_ms for turn in direct), sum(turn.first_token_ms for turn in proxied)
    style = "green" if prefilled[1] < MUCH * prefilled[0] else "none"
    both = [f"{before:,.0f} [{style}]{after:>7,.0f}[/]" for before, after in (prefilled, reused, first_token_ms)]
    return [f"{sum(turn.prompt_tokens for turn in proxied):,}", *both]
