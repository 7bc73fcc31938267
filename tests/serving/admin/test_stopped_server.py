"""A server that is stopped and comes back, as the log, the page's data and the commands tell of it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import structlog

from proxy import logs
from tests.commands.typed import Terminal
from tests.conftest import StartLlama
from tests.serving.admin.administered import administered
from tests.serving.running import sessions

FIRST, SECOND, THIRD = sessions("/a", "/b", "/c", tokens=600)


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    """Lines as JSON, on standard error."""
    logs.configure("json", "info")
    yield capsys
    structlog.reset_defaults()


def lines(log: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in log.readouterr().err.splitlines() if line.startswith("{")]


async def test_it_is_told_in_words_with_its_address_and_not_longer_than_it_lasts(
    start_llama: StartLlama, log: pytest.CaptureFixture[str]
) -> None:
    """Refused is said, each request has its one line, no slot is shown; all of it ends when the server answers."""
    server = start_llama()
    async with administered(server) as proxy:
        await proxy.ask(FIRST)
        await asyncio.to_thread(server.kill)
        proxy.proxy.admin.presence._looked_at = float("-inf")
        before = (await proxy.look("/status")).json
        assert ("unreachable", []) == (before["server"]["state"], before["slots"])
        log.readouterr()
        answers = [await proxy.ask(body) for body in (SECOND, THIRD)]
        said = lines(log)
        told = [one["words"] for one in (await proxy.look("/status")).json["advice"]]
        await asyncio.to_thread(server.start)
        assert 200 == (await proxy.ask(SECOND)).status
        after = (await proxy.look("/status")).json["advice"]
    words = f"llama-server at {server.url} can't be reached (connection refused); requests get a 502 until it answers"
    assert [502, 502] == [answer.status for answer in answers]
    assert ["unreachable"] == [line["reason"] for line in said if line["event"] == "trouble"]
    assert words == proxy.heard.said["unreachable"]
    assert [502, 502] == [line["status"] for line in said if line["event"] == "request"]
    assert words in told
    assert [] == after


async def test_an_idle_proxy_sees_that_it_is_back(start_llama: StartLlama) -> None:
    """No request is needed for the advice to go."""
    server = start_llama()
    async with administered(server) as proxy:
        await asyncio.to_thread(server.kill)
        await proxy.ask(FIRST)
        assert 1 == len(proxy.proxy.admin.history.advice)
        await asyncio.to_thread(server.start)
        await proxy.proxy.engine.lifecycle.look()
        assert 0 == len(proxy.proxy.admin.history.advice)


async def test_commands_name_its_address(start_llama: StartLlama, terminal: Terminal) -> None:
    """`warm` can't be of use then; `status` claims nothing of its slots."""
    server = start_llama()
    async with administered(server) as proxy:
        await proxy.ask(FIRST)
        await asyncio.to_thread(server.kill)
        proxy.proxy.admin.presence._looked_at = float("-inf")
        at = ("--admin-port", proxy.proxy.admin.port)
        warmed, shown = await terminal.beside("warm", *at), await terminal.beside("status", *at)
    assert (1, f"llama-server at {server.url} can't be reached\n") == (warmed.code, warmed.out)
    assert "slots: the server can't be reached" in shown.out
    assert "conversation" not in shown.out
