"""Which process and which model: read from what real servers and odd ones say."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from proxy.demo.models import model_path
from proxy.llama.identity import Process, file_identity, model_identity, process
from tests.conftest import StartLlama
from tests.demo.asking import ask

PROPS = {
    "media_marker": "<m1>",
    "total_slots": 4,
    "model_path": "/models/a.gguf",
    "build_info": "b1-x",
    "default_generation_settings": {"n_ctx": 4096},
    "is_sleeping": True,
}
TOLD = Process("<m1>", 4, 4096, "/models/a.gguf", "b1-x", is_sleeping=True, has_own_marker=True)
MODELS = {"data": [{"id": "a", "created": 5, "meta": {"size": 9, "n_params": 3}}, {"id": "b", "meta": {"size": 8}}]}


def test_what_props_say_is_read() -> None:
    assert TOLD == process(PROPS)


@pytest.mark.parametrize(
    "props",
    [
        {},
        {"media_marker": 5, "total_slots": "4", "model_path": None, "build_info": [], "is_sleeping": "no"},
        {"total_slots": 0, "default_generation_settings": []},
        {"total_slots": -1, "default_generation_settings": {"n_ctx": "4096"}},
    ],
)
def test_what_is_missing_or_odd_is_empty(props: dict[str, Any]) -> None:
    """One slot is the least that a server has."""
    told = process(props)
    assert (1, 0, "", "", False) == (told.total_slots, told.n_ctx, told.model_path, told.build, told.is_sleeping)


def test_a_build_without_a_marker_is_known_by_what_it_serves() -> None:
    """Not by nothing: another model or number of slots is another process for sure."""
    bare = {name: value for name, value in PROPS.items() if name != "media_marker"}
    assert process(bare).marker == process(dict(bare)).marker
    assert 3 == len({process({**bare, **other}).marker for other in ({}, {"total_slots": 1}, {"model_path": "/b"})})


def test_the_identity_has_all_that_changes_a_state_and_nothing_that_only_changes() -> None:
    """Never when it was created; the keys in one order."""
    told = model_identity(TOLD, MODELS, [], server_id="s", file="9:1")
    assert ("a", "9:1", '{"n_params":3,"size":9}', "/models/a.gguf", "", "s") == (
        told.model_id,
        told.file,
        told.meta,
        told.model_path,
        told.lora,
        told.server_id,
    )
    turned = {"data": [{"meta": {"n_params": 3, "size": 9, "created": 1}, "created": 6, "id": "a"}]}
    assert told == model_identity(TOLD, turned, [], server_id="s", file="9:1")


@pytest.mark.parametrize(
    "other",
    [
        {"told": Process("<m1>", 4, 4096, "/models/b.gguf", "b1-x", is_sleeping=False)},
        {"models": {"data": [{"id": "a", "meta": {"size": 10, "n_params": 3}}]}},
        {"lora": [{"id": 0, "path": "x", "scale": 0.5}]},
        {"server_id": "other"},
        {"file": "9:2"},
        {"wanted": "b"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_other_weights_are_another_identity(other: dict[str, Any]) -> None:
    same: dict[str, Any] = {"told": TOLD, "models": MODELS, "lora": [], "server_id": "s", "file": "9:1"}
    assert model_identity(**same) != model_identity(**{**same, **other})


def test_another_process_of_the_same_model_is_the_same_identity() -> None:
    """A restart keeps its checkpoints."""
    again = Process("<m2>", 1, 9, "/models/a.gguf", "b2-y", is_sleeping=False)
    same = [model_identity(told, MODELS, [], server_id="", file="") for told in (TOLD, again)]
    assert same[0] == same[1]


def test_the_scale_of_an_adapter_counts() -> None:
    scales = [[{"id": 0, "path": "x", "scale": scale}] for scale in (0.0, 0.5, 1.0)]
    assert 3 == len({model_identity(TOLD, MODELS, lora, server_id="", file="").lora for lora in scales})


DEEP = orjson.loads(b'{"a":' * 400 + b"1" + b"}" * 400)


@pytest.mark.parametrize(
    "models",
    [
        {},
        {"data": None},
        {"data": 5},
        {"data": {}},
        {"data": "abc"},
        {"data": [5, None, {"id": 7, "meta": []}]},
        {"data": [{"meta": DEEP}]},
    ],
)
def test_odd_answers_make_a_poor_identity_and_no_error(models: dict[str, Any]) -> None:
    told = model_identity(TOLD, models, [], server_id="", file="")
    assert ("", True) == (told.model_id, told.meta in {"", "{}"})


def test_a_model_file_is_known_by_size_and_time(tmp_path: Path) -> None:
    """Other weights under the same name are another file."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"abc")
    first = file_identity(str(path))
    path.write_bytes(b"abcd")
    assert first.startswith("3:")
    assert file_identity(str(path)).startswith("4:")


@pytest.mark.parametrize("path", ["", "/nowhere/m.gguf", "a\0b", "\udcff", "x" * 5000])
def test_a_file_that_can_not_be_seen_from_here_has_no_identity(path: str) -> None:
    assert "" == file_identity(path)


def test_a_real_server_is_recognised_through_use_and_not_after_a_restart(start_llama: StartLlama) -> None:
    """Its marker stays while it lives; its model's identity stays for good."""
    server = start_llama("dense")

    def seen() -> tuple[Process, Any]:
        told = process(ask(server, "/props")[1])
        models, lora = ask(server, "/v1/models")[1], ask(server, "/lora-adapters")[1]
        return told, model_identity(told, models, lora, server_id="", file=file_identity(told.model_path))

    first, model = seen()
    ask(server, "/completion", {"prompt": "hello", "n_predict": 1})
    assert (first, model) == seen()
    server.restart()
    second, same_model = seen()
    assert first.marker != second.marker
    assert model == same_model
    server.restart(model=model_path("dense", seed=8))
    assert model != seen()[1]
    assert (4, True, False) == (first.total_slots, first.n_ctx >= 4096, first.is_sleeping)
