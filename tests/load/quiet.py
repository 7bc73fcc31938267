"""What is true of a proxy when nobody asks anything: nothing is held, and it believes what the server says."""

import asyncio
from typing import Any

from proxy.demo.servers import LlamaServer
from proxy.slots.holding import Unknown
from proxy.slots.ledger import LENGTH_TOLERANCE
from tests.serving.running import Running, ask_server

QUIET_S = 5.0


async def idle_server(server: LlamaServer) -> list[dict[str, Any]]:
    """The slots, as soon as none of them works: one whose client left goes on for a moment."""
    async with asyncio.timeout(QUIET_S):
        while any(slot["is_processing"] for slot in await ask_server(server, "/slots")):
            await asyncio.sleep(0.05)
        return list(await ask_server(server, "/slots"))


async def at_rest(proxied: Running) -> None:
    """Wait until nothing is held for any request: no place, no lease, no turn; fails where something stays."""
    model = proxied.proxy.engine.model
    try:
        async with asyncio.timeout(QUIET_S):
            while held(proxied):
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"still held: {held(proxied)}, {model.gate}, {model.ledger}") from None


def held(proxied: Running) -> list[str]:
    """What is held for requests."""
    model = proxied.proxy.engine.model
    found = {
        "places": model.gate.inside,
        "waiting": model.gate.waiting,
        "leases": [belief.slot for belief in model.ledger.slots if belief.lease],
        "turn": not model.turn.is_free,
        "settling": model.settling,
        "flights": model.flights,
        "interest": +model.interest,
        "displaced": model.ledger.displaced,
    }
    return [name for name, what in found.items() if what]


def disagreements(proxied: Running, slots: list[dict[str, Any]]) -> list[str]:
    """Where the ledger believes other than the server shows, in task numbers and lengths."""
    found = []
    for slot, belief in zip(slots, proxied.proxy.engine.model.ledger.slots, strict=True):
        task, n_tokens = slot.get("id_task"), slot.get("n_prompt_tokens", 0)
        if belief.seen is None or task not in (belief.seen.task, None):
            found.append(f"slot {belief.slot}: task {task}, believed {belief.seen}")
        far = abs(n_tokens - belief.holds.n_tokens) > LENGTH_TOLERANCE
        if far and task is not None and not isinstance(belief.holds, Unknown):
            found.append(f"slot {belief.slot}: {n_tokens} tokens, believed {belief.holds!r}")
    return found
