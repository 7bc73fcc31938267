"""What the tests of commands are given."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from proxy.settings import PREFIX
from tests.commands.typed import Terminal


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
