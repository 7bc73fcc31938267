"""Managed mode: a llama-server of the proxy's own, for `serve --model FILE.gguf [-- llama-server flags]`.

Owns the process: its command line with the flags that the proxy needs, its restarts with growing pauses, its end. It
runs in a session of its own, so that a Ctrl-C meant for the proxy doesn't cut the answers that may still end, and on
Linux it never outlives the proxy, whatever ends that. What it writes goes to the proxy's stderr. Refuses to know
anything else of it: the proxy meets it as it meets any server.
"""

import asyncio
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from proxy import logs
from proxy.errors import PrefixCacheError
from proxy.settings import Settings

log = logs.get_logger()
PORTS = range(20_000, 32_768)
"""Below those that the kernel gives to outgoing connections: nobody takes the port while the server is restarted."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 60.0
"""A server that ran this long was well: the next pause is short again."""
STOP_S = 10.0
OURS = frozenset({"--host", "--port", "-m", "--model", "--slot-save-path", "--no-slots"})

# A small Python that has itself killed with its parent and then becomes the server.
LEASH = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the proxy has gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class CannotManageError(PrefixCacheError):
    """There is no server to start, or not so."""


def planned(settings: Settings, flags: Sequence[str]) -> "tuple[Settings, Managed | None]":
    """The settings as they are with a server of our own, and that server; makes the slot directory.

    Raises CannotManageError where one is wanted that can't be started.
    """
    model = settings.model
    if model is None:
        if flags:
            raise CannotManageError("flags after -- are for the llama-server that --model FILE starts")
        return settings, None
    if not model.is_file():
        raise CannotManageError(f"MODEL={model} is no file")
    if "base_url" in settings.model_fields_set:
        raise CannotManageError("with --model the proxy starts a llama-server of its own: leave BASE_URL out")
    if taken := [flag for flag in flags if flag.partition("=")[0] in OURS]:
        raise CannotManageError(f"{taken[0]} is the proxy's to set; SLOT_DIR says where slots are saved")
    program = shutil.which(settings.llama_server)
    if program is None:
        where = "is no program that can be run" if os.sep in settings.llama_server else "is not on PATH"
        say = "say --llama-server /path or PI_PREFIX_CACHE_LLAMA_SERVER=/path"
        raise CannotManageError(f"{settings.llama_server} {where}; {say}")
    slots, port = settings.slot_dir or settings.dir / "slots", _free_port()
    try:
        slots.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotManageError(f"{slots} can't be made: {error.strerror}") from error
    needed = ["--host", "127.0.0.1", "--port", str(port), "--model", str(model), "--slot-save-path", str(slots)]
    whole_window = ["--swa-full"] if settings.persist else []  # without it a sliding window can't be restored
    changed = {"base_url": f"http://127.0.0.1:{port}/v1", "slot_dir": slots if settings.persist else None}
    return settings.model_copy(update=changed), Managed((program, *needed, *whole_window, *flags))


def _free_port() -> int:
    choose = random.SystemRandom()
    while True:
        port = choose.choice(PORTS)
        with socket.socket() as trial, suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port


class Managed:
    """Keeps one llama-server running."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start it, now and whenever it ends."""
        self._keeping = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End it, in an orderly way if it can."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
        code = await process.wait()
        log.info("managed_stopped", line=f"llama-server has ended ({_why(code)})", code=code)

    async def _keep(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            self._process = await self._spawn()
            log.info("managed", line=f"started llama-server, pid {self._process.pid}", pid=self._process.pid)
            code = await self._process.wait()
            pause_s = FIRST_PAUSE_S if time.monotonic() - began >= STEADY_S else pause_s
            words = f"llama-server ended ({_why(code)}); again in {pause_s:g} s"
            log.warning("managed_ended", line=words, code=code, pause_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _spawn(self) -> asyncio.subprocess.Process:
        leash = [sys.executable, "-I", "-S", "-c", LEASH, str(os.getpid())] if sys.platform == "linux" else []
        nothing = asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(
            *leash, *self._command, stdin=nothing, stdout=sys.stderr, stderr=None, start_new_session=True
        )


def _why(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


def without_dashes(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line before and after its first `--`."""
    at = [*argv, "--"].index("--")
    return [*argv[:at]], [*argv[at + 1 :]]
