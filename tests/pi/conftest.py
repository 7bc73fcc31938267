"""Runs the real Pi through the proxy against a real llama-server. Only when asked for by path: it installs from npm."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.models import model_path
from proxy.demo.servers import LlamaServer
from tests.pi.agent import Pi, Turn
from tests.pi.install import VERSIONS, PiVersion, install
from tests.pi.proxied import ProxyProcess
from tests.pi.recorder import Exchange, Recorder

HERE = Path(__file__).parent
ANSWER = "Hello from a tiny model."
CONTEXT = "The zebra protocol is in force here."
QUESTION = "What is the zebra protocol?"


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave this folder out of `pytest` and `pytest tests`; `pytest tests/pi` collects it."""
    asked = [(config.invocation_params.dir / arg.split("::")[0]).resolve() for arg in config.args]
    return None if any(path == HERE or HERE in path.parents for path in asked) else True


@dataclass(frozen=True, slots=True)
class Run:
    """What one Pi did in its sessions, in order: its own view, what passed, what the proxy logged."""

    version: PiVersion
    turns: list[Turn]
    exchanges: list[Exchange]
    lines: list[dict[str, Any]]
    log: str


@pytest.fixture(scope="session")
def server() -> Iterator[LlamaServer]:
    """A server that always says the same sentence and ends by itself; Pi calls a cut answer an error."""
    with LlamaServer(model_path("dense"), "--grammar", f'root ::= "{ANSWER}"', ctx=32768) as running:
        yield running


@pytest.fixture(scope="session", params=VERSIONS, ids=str)
def run(request: pytest.FixtureRequest, server: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two folders, in each a session today and one tomorrow, two turns each."""
    home = tmp_path_factory.mktemp("pi")
    installed = install(request.param)
    server.restart()  # what another version has left in it is nobody's business
    proxy = ProxyProcess(server.base_url, home)
    with proxy, Recorder(proxy.port) as recorder:
        pi = Pi(installed, home / "agent", recorder.base_url)
        turns = [turn for day in (0, 1) for folder in _folders(home) for turn in _session(pi, folder, day)]
    return Run(request.param, turns, recorder.exchanges, proxy.requests(), proxy.log_path.read_text())


def _folders(home: Path) -> list[Path]:
    plain, explained = home / "plain", home / "explained"
    for folder in (plain, explained):
        folder.mkdir(exist_ok=True)
    (explained / "AGENTS.md").write_text(f"# Conventions\n\n{CONTEXT}\n")
    return [plain, explained]


def _session(pi: Pi, folder: Path, day: int) -> list[Turn]:
    return [pi.ask(folder, QUESTION, day=day), pi.ask(folder, QUESTION, day=day, resumed=True)]
