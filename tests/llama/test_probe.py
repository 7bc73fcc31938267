"""The probe, on real servers: what each kind of model and each flag that matters looks like to it."""

import asyncio
import re
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.models import Kind
from proxy.demo.servers import LlamaServer
from proxy.llama import probe as probing
from proxy.llama.client import Auth, LlamaClient
from proxy.llama.model_file import sliding_window
from proxy.llama.probe import HALF, N_TOKENS, Probed, probe
from proxy.llama.replies import SlotFile, Warmed
from proxy.slots.capabilities import Capabilities
from tests.conftest import StartLlama
from tests.llama.calling import NO_KEY, calling

ONE = ("-np", "1")
QUESTIONS = 8
Seen = dict[str, bool | int | None]
HYBRID: Seen = {"reuses": True, "finds_alike": True, "keeps_copies": True, "rolls_back": False}
DENSE: Seen = {**HYBRID, "rolls_back": True, "mark_distance": None}
SEEN: list[tuple[Kind, tuple[str, ...], Seen]] = [
    ("dense", ONE, DENSE | {"clears_idle": False}),
    ("dense", (), DENSE | {"clears_idle": True}),
    ("dense", (*ONE, "--cache-ram", "0"), DENSE | {"keeps_copies": False}),
    ("dense", (*ONE, "--no-cache-prompt"), DENSE | {"reuses": False}),
    ("dense", ("-np", "2", "--slot-prompt-similarity", "0"), {"finds_alike": False}),
    ("dense", (*ONE, "--slot-prompt-similarity", "0"), DENSE),
    ("hybrid", ONE, HYBRID),
    ("hybrid", (), HYBRID | {"clears_idle": True, "is_windowed": False}),
    ("hybrid", ("--no-cache-prompt",), HYBRID | {"reuses": False}),
    ("hybrid", ("--slot-prompt-similarity", "0"), {"finds_alike": False}),
    ("swa", ONE, HYBRID | {"mark_distance": 0, "is_windowed": True}),
    ("swa", (*ONE, "--swa-full"), DENSE | {"copies_roll_back": False}),
    ("dense", ONE, DENSE | {"copies_roll_back": None}),
]


async def probed(server: LlamaServer, slots: int) -> Probed:
    window = await asyncio.to_thread(sliding_window, str(server.model))
    async with calling(server.port) as client:
        able = Capabilities(total_slots=slots, shows_slots=True, window=window)
        return await probe(client, able, NO_KEY, None, 10.0)


@pytest.mark.parametrize(("kind", "flags", "expected"), SEEN, ids=lambda value: str(value)[:40])
async def test_what_a_server_is_seen_to_do(
    start_llama: StartLlama, kind: Kind, flags: tuple[str, ...], expected: Seen
) -> None:
    """Each finding as the server is known to behave with these flags."""
    slots = {"1": 1, "2": 2}[flags[1]] if flags[:1] == ("-np",) else 4
    found = asdict((await probed(start_llama(kind, *flags), slots)).able)
    assert expected == {name: found[name] for name in expected}


async def test_where_the_checkpoint_lies_that_later_turns_leave(start_llama: StartLlama) -> None:
    """On a hybrid model: at the prefix's end, or as far before a prompt's end as a batch is long, where that shows."""
    usual, small = [
        (await probed(start_llama("hybrid", *ONE, *flags), 1)).able.mark_distance for flags in ((), ("-ub", "64"))
    ]
    assert (usual, small) in ((0, 0), (512 + 4, 64 + 4))


async def test_with_files_too(start_llama: StartLlama, tmp_path: Path) -> None:
    """Where conversations can be gone back in decides whether a restore is better."""
    server = start_llama("hybrid", *ONE, "--slot-save-path", str(tmp_path))
    async with calling(server.port) as client:
        able = (await probe(client, Capabilities(total_slots=1, shows_slots=True), NO_KEY, "probe.bin", 10.0)).able
    assert (True, True) == (able.restores, able.mark_distance in (0, 516))


@pytest.mark.parametrize("flags", [(), (*ONE, "--cache-ram", "0")], ids=["default", "one"])
@pytest.mark.parametrize("kind", ["dense", "hybrid"])
async def test_somebody_elses_request_meanwhile_does_not_put_an_end_to_everything(
    start_llama: StartLlama, monkeypatch: pytest.MonkeyPatch, kind: Kind, flags: tuple[str, ...]
) -> None:
    """Whichever question it comes before: that the server makes use of what slots hold is found out all the same."""
    asked = stranger_comes = 0

    def beside_a_stranger(call: Callable[..., Awaitable[Warmed]]) -> Callable[..., Awaitable[Warmed]]:
        async def ask(client: LlamaClient, *given: Any) -> Warmed:
            nonlocal asked
            asked += 1
            if asked == stranger_comes:
                await prefill(client, range(10, 150), NO_KEY, 10.0)
            return await call(client, *given)

        return ask

    prefill = LlamaClient.prefill
    monkeypatch.setattr(LlamaClient, "prefill", beside_a_stranger(prefill))
    monkeypatch.setattr(LlamaClient, "prefill_plainly", beside_a_stranger(LlamaClient.prefill_plainly))
    server = start_llama(kind, *flags)
    found: list[tuple[bool | None, bool | None]] = []
    for stranger_comes in range(1, QUESTIONS):  # noqa: B007
        asked = 0
        able = (await probed(server, 1 if flags else 4)).able
        found.append((able.reuses, able.finds_alike))
    assert [(True, True)] * len(found) == found


async def test_somebody_elses_request_just_after_a_restore_does_not_put_an_end_to_saving(
    start_llama: StartLlama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was restored was not reused then, as it was gone: that is asked again."""
    restore, n_restored = LlamaClient.restore, 0

    async def and_a_stranger(client: LlamaClient, *given: Any) -> SlotFile:
        nonlocal n_restored
        n_restored += 1
        done = await restore(client, *given)
        if n_restored == 1:
            await client.prefill(range(10, 150), NO_KEY, 10.0)
        return done

    monkeypatch.setattr(LlamaClient, "restore", and_a_stranger)
    server = start_llama("dense", *ONE, "--cache-ram", "0", "--slot-save-path", str(tmp_path))
    async with calling(server.port) as client:
        able = (await probe(client, Capabilities(total_slots=1, shows_slots=True), NO_KEY, "probe.bin", 10.0)).able
    assert (True, 2) == (able.restores, n_restored)


async def test_its_cost_does_not_depend_on_chance(start_llama: StartLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random tokens that happen to go on as the prompt does are not taken: they would spare the server one."""
    words: list[int] = []

    async def chosen(client: LlamaClient, auth: Auth) -> list[int]:
        return words or await probing_tokens(client, auth)

    probing_tokens = probing._random_tokens
    monkeypatch.setattr(probing, "_random_tokens", chosen)
    cost = []
    for is_rigged in (False, True):
        server = start_llama("dense", *ONE, "--metrics")
        if is_rigged:
            async with calling(server.port) as client:
                words = await probing_tokens(client, NO_KEY)
            words[N_TOKENS : N_TOKENS + 2] = [words[HALF], words[HALF]]
        await probed(server, 1)
        cost.append(prefilled(server))
    assert cost[0] == cost[1]


def prefilled(server: LlamaServer) -> int:
    """Prompt tokens by the server's own count."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        told = re.search(r"^llamacpp:prompt_tokens_total (\d+)", answer.read().decode(), re.MULTILINE)
    assert told is not None
    return int(told[1])
