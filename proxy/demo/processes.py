"""Child processes that never outlive this one, and free ports for them.

Owns: starting a program so that the kernel kills it when its parent dies, whatever way that happens (SIGKILL of a test
run included). Counterpart: `servers`, which knows what a llama-server is.

Linux sends a parent-death signal when the *thread* that started the child ends, so one thread that lives as long as
the process starts them all. The signal is set by a small Python that then becomes the program: nothing of ours runs
between fork and exec in a process with threads. Elsewhere only an orderly end of the parent ends the child.
"""

import atexit
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Below the range from which the kernel takes ports of outgoing connections: nobody takes the port of a server that is
# being restarted.
PORTS = range(20000, 32768)

BECOME = """
import ctypes, os, signal, sys
parent, program = int(sys.argv[1]), sys.argv[2:]
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != parent:
    sys.exit("the parent has gone")
os.execv(program[0], program)
"""

_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter")
_running: set[subprocess.Popen[bytes]] = set()
_random = random.SystemRandom()


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    while True:
        port = _random.choice(PORTS)
        if is_free(port):
            return port


def is_free(port: int) -> bool:
    """Could a server listen on this loopback port now?"""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def spawn(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, directory: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a program (a full path first) whose output is appended to `log` and that ends when this process does."""
    leash = [sys.executable, "-I", "-S", "-c", BECOME, str(os.getpid())] if sys.platform == "linux" else []
    process = _starter.submit(_open, [*leash, *command], log, environment, directory).result()
    _running.add(process)
    return process


def end(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM, patience_s: float = 5.0) -> int:
    """End a process that `spawn` started, with SIGKILL when it takes too long; returns its exit status."""
    if process.poll() is None:
        process.send_signal(how)
    try:
        status = process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    _running.discard(process)
    return status


def _open(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None, directory: Path | None
) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            start_new_session=True,  # a Ctrl-C in the terminal is ours to pass on
        )


@atexit.register
def _end_all() -> None:
    for process in list(_running):
        end(process, signal.SIGKILL)
