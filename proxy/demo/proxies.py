"""The proxy as a person starts it: a process of its own, with flags, in front of a llama-server.

Owns: its command line, when it is ready, what its log tells of each chat request. Refuses: anything from the
surroundings; neither the user's settings nor a `.env` nor the user's checkpoints have a part in a demo.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import orjson

import proxy
from proxy.demo.processes import end, free_port, spawn
from proxy.settings import PREFIX

START_S = 30.0
DRAIN_S = 30.0
TAIL_LINES = 20


class ProxyStartError(RuntimeError):
    """The proxy ended or hung instead of listening; the message ends with its last log lines."""


class ProxyProcess:
    """Runs while it is entered, with its index and log in `home`; the log is whole when it has ended."""

    def __init__(self, base_url: str, home: Path, *flags: str) -> None:
        self.port = free_port()
        self.log_path = home / "proxy.log"
        self._base_url = base_url
        self._home = home
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        """Where a client finds the proxy."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int:
        """Its process, once it is entered."""
        if self._process is None:
            raise RuntimeError("the proxy was never started")
        return self._process.pid

    def command(self) -> list[str]:
        """The whole command line."""
        where = ["--base-url", self._base_url, "--port", str(self.port), "--admin-port", ""]
        kept = ["--dir", str(self._home / "index"), "--log-format", "json"]
        return [sys.executable, "-m", "proxy", "serve", *where, *kept, *self._flags]

    def __enter__(self) -> Self:
        ours = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        environment = {**ours, "PYTHONPATH": str(Path(proxy.__file__).parents[1])}
        self._process = spawn(self.command(), self.log_path, environment, self._home)
        deadline = time.monotonic() + START_S
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise ProxyStartError(f"the proxy didn't start:\n{self.log_tail()}")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Have it end in an orderly way, if it has not; returns its exit status."""
        return 0 if self._process is None else end(self._process, patience_s=DRAIN_S)

    def log_tail(self) -> str:
        """The last lines that the proxy wrote."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    def requests(self) -> list[dict[str, Any]]:
        """The log's line of each chat request, in order."""
        lines = [orjson.loads(line) for line in self.log_path.read_bytes().splitlines() if line.startswith(b"{")]
        return [line for line in lines if line["event"] == "request" and line["path"].endswith("/chat/completions")]

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
