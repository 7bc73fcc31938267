"""What a model's file says of it that the server does not tell: the length of its sliding window.

Source: the GGUF specification (ggml's `docs/gguf.md`). Only the metadata before the tokenizer's is read, which is some
kilobytes at the file's beginning. Synchronous; call it in a thread.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import TypeAlias

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ARCHITECTURE, SLIDING_WINDOW = "general.architecture", ".attention.sliding_window"
MOST_KEYS = 1000
MOST_BYTES = 1 << 20
"""Longer texts than this, and more of them, no model has before its tokenizer's metadata."""
STRING, ARRAY = 8, 9
_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""By type number: how a plain value is packed."""
WITHOUT = ("phi3",)
"""Architectures whose window the server does not use, though their files tell one."""

Value: TypeAlias = int | float | bool | str | None


def sliding_window(path: str) -> int | None:
    """Tokens of the model's sliding window, 0 for a model that has none; None where the file does not tell."""
    with suppress(OSError, ValueError, struct.error, KeyError):
        if Path(path).is_file():  # opening a pipe would wait for its writer
            with Path(path).open("rb") as file:
                return _window(file)
    return None


def _window(file: BufferedReader) -> int:
    told = {key: value for key, value in _metadata(file) if key == ARCHITECTURE or key.endswith(SLIDING_WINDOW)}
    architecture = told.get(ARCHITECTURE)
    if not architecture:
        raise ValueError("no architecture")
    window = told.get(f"{architecture}{SLIDING_WINDOW}", 0)
    if not isinstance(window, int):
        raise ValueError("a window for each layer")
    return 0 if architecture in WITHOUT else max(0, window)


def _metadata(file: BufferedReader) -> Iterator[tuple[str, Value]]:
    """Keys and plain values up to the tokenizer's; raises ValueError for what is no GGUF file."""
    if file.read(4) != MAGIC or _number(file, "<I") not in VERSIONS:
        raise ValueError("no GGUF file")
    _, n_keys = _number(file, "<Q"), _number(file, "<Q")
    for _ in range(min(n_keys, MOST_KEYS)):
        key = _string(file)
        if key.startswith("tokenizer."):
            return
        yield key, _value(file, _number(file, "<I"))


def _value(file: BufferedReader, kind: int) -> Value:
    if kind == STRING:
        return _string(file)
    if kind == ARRAY:
        kind, length = _number(file, "<I"), _number(file, "<Q")
        if length > MOST_BYTES or kind == ARRAY:
            raise ValueError("an array too long")
        for _ in range(length):
            _value(file, kind)
        return None
    return _plain(file, _FORMATS[kind])


def _string(file: BufferedReader) -> str:
    if (length := _number(file, "<Q")) > MOST_BYTES:
        raise ValueError("a text too long")
    return _exactly(file, length).decode()


def _number(file: BufferedReader, packed: str) -> int:
    return int(_plain(file, packed))


def _plain(file: BufferedReader, packed: str) -> int | float | bool:
    found: int | float | bool = struct.unpack(packed, _exactly(file, struct.calcsize(packed)))[0]
    return found


def _exactly(file: BufferedReader, length: int) -> bytes:
    raw = file.read(length)
    if len(raw) != length:
        raise ValueError("the file ends early")
    return raw
