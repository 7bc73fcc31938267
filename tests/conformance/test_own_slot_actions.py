"""A client that acts on slots itself gets its way, and nothing is believed of that slot any more."""

from pathlib import Path
from typing import Any

import pytest

from proxy.slots.holding import Talk, Unknown
from tests.conftest import StartLlama
from tests.serving.running import Running, running, sessions

BEFORE = "before.bin"


async def act(proxied: Running, slot: int, action: str, body: Any) -> dict[str, Any]:
    url = f"{proxied.base_url.removesuffix('/v1')}/slots/{slot}?action={action}"
    async with proxied.client.post(url, json=body) as answer:
        assert 200 == answer.status
        told: dict[str, Any] = await answer.json()
        return told


@pytest.mark.parametrize(
    ("kind", "action"), [("dense", "erase"), ("dense", "restore"), ("dense", "save"), ("hybrid", "restore")]
)
async def test_acting_on_the_slot_that_holds_the_prefix(
    start_llama: StartLlama, tmp_path: Path, kind: Any, action: str
) -> None:
    """The slot is what its client made of it; the next session claims nothing of what was there, and is served."""
    first, second, third = sessions("/a", "/b", "/c", tokens=600)
    server = start_llama(kind, "-np", "1", "--slot-save-path", str(tmp_path))
    async with running(server) as proxied:
        (other,) = sessions("/elsewhere", tokens=500, seed=5)
        await proxied.ask({**other, "id_slot": 0})
        assert 0 < (await act(proxied, 0, "save", {"filename": BEFORE}))["n_saved"]
        await proxied.ask(first)
        assert not isinstance(held(proxied), Unknown)
        told = await act(proxied, 0, action, {"filename": BEFORE})
        assert isinstance(held(proxied), Unknown)
        answers = [await proxied.ask(second), await proxied.ask(third)]
        expected = proxied.prefix.n_tokens
    assert 0 == told["id_slot"]
    assert [200, 200] == [answer.status for answer in answers]
    if proxied.reasons[2] == "host_memory_begins_with_prefix":  # an anchor, which no action on a slot touches
        assert answers[0].reused >= expected
    else:
        assert proxied.sources[2] not in {"hit", "continue", "resume"}
    assert answers[1].reused >= expected
    assert [] == [reason for reason in proxied.heard.troubles if reason.startswith("claim:")]


async def test_a_request_for_a_slot_of_its_own(start_llama: StartLlama) -> None:
    """It runs in the slot that it names, though that holds the prefix; the next session claims nothing of it."""
    first, second, third = sessions("/a", "/b", "/c", tokens=600)
    server = start_llama("dense", "-np", "2", "--no-kv-unified")
    async with running(server) as proxied:
        await proxied.ask(first)
        ledger = proxied.proxy.engine.model.ledger
        (slot,) = [belief.slot for belief in ledger.slots if isinstance(belief.holds, Talk)]
        (other,) = sessions("/elsewhere", tokens=500, seed=5)
        answer = await proxied.ask({**other, "id_slot": slot})
        assert isinstance(ledger.slots[slot].holds, Unknown)
        answers = [await proxied.ask(second), await proxied.ask(third)]
        expected = proxied.prefix.n_tokens
    assert 200 == answer.status
    assert (slot, "own_slot") == (proxied.heard.requests[1].slot, proxied.reasons[1])
    assert proxied.sources[2] not in {"hit", "continue", "resume"}
    assert answers[1].reused >= expected
    assert [] == [reason for reason in proxied.heard.troubles if reason.startswith("claim:")]


def held(proxied: Running) -> Any:
    """What the only slot is believed to hold."""
    return proxied.proxy.engine.model.ledger.slots[0].holds
