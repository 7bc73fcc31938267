"""A real Pi in two folders on two days, through the proxy: it works, and the log tells what happened."""

import json
import re

import pytest

from tests.pi.agent import API_KEY
from tests.pi.conftest import ANSWER, CONTEXT, QUESTION, Run

pytestmark = pytest.mark.timeout(1500)  # the first run installs from npm


def test_each_turn_is_answered(run: Run) -> None:
    """Pi ends well and prints the server's sentence, in each of eight turns, each one request and a whole answer."""
    assert [(0, ANSWER)] * 8 == [(turn.status, turn.answer) for turn in run.turns], run.turns
    assert [(200, True)] * 8 == [(it.status, it.is_whole) for it in run.exchanges]


def test_sessions_differ_where_they_should(run: Run) -> None:
    """The runs are what the other tests take them for: two folders, one with a context file, two days, two turns."""
    folders = ["plain", "plain", "explained", "explained"] * 2
    assert folders == [re.findall(r"/(plain|explained)\b", it.system)[-1] for it in run.exchanges]
    assert [folder == "explained" for folder in folders] == [CONTEXT in it.system for it in run.exchanges]
    assert [2, 4] * 4 == [len(json.loads(it.body)["messages"]) for it in run.exchanges]
    dates = [re.findall(r"\nCurrent date: (\S+)", it.system) for it in run.exchanges]
    has_dates = run.version.pi.startswith("0.")
    assert (2 if has_dates else 0) == len({date for [date] in filter(None, dates)})


def test_one_install_has_one_fingerprint(run: Run) -> None:
    """Folder, day, context file and turn don't change it."""
    assert 8 == len(run.lines)
    [fingerprint] = {line["fingerprint"] for line in run.lines}
    assert re.fullmatch("[0-9a-f]{16}", fingerprint)


def test_each_line_has_the_figures_of_its_answer(run: Run) -> None:
    """Prompt tokens, prefilled, reused and the share are those that Pi was told."""
    expected = [{"status": it.status, "model": "tiny", "path": it.path, **it.figures} for it in run.exchanges]
    assert expected == [{name: line[name] for name in expected[0]} for line in run.lines]
    shares = [it.figures["cache_n"] / it.figures["prompt_tokens"] for it in run.exchanges]
    assert shares == pytest.approx([line["reuse"] for line in run.lines], abs=0.006)


def test_one_warm_up_serves_all_sessions(run: Run) -> None:
    """One is logged, for the first session at a new server; whatever the folder and day, all have its prefix then."""
    said = [json.loads(line) for line in run.log.splitlines() if line.startswith("{")]
    [warmed] = [line for line in said if line["event"] == "warmed"]
    sources = [line["source"] for line in run.lines]
    assert "warm-up" == sources[0]
    assert {"hit", "continue", "resume"} >= set(sources[1:])
    prefix_n = warmed["prompt_n"] + warmed["cache_n"]
    assert 1000 < prefix_n
    assert [] == [line["cache_n"] for line in run.lines if line["cache_n"] < prefix_n]


def test_second_turns_reuse_the_first(run: Run) -> None:
    """Each second turn prefills its own tail only, as it would without us."""
    assert [] == [it.figures for it in run.exchanges[1::2] if it.figures["prompt_n"] > 100]


def test_log_says_nothing_of_what_was_said(run: Run) -> None:
    """No key and no text of prompt or answer is in any line."""
    secrets = [API_KEY, QUESTION, CONTEXT, ANSWER, "expert coding assistant", "a coding agent harness"]
    assert [] == [secret for secret in secrets if secret in run.log]
