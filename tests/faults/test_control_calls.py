"""Each call of ours fails in each way: requests are answered all the same, in time, and few words are said of it."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.demo.sessions import Body, next_turn
from proxy.serving import acquaintance
from tests.faults.pretender import FAULTS, TEXT, Pretender
from tests.serving.running import PATIENCE_S, Answer, Running, running, sessions
from tests.wire import recording

CALLS = [
    "props",
    "v1/models",
    "lora-adapters",
    "slots",
    "apply-template",
    "tokenize",
    "prefill",
    "prefill-plainly",
    "copy",
    "look",
    "save",
    "restore",
    "erase",
    "displace",
]
LIMIT_S, SLACK_S = 0.15, 1.5
LIMITS: dict[str, Any] = {f"{what}_timeout": LIMIT_S for what in ("warm", "save", "restore", "erase")}
LIMITS["control_timeout"] = 2 * LIMIT_S  # it bounds connecting, too
LATE_S = 2 * LIMITS["control_timeout"] + SLACK_S
"""The first request of all can wait for a call of the probe and then for one of its own."""


ALWAYS = {"hangs", "dies", "is-cut", "never-ends", "says-500", "says-nonsense", "lies-in-types", "leaves-out-fields"}
ALWAYS_LATER = {"hangs", "lies-in-types"}
"""The others only with `make test-long`."""


def cases() -> Iterator[Any]:
    """Each call with each fault, from the start on and later."""
    for call, name, later in itertools.product(CALLS, FAULTS, (False, True)):
        marks = [] if name in (ALWAYS_LATER if later else ALWAYS) else [pytest.mark.long]
        yield pytest.param(call, name, later, id=f"{call}-{name}{'-later' * later}", marks=marks)


def trace() -> list[Body]:
    """Two installs take turns in one slot: warm-ups, saves, restores, copies."""
    (one, another), (other,) = sessions("/a", "/b", tokens=400), sessions("/c", tokens=400, seed=5)
    return [one, other, another, next_turn(one, TEXT, "go on"), next_turn(other, TEXT, "go on")]


async def asked(proxied: Running) -> list[Answer]:
    return [await proxied.ask(body) for body in trace()]


async def test_nothing_fails(tmp_path: Any) -> None:
    """Every kind of call is made in this trace, so that each can fail."""
    server = Pretender()
    async with (
        recording(server.script) as upstream,
        running(f"http://127.0.0.1:{upstream.port}/v1", persist=True, dir=tmp_path) as proxied,
    ):
        answers = await asked(proxied)
    assert [TEXT] * 5 == [answer.text for answer in answers]
    assert {*CALLS, "chat"} == {*server.calls}
    assert ["slot_dir_unset"] == proxied.heard.troubles


@pytest.mark.parametrize(("call", "name", "later"), [*cases()])
async def test_a_call_of_ours_fails(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, call: str, name: str, later: bool
) -> None:
    """From the start on, or after the first session: each request has its answer, late by that call's limit at most.

    `MAX_SILENCE`, which ends every wait, is far away: it must not be what ends this one.
    """
    monkeypatch.setattr(acquaintance, "PROBE_S", LIMIT_S)
    fault = FAULTS[name]
    server = Pretender(faults={} if later else {call: fault})
    with capture_logs() as lines:
        async with (
            recording(server.script) as upstream,
            running(
                f"http://127.0.0.1:{upstream.port}/v1", persist=True, dir=tmp_path, max_silence=PATIENCE_S, **LIMITS
            ) as proxied,
        ):
            if later:
                await proxied.ask(trace()[0])
                server.faults[call] = fault
            answers = await asked(proxied)
    assert [(200, TEXT)] * 5 == [(answer.status, answer.text) for answer in answers]
    assert max(answer.headers_s for answer in answers) < LATE_S
    said = [line.get("reason") or line["event"] for line in lines if line["log_level"] in ("warning", "error")]
    assert sorted(set(said)) == sorted(said)
    assert 6 >= len(said), said
