"""What a real server writes is what we read, for every kind of memory and on every build."""

import dataclasses
import json
import random
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from proxy.checkpoints.inspection import Expected, FileVerdict, inspect, read_head
from proxy.checkpoints.key import FileKind, companion_name, final_name, parse_name, temporary_name
from proxy.checkpoints.slot_directory import promote, scan
from proxy.checkpoints.state_file import Header
from proxy.demo.models import Kind
from proxy.demo.servers import LlamaServer
from tests.checkpoints.state_files import KEY
from tests.conftest import StartLlama

KINDS: list[tuple[Kind, tuple[str, ...]]] = [("dense", ()), ("hybrid", ()), ("swa", ()), ("swa", ("--swa-full",))]
TOKENS = random.Random(1).choices(range(400), k=700)  # more than the window of the sliding-window model


def _post(server: LlamaServer, path: str, body: dict[str, Any]) -> Any:
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def _prefill(server: LlamaServer, tokens: list[int]) -> Any:
    body = {"prompt": tokens, "n_predict": 0, "cache_prompt": True, "grammar": 'root ::= ""'}
    return _post(server, "/completion", body)


def _save(server: LlamaServer, directory: Path) -> Path:
    """Prefill and save under a temporary name; returns the file, checked for what the server said of it."""
    slot = _prefill(server, TOKENS)["id_slot"]
    path = directory / temporary_name(KEY, 1, 1)
    said = _post(server, f"/slots/{slot}?action=save", {"filename": path.name})
    assert (len(TOKENS), path.stat().st_size) == (said["n_saved"], said["n_written"])
    return path


@pytest.mark.llama
@pytest.mark.parametrize(("kind", "flags"), KINDS)
def test_a_saved_file_is_read_proven_and_restored_under_its_final_name(
    start_llama: StartLlama, tmp_path: Path, kind: Kind, flags: tuple[str, ...]
) -> None:
    """Our names suit the server; the head has exactly its tokens; what we prove whole, it restores."""
    server = start_llama(kind, "--slot-save-path", str(tmp_path), *flags)
    path = _save(server, tmp_path)
    header = read_head(path)
    assert isinstance(header, Header)
    assert tuple(TOKENS) == header.tokens
    expected = Expected(TOKENS, path.stat().st_size, header.format_version, check_companion=False)
    found = inspect(path, expected)
    final = path.with_name(final_name(KEY))
    promote(path, final, 1.0)
    proven = inspect(final, dataclasses.replace(expected, seal=found.seal, check_companion=True))
    assert found.seal is not None
    assert proven.seal is not None
    # What was digested right after the save has no time yet: it is digested once more.
    same = dataclasses.replace(found.seal, mtime_ns=proven.seal.mtime_ns)
    assert (FileVerdict.WHOLE, same) == (proven.verdict, proven.seal)
    said = _post(server, "/slots/0?action=restore", {"filename": final.name})
    assert (len(TOKENS), final.stat().st_size) == (said["n_restored"], said["n_read"])


@pytest.mark.llama
def test_a_server_writes_beside_the_state_file_only_what_we_know(start_llama: StartLlama, tmp_path: Path) -> None:
    """Whatever a save puts into the directory carries one of our names, so that clean-up sees it."""
    server = start_llama("hybrid", "--slot-save-path", str(tmp_path))
    path = _save(server, tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} <= {path.name, companion_name(path.name)}
    assert {FileKind.TEMPORARY} == {own.kind for file in scan(tmp_path) if (own := parse_name(file.name))}


@pytest.mark.llama
def test_files_of_other_tokens_are_told_apart(start_llama: StartLlama, tmp_path: Path) -> None:
    """The file of another prompt, one token different, is not proven for ours."""
    server = start_llama("dense", "--slot-save-path", str(tmp_path))
    path = _save(server, tmp_path)
    others = [TOKENS[:-1], [*TOKENS, 1], [*TOKENS[:350], TOKENS[350] ^ 1, *TOKENS[351:]]]
    assert {FileVerdict.TOKENS} == {inspect(path, Expected(tokens)).verdict for tokens in others}
