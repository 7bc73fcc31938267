"""Tickets as they are when their request is over, made up."""

from typing import Any

from proxy.llama.answer import Figures
from proxy.serving.ticket import Ticket
from proxy.serving.visit import Visit
from proxy.slots.plan import Plan, Source, Warm


def ticket(
    source: Source = Source.HIT, prefilled: int = 30, reused: int | None = 2800, *, status: int = 200, steps: int = 0
) -> Ticket:
    """One that was answered, or by nobody where the status is 0."""
    visit = Visit(None, None, "", may_prepare=True, client="pi", auth={})

    def ignore(_: Any) -> None: ...

    one = Ticket(1, visit, ignore, ignore, 25.0)
    one.plan = Plan(source, "some_reason", (Warm("k"),) * steps)
    one.status, one.has_begun, one.is_whole = status, bool(status), bool(status)
    one.figures = Figures(prefilled, reused, 8, 10.0, 10.0, "timings") if status == 200 else None
    one.ours_ms, one.queued_ms, one.first_token_ms = 14.0, 4.0, 40.0
    return one
