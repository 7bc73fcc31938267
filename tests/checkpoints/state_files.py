"""State files as a server writes them, made by hand; and the records that describe them."""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proxy.checkpoints.inspection import Expected, seal_of
from proxy.checkpoints.key import checkpoint_key
from proxy.checkpoints.record import Checkpoint
from proxy.checkpoints.state_file import MAGIC

TOKENS = tuple(range(100, 164))
STATE = bytes(range(256)) * 40
KEY = checkpoint_key("model", "", "", TOKENS)
SAVED_NS = 1_600_000_000_000_000_000
OTHER_KEY = checkpoint_key("model", "", "", TOKENS[:-1])


def head(tokens: Sequence[int] = TOKENS, version: int = 2) -> bytes:
    payload = (-1, 1, len(tokens), *tokens, 0)
    return struct.pack(f"<3I{len(payload)}i", MAGIC, version, len(payload), *payload)


def state_file(path: Path, tokens: Sequence[int] = TOKENS, version: int = 2, state: bytes = STATE) -> Path:
    path.write_bytes(head(tokens, version) + state)
    return settled(path)


def settled(path: Path) -> Path:
    """The file as if it had been written a while ago."""
    os.utime(path, ns=(SAVED_NS, SAVED_NS))
    return path


def expected_of(path: Path, tokens: Sequence[int] = TOKENS, version: int = 2) -> Expected:
    """What the index would say after this file was saved and sealed."""
    return Expected(tokens, path.stat().st_size, version, seal_of(path))


def checkpoint(key: str = KEY, **known: Any) -> Checkpoint:
    parts: dict[str, Any] = {"model_id": "tiny", "model": "model", "lora": "", "server_id": "", "n_tokens": 64}
    parts |= {"size_bytes": 10_520, "created_at": 1_000.0, "last_used_at": 1_000.0}
    return Checkpoint(key, **(parts | known))
