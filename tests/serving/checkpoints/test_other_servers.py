"""A state that another model, other settings or another build made answers nobody."""

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.checkpoints.index_file import write_index
from proxy.checkpoints.inspection import seal_of
from proxy.checkpoints.key import FileKind
from tests.conftest import StartLlama
from tests.serving.checkpoints.persisting import (
    DENSE,
    EXACT,
    HYBRID,
    QUIET,
    TOKENS,
    Calls,
    Place,
    crash,
    saved,
    told,
)
from tests.serving.checkpoints.prepared import PROBES, ask_new, recovers, started
from tests.serving.running import ask_directly, distance, sessions

pytestmark = pytest.mark.usefixtures("unwatched")


async def test_a_file_of_another_model_is_put_aside(start_llama: StartLlama, place: Place, tmp_path: Path) -> None:
    """The state of a hybrid model under the name of a dense one's is found out here, not by the server."""
    server, cold = await started(start_llama, place)
    other = Place(tmp_path / "other")
    stranger = other.start(start_llama, HYBRID, "-np", "1")
    path = await saved(other, stranger)
    stranger.kill()
    shutil.copy(path, place.checkpoint)
    async with place.proxy(server) as proxied:
        answer = await ask_new(proxied)
        assert ["warm-up"] == proxied.sources
    assert QUIET > distance(cold, answer)
    assert 1 == len(place.files(FileKind.BAD))
    assert await recovers(place, server)


async def of_other_weights(start: StartLlama, home: Path) -> Path:
    """The checkpoint of the same prefix by a model of the same shape."""
    other = Place(home)
    stranger = other.start(start, DENSE, *EXACT, "-np", "1", seed=8)
    async with other.proxy(stranger) as proxied:
        await proxied.ask(sessions("/old", tokens=TOKENS)[0])
    stranger.kill()
    return other.checkpoint


@pytest.mark.parametrize("sees", [True, False], ids=["slot-dir", "no-slot-dir"])
async def test_a_file_of_other_weights_answers_nobody(
    start_llama: StartLlama, place: Place, tmp_path: Path, sees: bool
) -> None:
    """The server takes it without a word: where the file can be seen its bytes tell, else the log-probabilities do."""
    server, cold = await started(start_llama, place)
    shutil.copy(await of_other_weights(start_llama, tmp_path / "other"), place.checkpoint)
    async with place.proxy(server, slot_dir=place.slots if sees else None) as proxied:
        answer = await ask_new(proxied)
        assert ["warm-up"] == proxied.sources
    assert QUIET > distance(cold, answer)
    assert await recovers(place, server)


async def test_other_weights_behind_the_same_path_have_a_key_of_their_own(
    start_llama: StartLlama, place: Place, tmp_path: Path
) -> None:
    """A model file that was replaced is another model: cold build, and the old checkpoint stays what it is."""
    model = tmp_path / "model.gguf"
    server, _ = await started(start_llama, place)
    shutil.copy(server.model, model)
    server.restart(model=model)
    async with place.proxy(server) as proxied:
        await ask_new(proxied)
    stranger = start_llama("dense", seed=8)
    stranger.kill()
    shutil.copy(stranger.model, model)
    server.restart(model=model)
    async with place.proxy(server) as proxied:
        await ask_new(proxied)
        assert ["warm-up"] == proxied.sources
    assert 3 == len(place.files())


async def test_a_server_with_other_rope_settings_gets_its_own_state(start_llama: StartLlama, place: Place) -> None:
    """Restored with full reuse and wrong: the log-probabilities of the save tell, and the file is made anew."""
    server, _ = await started(start_llama, place)
    rope = ("--rope-freq-base", "1000000")
    crash(server, *rope)
    (cold,) = await ask_directly(server, {**told("/new"), "cache_prompt": False})
    crash(server, *rope)
    async with place.proxy(server) as proxied:
        answer = await ask_new(proxied)
        assert ["warm-up"] == proxied.sources
    assert QUIET > distance(cold, answer)
    crash(server, *rope)
    async with place.proxy(server) as proxied:
        again = await ask_new(proxied)
        assert ["restore"] == proxied.sources
    assert QUIET > distance(cold, again)


async def test_a_file_of_another_format_is_told_and_built_once(
    start_llama: StartLlama, place: Place, calls: Calls
) -> None:
    """A build that writes another version is not given the old one's file."""
    server, cold = await started(start_llama, place)
    raw, path = bytearray(place.checkpoint.read_bytes()), place.checkpoint
    raw[4:8] = struct.pack("<I", 1)
    path.write_bytes(raw)
    (record,) = place.known().records
    index = place.index / "index.json"
    index.write_bytes(write_index([replace(record, format_version=1, seal=seal_of(path))]))
    before = calls.restores
    async with place.proxy(server) as proxied:
        answer = await ask_new(proxied)
        assert ["warm-up"] == proxied.sources
    assert 0 == calls.restores - before - PROBES
    assert QUIET > distance(cold, answer)
    assert not place.files(FileKind.BAD)
    assert await recovers(place, server)
