"""The bench of what the proxy adds: it measures the way that requests go in earnest, and judges as it says."""

import xml.etree.ElementTree as ET
from pathlib import Path

import orjson
import pytest

from bench.overhead.client import Line, chat
from bench.overhead.figures import Figures, goals, quantile
from bench.overhead.places import upstream
from bench.overhead.report import as_json, as_svg
from tests.serving.running import running

SIZES = [1000, 100_000, 1_000_000]


def measured(ms: float, cpu_s: float = 1.0) -> Figures:
    figures = Figures(peak_mb=50.0)
    for scenario in ("GET", "chat 100 kB", "chat 5 MB", "delay a chunk, 1 streams", "delay a chunk, 64 streams"):
        figures.add(scenario, [ms / 1000] * 3, cpu_s, 100)
    return figures


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_measured_is_the_hit_path(tmp_path: Path, size: int) -> None:
    """From the second request on the slot is known to hold the conversation, and nothing of ours is waited for."""
    with upstream(tmp_path, 4) as server:
        async with running(f"http://127.0.0.1:{server.port}/v1") as proxied:
            line = Line(proxied.proxy.port)
            for number in range(3):
                await line.ask(chat(size))
                await proxied.heard.until(lambda: len(proxied.heard.requests) > number)  # noqa: B023
            line.close()
    assert ["continue"] * 2 == proxied.sources[1:]
    assert abs(len(chat(size)) - size) < 3000


def test_a_quantile_is_a_value_that_was_there() -> None:
    assert (1, 2, 3) == tuple(quantile([3, 1, 2], part) for part in (0.0, 0.5, 0.99))


def test_goals_are_judged_by_what_the_floor_adds() -> None:
    """Twice what a bare forwarder adds to a request, not twice what it takes."""
    direct, floor = measured(1.0), measured(2.0)
    for ms, is_met in ((2.9, True), (3.1, False)):
        reached = goals({"direct": direct, "this proxy": measured(ms), "bare": floor, "hearth": measured(9.0, 3.1)})
        assert is_met == next(goal for goal in reached if goal.what.startswith("GET")).is_met
        assert next(goal for goal in reached if goal.what.startswith("cpu")).is_met


def test_the_files_can_be_read() -> None:
    """JSON, and a drawing that is well formed."""
    ways = {"direct": measured(1.0), "this proxy": measured(2.0), "bare": measured(1.5)}
    assert 2.0 == orjson.loads(as_json(ways, {}))["ways"]["this proxy"]["scenarios"]["GET"]["p50_ms"]
    assert "svg" in ET.fromstring(as_svg(ways)).tag
