"""The ways to the same server that are compared, each a process of its own on a port of its own.

Owns: how each is started, its processes, what they have used of processor and memory. All end with the block.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from bench.ways import NotHereError, hearth_program
from proxy.demo.processes import end, free_port, spawn
from proxy.demo.proxies import ProxyProcess

START_S = 20.0
TICKS = os.sysconf("SC_CLK_TCK")
HERE = Path(__file__).parents[2]
NGINX = """
worker_processes 1; daemon off; pid {home}/nginx.pid; error_log {home}/nginx.log warn;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_max_body_size 0; keepalive_requests 1000000;
  client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/f;
  uwsgi_temp_path {home}/u; scgi_temp_path {home}/s;
  upstream server {{ server 127.0.0.1:{upstream}; keepalive 128; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 1h;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to ask, and who works for it."""

    name: str
    port: int
    pid: int = 0

    def cpu_s(self) -> float:
        """Processor time of the process and its children so far."""
        total = 0
        for pid in self._pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def peak_mb(self) -> float:
        """The most memory that it ever had."""
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in self._pids()]
        lines = [line for text in texts for line in text.splitlines() if line.startswith("VmHWM:")]
        return sum(int(line.split()[1]) for line in lines) / 1000

    def _pids(self) -> list[int]:
        if not self.pid:
            return []
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]


def ready(port: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait until somebody listens there."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise NotHereError(f"nothing listens on port {port}")


@contextmanager
def program(name: str, home: Path, command: list[str], port: int) -> Iterator[Place]:
    """A program that listens on this port."""
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    process = spawn(command, home / f"{name}.out", environment, home)
    try:
        ready(port, process)
        yield Place(name, port, process.pid)
    finally:
        end(process)


_MANY_SLOTS: set[int] = set()
"""Ports of servers that have more than one."""


@contextmanager
def upstream(home: Path, n_slots: int = 64) -> Iterator[Place]:
    """The server that answers at once."""
    port = free_port()
    command = [sys.executable, "-m", "bench.overhead.upstream", str(port), str(home), str(n_slots)]
    with program("direct", home, command, port) as place:
        if n_slots > 1:
            _MANY_SLOTS.add(port)
        yield Place("direct", place.port)


@contextmanager
def _ours(home: Path, upstream_port: int) -> Iterator[Place]:
    with ProxyProcess(f"http://127.0.0.1:{upstream_port}/v1", home) as proxy:
        yield Place("this proxy", proxy.port, proxy.pid)


@contextmanager
def _bare(home: Path, upstream_port: int) -> Iterator[Place]:
    port = free_port()
    command = [sys.executable, "-m", "bench.overhead.bare", str(port), f"http://127.0.0.1:{upstream_port}"]
    with program("bare", home, command, port) as place:
        yield place


@contextmanager
def _nginx(home: Path, upstream_port: int) -> Iterator[Place]:
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise NotHereError("nginx isn't installed: apt-get install nginx-light")
    port = free_port()
    settings = home / "nginx.conf"
    settings.write_text(NGINX.format(home=home, upstream=upstream_port, port=port))
    with program("nginx", home, [found, "-p", str(home), "-c", str(settings)], port) as place:
        yield place


ONE_AT_A_TIME = {"hearth"}
"""A lock around each chat: of several streams all but one would only wait."""


@contextmanager
def _hearth(home: Path, upstream_port: int) -> Iterator[Place]:
    program_path, port = str(hearth_program()), free_port()
    # It wants a server with a single slot, and sees for itself whether that saves to its directory.
    with upstream(home, 1) if upstream_port in _MANY_SLOTS else nullcontext(Place("", upstream_port)) as server:
        where = ["--upstream", f"http://127.0.0.1:{server.port}", "--port", str(port), "--cache-dir", str(home)]
        with program("hearth", home, [program_path, "serve", *where], port) as place:
            yield place


WAYS = {"this proxy": _ours, "bare": _bare, "nginx": _nginx, "hearth": _hearth}


@contextmanager
def places(home: Path, server_port: int, names: list[str]) -> Iterator[tuple[list[Place], dict[str, str]]]:
    """Every way that can be gone here, and why others can't."""
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        found = [Place("direct", server_port)]
        for name in names:
            at = home / name.replace(" ", "-")
            at.mkdir()
            try:
                found.append(stack.enter_context(WAYS[name](at, server_port)))
            except NotHereError as why:
                missing[name] = str(why)
        yield found, missing
