"""A crowd on a real server, and what is wrong afterwards: the check that the short test and the long one share."""

from collections.abc import Iterator

from proxy.demo.servers import LlamaServer
from proxy.slots.holding import Talk
from tests.load.crowd import Member, live_together
from tests.load.quiet import at_rest, disagreements, idle_server
from tests.serving.running import Answer, Running

CLIENTS = 50
PER_RESUME = 24
BETWEEN_MARKS = 64
"""Where a model can't roll back, a server goes on from a mark; marks are at least so many tokens apart."""
OVERTAKES_S = 0.5
"""A look at the server may hold up one whose turn has come."""
LONGEST_WAIT_S = 30.0
FOUND = {"continue", "resume"}
TURN = 2
"""Messages that a turn adds."""
MOST_ARE_KNOWN = 0.6


async def crowded(proxied: Running, server: LlamaServer, crowd: list[Member], seconds: float) -> list[str]:
    """Let them live, then look and let each conversation go on once; returns what must not be."""
    await live_together(crowd, proxied.client, proxied.base_url, seconds)
    await at_rest(proxied)
    slots = await idle_server(server)
    await proxied.proxy.engine.acquaintance.glance({}, is_needed=True)
    wrong = [failure for member in crowd for failure in member.failures]
    wrong += starved(crowd)
    wrong += overtaken(proxied)
    wrong += disagreements(proxied, slots)
    living = [(member, member.answer) for member in crowd if member.answer is not None]
    before = len(proxied.heard.requests)
    for member, answer in living:
        wrong += await goes_on(proxied, member, answer)
    found = sum(ticket.plan.source in FOUND for ticket in proxied.heard.requests[before:])
    if found < MOST_ARE_KNOWN * len(living):
        wrong.append(f"only {found} of {len(living)} conversations were found again")
    return wrong


def starved(crowd: list[Member]) -> list[str]:
    """Members who waited for too long, or were never served though the others were."""
    waits = [f"waited {wait:.1f} s" for member in crowd for wait in member.waits_s if wait > LONGEST_WAIT_S]
    return waits + ["never served" for member in crowd if not member.waits_s]


def overtaken(proxied: Running) -> list[str]:
    """Requests that were admitted before one that had come earlier."""
    waited = sorted((t for t in proxied.heard.requests if t.queued_ms), key=lambda ticket: ticket.number)
    found, latest, before = [], 0.0, 0
    for ticket in waited:
        admitted = ticket.arrived + ticket.queued_ms / 1000
        if admitted < latest - OVERTAKES_S:
            found.append(f"request {ticket.number} was admitted before {before}")
        latest, before = max((latest, before), (admitted, ticket.number))
    return found


async def goes_on(proxied: Running, member: Member, last: Answer) -> list[str]:
    """One more turn prefills what is new and what finding it again may cost; one that was forgotten gets its prefix."""
    member.go_on()
    known = list(believed(proxied))
    answer = await proxied.ask(member.body)
    new = answer.prompt_tokens - last.prompt_tokens
    told = proxied.last
    is_known = told.need.chain[:-TURN] in known
    if is_known and told.plan.source not in FOUND:
        return [f"a conversation that is known was not found: {told.plan}"]
    most = new if is_known else answer.prompt_tokens - proxied.prefix.n_tokens
    slack = PER_RESUME if proxied.proxy.engine.model.able.rolls_back else PER_RESUME + BETWEEN_MARKS
    if answer.prefilled <= most + slack:
        return []
    how = f"{told.plan.source} {told.plan.reason}"
    return [f"a turn with {new} new tokens prefilled {answer.prefilled} of {answer.prompt_tokens}: {how}"]


def believed(proxied: Running) -> Iterator[tuple[bytes, ...]]:
    """The conversations that are believed to be in a slot or in host memory, whole."""
    ledger = proxied.proxy.engine.model.ledger
    for holds in (*ledger.copies.values(), *(belief.holds for belief in ledger.slots)):
        if isinstance(holds, Talk) and holds.is_whole:
            yield holds.chain
