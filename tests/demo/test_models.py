"""The tiny models in a real llama-server: they load, answer whatever is asked, and differ where they should."""

import os
from pathlib import Path
from typing import get_args

import gguf
import pytest

from proxy.demo.models import Kind, model_path, models_directory, write_model
from proxy.demo.servers import LlamaServer
from proxy.demo.sessions import session
from proxy.demo.vocabulary import WORDS
from tests.conftest import StartLlama
from tests.demo.asking import ask, said, tokens

KINDS: tuple[Kind, ...] = get_args(Kind)
CUT = "</docs>\n\n<project_context>"


@pytest.fixture
def dense(start_llama: StartLlama) -> LlamaServer:
    return start_llama("dense")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pi-prefix-cache-dev" / "models"


@pytest.mark.parametrize("tools_last", [False, True], ids=["tools-first", "tools-last"])
@pytest.mark.parametrize("kind", KINDS)
def test_model_answers_an_agents_request_with_letters(start_llama: StartLlama, kind: Kind, tools_last: bool) -> None:
    """Each kind answers 200 with plain letters at full temperature, tools given, where noise would be a 500."""
    server = start_llama(kind, tools_last=tools_last)
    for seed in range(2):
        body = session("/home/me/a", max_tokens=40) | {"stream": False, "temperature": 1.5, "seed": seed}
        del body["stream_options"]
        status, answer = ask(server, "/v1/chat/completions", body)
        assert status == 200, answer
        text = answer["choices"][0]["message"]["content"]
        assert (40, True) == (len(text), text.isalpha() and text.isupper())


@pytest.mark.parametrize("tools_last", [False, True], ids=["tools-first", "tools-last"])
def test_template_puts_tools_where_it_says(start_llama: StartLlama, tools_last: bool) -> None:
    """`tools_last` decides whether the system text comes before the tool schemas."""
    server = start_llama("dense", tools_last=tools_last)
    _, answer = ask(server, "/apply-template", session("/home/me/a"))
    assert tools_last == (answer["prompt"].index("<cwd>") < answer["prompt"].index('"parameters"'))


def test_rendering_is_what_is_prefilled(dense: LlamaServer) -> None:
    """The tokens of the rendered text are as many as the chat endpoint counts: the template renders the same twice."""
    body = session("/home/me/a") | {"stream": False, "reasoning_effort": "high"}
    del body["stream_options"]
    _, rendered = ask(dense, "/apply-template", body)
    _, answer = ask(dense, "/v1/chat/completions", body)
    assert answer["usage"]["prompt_tokens"] == len(tokens(dense, rendered["prompt"]))


def test_reasoning_effort_changes_the_rendering(dense: LlamaServer) -> None:
    """A field besides messages and tools matters to the template, as it does with real models."""
    plain, low = session("/home/me/a"), session("/home/me/a") | {"reasoning_effort": "low"}
    assert ask(dense, "/apply-template", plain) != ask(dense, "/apply-template", low)


def test_every_word_is_one_token(dense: LlamaServer) -> None:
    """A text of the vocabulary's words costs one token a word."""
    assert [" " + word for word in WORDS] == tokens(dense, "".join(f" {word}" for word in WORDS))


def test_merge_trap_joins_across_the_cut(start_llama: StartLlama) -> None:
    """With the trap, the tag's end and the line breaks after it are one token, which a cut between them isn't."""
    server = start_llama("dense", merge_trap=True)
    assert ">\n\n" in tokens(server, CUT)
    assert ">\n" in tokens(server, "<docs>\ntext")
    assert tokens(server, "</docs>") != tokens(server, CUT)[: len(tokens(server, "</docs>"))]


def test_without_merge_trap_nothing_joins_across_the_cut(dense: LlamaServer) -> None:
    """The plain vocabulary can be cut by characters, so that a test sees what the trap alone does."""
    assert tokens(dense, "</docs>") == tokens(dense, CUT)[: len(tokens(dense, "</docs>"))]


@pytest.mark.parametrize("kind", KINDS)
def test_other_seed_is_another_model_of_the_same_shape(start_llama: StartLlama, kind: Kind) -> None:
    """Another seed's file looks the same from outside and its server says something else."""
    one, other = start_llama(kind), start_llama(kind, seed=8)
    assert shape(one.model) == shape(other.model)
    assert one.model.stat().st_size == other.model.stat().st_size
    assert ask(one, "/props")[1]["chat_template"] == ask(other, "/props")[1]["chat_template"]
    assert said(one, "read the file") != said(other, "read the file")


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_long_ago_changes_what_is_said(start_llama: StartLlama, kind: Kind) -> None:
    """Log-probabilities tell a wrong state: one other token 1500 tokens earlier moves them, the same prompt doesn't."""
    server = start_llama(kind)
    words = [WORDS[place * 37 % len(WORDS)] for place in range(1600)]
    prompt, changed = " ".join(words), " ".join([*words[:100], "changes", *words[101:]])
    right, again, wrong = said(server, prompt), said(server, prompt), said(server, changed)
    assert right == again
    assert max(abs(right[token] - wrong.get(token, -9.0)) for token in right) > 3e-4


def shape(path: Path) -> list[tuple[str, tuple[int, ...]]]:
    reader = gguf.GGUFReader(path)
    return [(tensor.name, tuple(int(size) for size in tensor.shape)) for tensor in reader.tensors]


def test_same_arguments_write_the_same_bytes(tmp_path: Path) -> None:
    """A model is a function of its arguments."""
    write_model(tmp_path / "a", "hybrid", merge_trap=True)
    write_model(tmp_path / "b", "hybrid", merge_trap=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_model_path_is_written_once_and_whole(cache: Path) -> None:
    """The cached file is reused, and nothing unfinished lies beside it."""
    path = model_path("dense", tools_last=True, seed=9)
    written = path.stat()
    assert written == model_path("dense", tools_last=True, seed=9).stat()
    assert [path] == list(cache.iterdir())


def test_model_path_differs_by_every_argument(cache: Path) -> None:
    """No two models share a file."""
    switches = [(last, trap) for last in (False, True) for trap in (False, True)]
    paths = {model_path(kind, tools_last=last, merge_trap=trap) for kind in KINDS for last, trap in switches}
    paths |= {model_path(kind, seed=8) for kind in KINDS}
    assert 15 == len(paths) == len({path.read_bytes() for path in paths})


def test_interrupted_writing_leaves_no_model(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What wasn't finished isn't found the next time."""

    def break_down(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gguf.GGUFWriter.write_tensors_to_file", break_down)
    with pytest.raises(KeyboardInterrupt):
        model_path("dense")
    assert [] == list(cache.iterdir())


def test_models_directory_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the cache can't be made, a temporary directory of our own does."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    directory = models_directory()
    assert directory.is_dir()
    assert os.access(directory, os.W_OK)
    assert tmp_path not in directory.parents
