"""Logs: their shape, what never gets into them, and that writing them never fails."""

import contextlib
import io
import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from proxy.logs import Format, SaidOnce, configure, get_logger

REQUEST: dict[str, Any] = {
    "method": "POST",
    "path": "/v1/chat/completions",
    "status": 200,
    "model": "tiny",
    "fingerprint": "16ba1104",
    "source": "hit",
    "reason": "slot 0 holds it",
    "prompt_tokens": 1360,
    "prompt_n": 264,
    "cache_n": 1096,
    "reuse": 0.81,
    "figures": "timings",
    "ours_ms": 1.25,
}


class Written:
    """All that was written to stderr so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._text = capsys, ""

    def getvalue(self) -> str:
        self._text += self._capsys.readouterr().err
        return self._text


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Written:
    return Written(capsys)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers.clear()  # else they are closed when ours are put in
    yield
    structlog.reset_defaults()
    root.handlers[:] = before
    root.setLevel(level)


def test_console_line_has_the_mark_and_its_fields(stderr: Written) -> None:
    """A line is one line, begins with the mark, and quotes what has blanks; what is None is left out."""
    configure()
    get_logger(slot=0).info("RESTORE", n_restored=1096, reason="no match", gone=None, warm=True)
    assert '[prefix-cache] RESTORE slot=0 n_restored=1096 reason="no match" warm=true\n' == stderr.getvalue()


def test_console_line_can_be_in_known_words(stderr: Written) -> None:
    """Lines that users of the Pi extension know stay as they were, while JSON keeps event and fields."""
    known = "observed normal request: prompt_n=1360 cache_n=1096 (reuse 81%)"
    configure()
    get_logger().info("request", line=known, prompt_n=1360)
    configure("json")
    get_logger().info("request", line=known, prompt_n=1360)
    console, as_json = stderr.getvalue().splitlines()
    assert f"[prefix-cache] {known}" == console
    assert {"event": "request", "prompt_n": 1360, "level": "info"} == _without_time(as_json)


def test_warnings_and_errors_say_so(stderr: Written) -> None:
    """A person sees what is wrong without knowing the words."""
    configure()
    get_logger().warning("no slot directory")
    get_logger().error("upstream gone")
    assert "[prefix-cache] WARNING: no slot directory\n[prefix-cache] ERROR: upstream gone\n" == stderr.getvalue()


def test_json_line_is_one_object_with_all_fields(stderr: Written) -> None:
    """Types are kept, and a time and a level stand beside."""
    configure("json")
    get_logger().info("request", **REQUEST)
    assert {"event": "request", "level": "info", **REQUEST} == _without_time(stderr.getvalue())
    assert "timestamp" in json.loads(stderr.getvalue())


def test_lines_below_the_level_are_not_written(stderr: Written) -> None:
    """A logger made before `configure` follows it."""
    log = get_logger()
    configure(level="warning")
    log.info("quiet")
    configure(level="debug")
    log.debug("loud")
    assert "[prefix-cache] loud\n" == stderr.getvalue()


@pytest.mark.parametrize("format_", ["console", "json"])
def test_long_text_is_cut_and_bytes_are_dropped(stderr: Written, format_: Format) -> None:
    """Whatever the level of nesting, a prompt that got here by mistake doesn't get out whole."""
    secret = "s" * 150 + "TAIL" * 50
    nested: Any = [{"a": [secret, b"BYTES"], "b": bytearray(b"BYTES")}]
    configure(format_)
    get_logger().info(
        secret, line=secret, text=secret, raw=b"BYTES", view=memoryview(b"BYTES"), nested=nested, parts=[b"BYTES"]
    )
    get_logger().info("many", many=["x"] * 1000, deep=[[[[["DEEP"]]]]], error=ValueError(secret))
    assert not [word for word in ("TAIL" * 13, "BYTES", "DEEP") if word in stderr.getvalue()]
    assert 4000 > len(stderr.getvalue())


