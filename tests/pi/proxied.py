"""The proxy as a person starts it, in a process of its own, and what it says in its log.

Owns: its command line, when it is ready, that it has written its last line before the log is read.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from proxy.demo.processes import end, free_port, spawn
from proxy.settings import PREFIX

ROOT = Path(__file__).parents[2]
START_S = 30.0
DRAIN_S = 30.0


class ProxyProcess:
    """Runs while it is entered; its log can be read after it has ended, when every line has been written."""

    def __init__(self, base_url: str, home: Path) -> None:
        self.port = free_port()
        self.log_path = home / "proxy.log"
        self._base_url = base_url
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        where = ["--base-url", self._base_url, "--port", str(self.port), "--admin-port", ""]
        return [sys.executable, "-m", "proxy", "serve", *where, "--dir", str(self._home / "index")]

    def __enter__(self) -> Self:
        ours = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        environment = {**ours, "PYTHONPATH": str(ROOT), f"{PREFIX}LOG_FORMAT": "json"}
        # Started elsewhere: a developer's .env is none of the tests' business.
        self._process = spawn(["/usr/bin/env", "-C", str(self._home), *self.command()], self.log_path, environment)
        deadline = time.monotonic() + START_S
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError(f"the proxy didn't start:\n{self.log_path.read_text()[-4000:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.status = end(self._process, patience_s=DRAIN_S)

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def requests(self) -> list[dict[str, Any]]:
        """The log's line of each chat request, in order."""
        lines = [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == "request" and line["path"].endswith("/chat/completions")]
