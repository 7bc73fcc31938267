"""`status` and `ls` in a terminal of 80 columns: every number and key whole, on one line."""

import re
import time
from typing import Any

import pytest

from proxy.checkpoints.listing import Listed
from proxy.commands import shown
from proxy.commands.checkpoints import _print_list
from proxy.commands.shown import console
from proxy.commands.status import Bar, picture

KEYS = ("0123456789abcdef", "fedcba9876543210")
SLOT = {"slot": 3, "holds": "conversation", "checkpoint": KEYS[0], "prefix_tokens": 14_047, "other_tokens": 101_200,
        "free_tokens": 15_825, "is_working": True, "source": "continue"}  # fmt: skip
IDLE = {**SLOT, "slot": 0, "holds": "prefix", "is_working": False, "source": "", "checkpoint": KEYS[1]}
PAST = {"number": 1234, "source": "continue", "reason": "slot_holds_conversation", "prompt_tokens": 115_247,
        "reused_tokens": 115_180, "first_token_ms": 24_999.0, "outcome": "answered", "status": 200}  # fmt: skip
REFUSED = {**PAST, "number": 1233, "source": "none", "outcome": "refused", "status": 503, "reused_tokens": None}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a terminal of the usual width."""
    monkeypatch.setattr(shown, "PIPE_WIDTH", 80)


def told() -> dict[str, Any]:
    now = time.time()
    past = [{**one, "ended_at": now - 3_540} for one in (PAST, REFUSED)]
    server = {"state": "ready", "model": "Qwen3-Coder-30B-A3B-Instruct-UD-Q4_K_XL.gguf", "build": "b10434-7e4c0a9",
              "slots": 4, "context_tokens": 131_072, "rolls_back": True, "restores": None,
              "keeps_copies": True}  # fmt: skip
    proxy = {"version": "0.1.0", "started_at": now, "observes_only": False, "persists": True,
             "upstream": "http://127.0.0.1:8080"}  # fmt: skip
    day = {"requests": 1234, "by_source": {"continue": 1200, "hit": 34}, "prompt_tokens": 141_000_000,
           "prefilled_tokens": 1_000_000, "warm_up_tokens": 14_047, "saved_tokens": 477_598,
           "saved_s": 95.5}  # fmt: skip
    rest = {
        "queue": {"running": 1, "waiting": 0},
        "disk": {"checkpoints": 2, "size_bytes": 1_234_567_890},
        "advice": [],
    }
    return {"now": now, "proxy": proxy, "server": server, "slots": [SLOT, IDLE], "today": day, "requests": past, **rest}


def line(said: str, *begin: str) -> list[str]:
    """The words of the one line that begins so."""
    (found,) = [words for words in map(str.split, said.splitlines()) if words[: len(begin)] == [*begin]]
    return found


def cut(said: str) -> list[str]:
    """Words cut short that are no reason and no model."""
    words = [word for word in said.split() if "…" in word]
    return [word for word in words if re.match(r"[0-9a-f,.]*…", word) or word == "…"]


def test_status_keeps_its_numbers_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Only bars, reasons and what a slot works on give way."""
    console().print(picture(told()))
    said = capsys.readouterr().out
    assert 80 >= max(map(len, said.splitlines()))
    assert [] == cut(said)
    busy, idle = line(said, "3", "conversation"), line(said, "0", "prefix")
    assert (["14,047", "101,200", "15,825"], KEYS[0]) == (busy[3:6], busy[-1])
    assert (["14,047", "101,200", "15,825"], KEYS[1]) == (idle[3:6], idle[-1])
    past, refused = line(said, "1234"), line(said, "1233")
    assert ["1234", "59", "min", "continue"] == past[:4]
    assert ["115,247", "115,180", "100%", "24,999", "ms", "answered"] == past[5:]
    assert ["refused", "(503)"] == refused[-2:]


def test_ls_keeps_its_numbers_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the model's name and the verdict give way."""
    at = time.time() - 3_540
    model = "Qwen3-Coder-30B-A3B-Instruct-UD-Q4_K_XL.gguf"
    listed = Listed(KEYS[0], "other size", 123_456_789, at, at, model, 114_047, 1234, "verification failed")
    _print_list([listed, Listed(KEYS[1], "in no index", 1_999, at, at)], "DIR")
    said = capsys.readouterr().out
    assert 80 >= max(map(len, said.splitlines()))
    assert [] == cut(said)
    known, stray = line(said, KEYS[0]), line(said, KEYS[1])
    assert ["114,047", "123.5", "MB", "59", "min", "59", "min", "1234"] == known[2:10]
    assert (["other", "size"], ["in", "no", "index"]) == (known[-2:], stray[-3:])


def test_a_bar_is_to_scale_in_any_width() -> None:
    """It is never cut, which would leave out the free part."""
    slot = {**SLOT, "prefix_tokens": 1, "other_tokens": 1, "free_tokens": 2}
    assert ["█▒··", "██▒▒····", "█" * 6 + "▒" * 6 + "·" * 12] == [Bar(slot).drawn(width).plain for width in (4, 8, 24)]
