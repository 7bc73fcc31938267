"""What a model's file says of its sliding window, and what is made of files that say nothing or lie."""

import os
import struct
from pathlib import Path

import pytest

from proxy.demo.models import Kind, model_path
from proxy.llama.model_file import MOST_BYTES, sliding_window

UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 6, 7, 8, 9, 10


def text(said: str) -> bytes:
    return struct.pack("<Q", len(said.encode())) + said.encode()


def entry(key: str, kind: int, raw: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + raw


def number(key: str, value: int) -> bytes:
    return entry(key, UINT32, struct.pack("<I", value))


def gguf(*entries: bytes, version: int = 3, count: int | None = None) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(entries) if count is None else count) + b"".join(entries)


GEMMA = entry("general.architecture", STRING, text("gemma3"))
WINDOW = number("gemma3.attention.sliding_window", 1024)


@pytest.mark.parametrize(("kind", "window"), [("dense", 0), ("hybrid", 0), ("swa", 512)])
def test_of_real_files(kind: Kind, window: int) -> None:
    assert window == sliding_window(str(model_path(kind)))


def test_whatever_else_stands_before_it(tmp_path: Path) -> None:
    """Texts, arrays of them, numbers of all lengths."""
    tags = entry("general.tags", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text("ä"))
    layers = entry("gemma3.pattern", ARRAY, struct.pack("<IQ", BOOL, 3) + b"\1\0\1")
    others = [entry("gemma3.eps", FLOAT32, struct.pack("<f", 1e-6)), entry("general.n", UINT64, struct.pack("<Q", 7))]
    (tmp_path / "m").write_bytes(gguf(GEMMA, tags, layers, *others, WINDOW))
    assert 1024 == sliding_window(str(tmp_path / "m"))


def test_another_architectures_window_is_not_this_ones(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(gguf(GEMMA, number("llama.attention.sliding_window", 7)))
    assert 0 == sliding_window(str(tmp_path / "m"))


def test_a_window_that_the_server_does_not_use(tmp_path: Path) -> None:
    """So says its source of this architecture."""
    phi = entry("general.architecture", STRING, text("phi3"))
    (tmp_path / "m").write_bytes(gguf(phi, number("phi3.attention.sliding_window", 2047)))
    assert 0 == sliding_window(str(tmp_path / "m"))


def test_nothing_is_read_of_the_tokenizer(tmp_path: Path) -> None:
    """It is megabytes long; what is cut off there is a good file for this."""
    (tmp_path / "m").write_bytes(gguf(GEMMA, WINDOW, text("tokenizer.ggml.model"), count=40))
    assert 1024 == sliding_window(str(tmp_path / "m"))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"GGUF",
        b"GGML" + gguf(GEMMA, WINDOW)[4:],
        gguf(GEMMA, WINDOW, version=1),
        gguf(GEMMA, WINDOW)[:-2],
        gguf(WINDOW, WINDOW),
        gguf(),
        gguf(GEMMA, entry("x", STRING, struct.pack("<Q", 1 << 62))),
        gguf(GEMMA, entry("x", STRING, struct.pack("<Q", 2) + b"\xff\xff"), WINDOW),
        gguf(GEMMA, entry("x", ARRAY, struct.pack("<IQ", UINT32, MOST_BYTES + 1))),
        gguf(GEMMA, entry("x", ARRAY, struct.pack("<IQ", ARRAY, 1)), WINDOW),
        gguf(GEMMA, entry("x", 99, b""), WINDOW),
    ],
    ids=["empty", "short", "magic", "old", "cut", "no arch", "no keys", "text", "utf-8", "array", "nested", "type"],
)
def test_of_a_file_that_does_not_tell(tmp_path: Path, raw: bytes) -> None:
    """Not known, which is not the same as none."""
    (tmp_path / "m").write_bytes(raw)
    assert sliding_window(str(tmp_path / "m")) is None


def test_of_what_is_no_file(tmp_path: Path) -> None:
    """A pipe that nobody writes to is not waited for."""
    os.mkfifo(tmp_path / "pipe")
    others = ["", "\0", str(tmp_path), str(tmp_path / "pipe"), str(tmp_path / "none")]
    assert [None] * 5 == [sliding_window(path) for path in others]


def test_the_order_of_the_keys_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(gguf(WINDOW, GEMMA))
    assert 1024 == sliding_window(str(tmp_path / "m"))
