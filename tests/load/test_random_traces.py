"""Random traces on a real server: whatever clients do, nothing stays held, and answers and costs are as directly."""

from pathlib import Path

import pytest

from tests.conftest import StartLlama
from tests.load.traces import CONTEXT, Setting, llama_flags, trace

SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_random_trace(start_llama: StartLlama, tmp_path: Path, seed: int) -> None:
    """Every request is answered as a quiet server answers it, no lease is left, and one client costs no more."""
    setting = Setting(seed)
    server = start_llama(setting.kind, *llama_flags(setting, tmp_path), ctx=CONTEXT)
    played = await trace(server, setting, tmp_path)
    assert [] == played.complaints, str(played)
