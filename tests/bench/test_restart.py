"""What the bench of restarts measures and shows: cold, from page cache, from disk; and what no restore can save."""

import sys
from pathlib import Path

import orjson
import pytest

from bench import restart
from proxy.demo.servers import ServerBinary


def test_a_short_run_shows_all_three_ways_with_the_sessions_own_tail(
    llama_binary: ServerBinary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cold prefills everything; with the file, in the page cache or not, only the tail, whose time is shown apart."""
    monkeypatch.setattr(restart, "OUT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", "--kinds", "dense", "--short", "--rounds", "1"])
    monkeypatch.setenv("COLUMNS", "120")
    assert 0 == restart.main()
    rows = orjson.loads((tmp_path / "restart.json").read_bytes())
    cold, *restored = rows
    assert ["cold", "file cached", "file dropped"] == [row["how"] for row in rows]
    assert 1900 < cold["prefilled"]
    assert all(60 > row["prefilled"] and row["file_bytes"] and row["prefill_ms"] for row in restored)
    shown = capsys.readouterr().out
    tails = [f"{row['prefill_ms']:,.0f}" for row in rows]
    lines = [line.split() for line in shown.splitlines() if line.strip().startswith("dense")]
    assert tails == [line[-4 if "file" in line else -3] for line in lines]


def test_it_measures_the_lengths_that_agents_have() -> None:
    """2k, 8k and 20k tokens unless it is told to be short."""
    assert (2000, 8000, 20000) == restart.PREFIXES
