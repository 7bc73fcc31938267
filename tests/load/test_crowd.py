"""Fifty clients, four slots: nobody is stuck, nobody starves, and afterwards what is believed is so."""

from pathlib import Path

import pytest

from proxy.demo.models import Kind
from tests.conftest import StartLlama
from tests.load.crowd import members
from tests.load.crowded import CLIENTS, crowded
from tests.load.traces import CONTEXT
from tests.serving.running import running

SECONDS = 30.0


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
async def test_a_crowd(start_llama: StartLlama, tmp_path: Path, kind: Kind) -> None:
    """In the order of arrival, within a bound; a later turn of each conversation prefills as the plan says."""
    server = start_llama(kind, "--slot-save-path", str(tmp_path), ctx=CONTEXT)
    async with running(server, persist=True, slot_dir=tmp_path, dir=tmp_path / "index") as proxied:
        wrong = await crowded(proxied, server, members(CLIENTS, seed=1), SECONDS)
    assert [] == wrong, "\n".join(wrong)
