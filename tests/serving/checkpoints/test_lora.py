"""Adapters are part of what a state was made with: another one, or another scale, never answers from it."""

import os
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest

from proxy.demo.models import LAYERS, WIDTH
from proxy.demo.servers import LlamaServer
from proxy.serving.saving import ADAPTERS
from tests.conftest import StartLlama
from tests.serving.checkpoints.persisting import DENSE, EXACT, QUIET, TOKENS, Place, crash, told
from tests.serving.running import Answer, Running, ask_directly, ask_server, distance, sessions

pytestmark = pytest.mark.usefixtures("unwatched")
RANK = 2


def adapter(path: Path, seed: int) -> Path:
    """An adapter for the tiny dense model that changes what its layers attend to."""
    random = np.random.default_rng(seed)
    with closing(gguf.GGUFWriter(path, "llama")) as writer:
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", float(RANK))
        for layer in range(LAYERS):
            for half, shape in (("a", (RANK, WIDTH)), ("b", (WIDTH, RANK))):
                matrix = random.standard_normal(shape).astype(np.float32) * 0.3
                writer.add_tensor(f"blk.{layer}.attn_q.weight.lora_{half}", matrix)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    return path


async def cold_after_a_start(server: LlamaServer, *flags: str, under: Running | None = None) -> Answer:
    """What a server started with these flags says; it is left as fresh as it was."""
    crash(server, *flags)
    (answer,) = await ask_directly(server, {**told("/new"), "cache_prompt": False})
    crash(server, *flags, under=under)
    return answer


async def ask_new(proxied: Running) -> Answer:
    return await proxied.ask(told("/new"))


async def test_an_adapter_and_its_scale_have_checkpoints_of_their_own(
    start_llama: StartLlama, place: Place, tmp_path: Path
) -> None:
    """Without, with, and with half of it: each is built once, answers as a cold server, and is restored later."""
    file = adapter(tmp_path / "a.gguf", 1)
    ways = [(), ("--lora", str(file)), ("--lora-scaled", f"{file}:0.5")]
    server = place.start(start_llama, DENSE, *EXACT, "-np", "1")
    answers = []
    async with place.proxy(server) as proxied:
        for flags in ways:
            expected = await cold_after_a_start(server, *flags, under=proxied)
            answers.append(expected)
            assert QUIET > distance(expected, await ask_new(proxied))
        for flags, expected in zip(ways, answers, strict=True):
            crash(server, *flags, under=proxied)
            assert QUIET > distance(expected, await ask_new(proxied))
        assert ["warm-up"] * 3 + ["restore"] * 3 == proxied.sources
    assert 3 == len(place.files())
    assert 10 * QUIET < min(distance(answers[0], answers[1]), distance(answers[1], answers[2]))


async def test_another_adapter_behind_the_same_path_is_another_one(
    start_llama: StartLlama, place: Place, tmp_path: Path
) -> None:
    """A file that was replaced makes another key: nothing is restored to be found wrong."""
    file = adapter(tmp_path / "a.gguf", 1)
    server = place.start(start_llama, DENSE, *EXACT, "-np", "1", "--lora", str(file))
    async with place.proxy(server) as proxied:
        await proxied.ask(sessions("/old", tokens=TOKENS)[0])
        adapter(file, 2)
        os.utime(file, (1000, 1000))
        expected = await cold_after_a_start(server, under=proxied)
        assert QUIET > distance(expected, await ask_new(proxied))
        assert ["warm-up", "warm-up"] == proxied.sources
        assert [] == proxied.heard.troubles
    assert 2 == len(place.files())


async def set_scale(proxied: Running, server: LlamaServer, scale: float, *, directly: bool) -> None:
    told = [{"id": 0, "scale": scale}]
    if directly:
        await ask_server(server, "/lora-adapters", told)
        return
    url = f"http://127.0.0.1:{proxied.proxy.port}/lora-adapters"
    async with proxied.client.post(url, json=told) as response:
        assert 200 == response.status


@pytest.mark.parametrize("directly", [False, True], ids=["through-us", "directly"])
async def test_a_scale_changed_while_the_server_runs_gets_no_checkpoint_of_the_old_one(
    start_llama: StartLlama, place: Place, tmp_path: Path, directly: bool
) -> None:
    """The server goes on with what it holds of the old scale: none of it is saved as of the new one, nor restored."""
    file = adapter(tmp_path / "a.gguf", 1)
    server = place.start(start_llama, DENSE, *EXACT, "-np", "1", "--lora", str(file))
    quarter = ("--lora-scaled", f"{file}:0.25")
    expected = await cold_after_a_start(server, *quarter)
    crash(server)
    async with place.proxy(server) as proxied:
        for seed in (1, 8):
            await proxied.ask(sessions("/old", tokens=TOKENS, seed=seed)[0])
        await set_scale(proxied, server, 0.25, directly=directly)
        for seed in (1, 8, 9, 1):
            await proxied.ask(sessions("/new", tokens=TOKENS, seed=seed)[0])
        assert "restore" not in proxied.sources
        assert 2 == len(place.files())
        assert f"not_saved:{ADAPTERS}" in proxied.heard.troubles
        for _ in range(2):
            crash(server, *quarter, under=proxied)
            assert QUIET > distance(expected, await ask_new(proxied))
        assert ["warm-up", "restore"] == proxied.sources[-2:]
