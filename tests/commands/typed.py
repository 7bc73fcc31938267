"""A command as a person types it: what it writes, and its exit code."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog

from proxy.__main__ import main
from proxy.settings import PREFIX


@dataclass(frozen=True, slots=True)
class Said:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return orjson.loads(self.out)


class Terminal:
    """Runs commands in this process, in a directory and an environment with no settings in them."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def type(self, *words: object) -> Said:
        """Run a command to its end."""
        self._capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
        return Said(code, *self._capsys.readouterr())

    async def beside(self, *words: object) -> Said:
        """Run a command while a proxy runs in this process."""
        return await asyncio.to_thread(self.type, *words)


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Terminal]:
    """Where commands are typed."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("COLUMNS", "200")
    yield Terminal(capsys)
    structlog.reset_defaults()  # a command says where its lines go
