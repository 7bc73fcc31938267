"""A command as a person types it: what it writes, and its exit code."""

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from proxy.__main__ import main


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
