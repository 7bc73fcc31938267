"""`pi-prefix-cache serve` as a process of its own: what it says, what it answers, how it ends."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

import proxy
from proxy.demo.processes import free_port
from proxy.settings import PREFIX

PATIENCE_S = 30.0
OURS = (sys.executable, "-m", "proxy")
SOURCE = str(Path(proxy.__file__).parents[1])


def environment(**more: str) -> dict[str, str]:
    """Ours, without what would set a proxy up or report to a service manager."""
    strangers = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX) and name not in strangers}
    return {**kept, "PYTHONPATH": SOURCE, "PYTHONDONTWRITEBYTECODE": "1", **more}


class Served:
    """A proxy that runs while it is entered; its log is read as it is written."""

    def __init__(
        self,
        base_url: str,
        directory: Path,
        *flags: str,
        program: Sequence[str] = OURS,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        admin: str = "",
    ) -> None:
        self.port = port or free_port()
        self.lines: list[dict[str, Any]] = []
        upstream = ["--base-url", base_url] if base_url else []
        where = [*upstream, "--port", str(self.port), "--admin-port", admin, "--log-format", "json"]
        self._command = [*program, "serve", *where, "--dir", str(directory / "index"), *flags]
        self._directory = directory
        self._env = environment() if env is None else env
        self._heard: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not entered"
        return self._process

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; the exit status."""
        status = self.process.wait(PATIENCE_S)
        self.until_end_of_log()
        return status

    def until(self, event: str) -> dict[str, Any]:
        """The next line of this kind, waited for."""
        while (line := self._next()) is not None:
            if line["event"] == event:
                return line
        raise AssertionError(f"the proxy ended without {event!r}; it said {self.lines}")

    def until_end_of_log(self) -> None:
        while self._next() is not None:
            pass

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            env=dict(self._env),
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.until_end_of_log()

    def _next(self) -> dict[str, Any] | None:
        line = self._heard.get(timeout=PATIENCE_S)
        if line is None:
            self._heard.put(None)  # the end stays the end
            return None
        self.lines.append(line)
        return line

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as log:
            for line in log:
                self._heard.put(orjson.loads(line) if line.startswith(b"{") else {"event": "text", "text": line})
        self._heard.put(None)
