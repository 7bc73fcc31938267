"""What systemd hears: ready when requests are taken, alive in between, stopping before the answers are drained."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from proxy.serving import notify
from tests.packaging.served import PATIENCE_S, Served, environment


class Manager:
    """The end of the socket at which a service manager listens."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        self._socket.settimeout(PATIENCE_S)

    def hear(self) -> list[str]:
        return self._socket.recv(4096).decode().splitlines()

    def until(self, line: str) -> list[list[str]]:
        """What was heard before a message with this line."""
        heard: list[list[str]] = []
        while line not in (told := self.hear()):
            heard.append(told)
        return heard

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@prefix-cache-test-{os.getpid()}"
    manager = Manager(address)
    yield manager
    manager.close()


def test_life_of_a_proxy_as_systemd_hears_it(manager: Manager, tmp_path: Path) -> None:
    """READY once it listens, WATCHDOG again and again, STOPPING at SIGTERM; with no server in sight."""
    env = environment(NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="200000")
    with Served("http://127.0.0.1:9/v1", tmp_path, env=env) as served:
        manager.until("READY=1")
        with socket.create_connection(("127.0.0.1", served.port), 5.0):
            pass
        assert [[], []] == [manager.until("WATCHDOG=1"), manager.until("WATCHDOG=1")]
        served.tell()
        manager.until("STOPPING=1")
        assert 0 == served.ended()


def test_hung_event_loop_falls_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The sign of life comes from the loop that serves, twice in an interval and not from a thread beside it."""
    manager = Manager(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr("proxy.serving.notify.asyncio.sleep", sleep)
    with suppress(asyncio.CancelledError):
        asyncio.run(notify.stay_alive())
    assert [30.0] * 3 == slept
    assert [["WATCHDOG=1"]] * 3 == [manager.hear() for _ in range(3)]
    manager.close()


@pytest.mark.parametrize(
    ("interval", "pid", "expected"),
    [
        ("30000000", None, 30.0),
        ("30000000", "", 30.0),
        ("30000000", "ours", 30.0),
        ("30000000", "1", None),
        ("", None, None),
        ("0", None, None),
        ("soon", None, None),
    ],
)
def test_watchdog_is_ours_or_nobodys(
    monkeypatch: pytest.MonkeyPatch, interval: str, pid: str | None, expected: float | None
) -> None:
    """Variables meant for another process, or that can't be read, ask nothing of us."""
    monkeypatch.setenv("WATCHDOG_USEC", interval)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    if pid is not None:
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "ours" else pid)
    assert expected == notify.watchdog_s()


@pytest.mark.parametrize("where", ["", "/nowhere/notify", "@nobody-listens-here"])
def test_manager_that_cannot_hear_costs_nothing(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """No socket, or one that nobody reads: nothing is raised."""
    monkeypatch.setenv("NOTIFY_SOCKET", where)
    notify.tell("READY=1")