@pytest.mark.parametrize("format_", ["console", "json"])
def test_an_exception_leaves_its_type_and_places_only(stderr: Written, format_: Format) -> None:
    """Messages of exceptions may quote what a client sent."""
    configure(format_)
    try:
        raise ValueError("hush")
    except ValueError:
        get_logger().exception("step failed")
    assert "hush" not in stderr.getvalue()
    assert "ValueError" in stderr.getvalue()
    assert f"{__file__}:" in stderr.getvalue()


def test_lines_of_libraries_come_in_our_shape_without_values(stderr: Written) -> None:
    """aiohttp's complaints about a bad request would quote it."""
    configure()
    logging.getLogger("aiohttp.server").error("Error handling %r", "hush")
    logging.getLogger("aiohttp.access").info("quiet")
    assert "[prefix-cache] ERROR: Error handling %r logger=aiohttp.server\n" == stderr.getvalue()


def test_control_characters_stay_out_of_the_terminal(stderr: Written) -> None:
    """No value of a client's starts a second line or paints the terminal."""
    configure()
    get_logger().info("event", line="c\x1b[31m\nd")
    get_logger().info("a\nb", path="/x\r\n\x1b[2J\u202e")
    assert 2 == len(stderr.getvalue().splitlines())
    assert not [c for c in stderr.getvalue().replace("\n", "") if not c.isprintable()]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=8,
)


@given(value=anything)
def test_any_value_gives_one_line(value: Any) -> None:
    """Lone surrogates, huge integers and NaN cost nobody an answer."""
    formats: tuple[Format, ...] = ("console", "json")
    for format_ in formats:
        configure(format_)
        with contextlib.redirect_stderr(io.StringIO()) as written:
            get_logger().info("event", value=value)
        assert 1 == written.getvalue().count("\n")
    json.loads(written.getvalue())


@pytest.mark.parametrize("value", ["\ud800", 10**5000, -(2**64), object()], ids=["half", "huge", "65 bits", "object"])
def test_values_that_json_has_no_word_for_are_written(stderr: Written, value: object) -> None:
    """They are told in other words."""
    configure("json")
    get_logger().info("event", value=value)
    assert "event" == json.loads(stderr.getvalue())["event"]


def test_a_closed_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads it, and no request may suffer for it."""
    closed = io.StringIO()
    closed.close()
    configure()
    for nowhere in (closed, None):
        monkeypatch.setattr(sys, "stderr", nowhere)
        get_logger().info("event")


@pytest.mark.parametrize("format_", ["console", "json"])
def test_a_request_line_is_cheap(format_: Format) -> None:
    """Best of five rounds: under 50 µs of processor time a line."""
    configure(format_)
    log = get_logger()

    def round_us() -> float:
        began = time.process_time()
        for _ in range(500):
            log.info("request", **REQUEST)
        return (time.process_time() - began) / 500 * 1e6

    assert 50 > min(round_us() for _ in range(5))


def test_a_reason_is_said_once_and_again_later_with_its_count() -> None:
    """Held back within the interval, then said with how many were held back."""
    said = SaidOnce(again_s=60)
    assert [0, None, None, 2, None, 1] == [said.due("no_boundary", now) for now in (0, 1, 59, 60, 61, 200)]


def test_reasons_are_apart_and_can_be_forgotten() -> None:
    """Each has its own count; one that went away is news when it comes back."""
    said = SaidOnce()
    assert (0, 0, None) == (said.due("a", 0), said.due("b", 0), said.due("a", 1))
    said.forget("a")
    assert (0, None) == (said.due("a", 2), said.due("b", 2))


def test_memory_of_reasons_is_bounded() -> None:
    """Beyond the limit the one said longest ago goes, the latest are kept."""
    said = SaidOnce(limit=10)
    for key in range(1000):
        said.due(key, 0)
    assert "<SaidOnce 10 of 10 again_s=3600.0>" == repr(said)
    assert (None, 0) == (said.due(999, 0), said.due(0, 0))


def _without_time(line: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(line).items() if key != "timestamp"}
