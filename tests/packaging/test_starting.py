"""The beginning of a proxy: whoever starts first, and what is said where it can't."""

import asyncio
import socket
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from proxy.demo.processes import free_port
from proxy.demo.sessions import session
from tests.conftest import StartLlama
from tests.packaging.served import OURS, Served, environment
from tests.serving.running import ask, talking

N_REFUSED = 12


async def test_server_that_comes_later_is_used_without_a_restart(start_llama: StartLlama, tmp_path: Path) -> None:
    """Requests get a 502 and few lines while there is no server; when it comes, prefixes are prepared."""
    port = free_port()
    with Served(f"http://127.0.0.1:{port}/v1", tmp_path) as served:
        assert "127.0.0.1" == served.until("listening")["host"]
        assert 0 == served.until("upstream")["status"]
        async with talking() as client:
            body = session("/projects/a", prefix_tokens=600, max_tokens=4)
            refused = [(await ask(client, served.base_url, body)).status for _ in range(N_REFUSED)]
            start_llama(port=port)
            met = await asyncio.to_thread(served.until, "server")
            answers = [await ask(client, served.base_url, body)]
            answers += [await ask(client, served.base_url, session("/projects/b", prefix_tokens=600, max_tokens=4))]
        served.tell()
        assert 0 == await asyncio.to_thread(served.ended)
    assert [502] * N_REFUSED == refused
    assert met["slots"] >= 1
    assert [200, 200] == [answer.status for answer in answers]
    assert answers[1].reused > answers[1].prefilled
    counts = Counter(line["event"] for line in served.lines[: served.lines.index(met)])
    assert counts["request"] <= N_REFUSED
    assert counts.total() - counts["request"] <= 6, counts


def _refusal(tmp_path: Path, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OURS, "serve", *flags],
        env=environment(PI_PREFIX_CACHE_DIR=str(tmp_path), **env),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"])
def test_own_address_as_upstream_is_refused(tmp_path: Path, host: str) -> None:
    """A proxy that would forward to itself doesn't start, and says which setting is wrong."""
    port = str(free_port())
    ended = _refusal(tmp_path, "--base-url", f"http://{host}:{port}/v1", "--port", port, "--host", "0.0.0.0")
    assert 2 == ended.returncode
    assert 1 == len(ended.stderr.splitlines())
    assert "BASE_URL" in ended.stderr
    assert "llama-server's address" in ended.stderr


def test_own_status_page_as_upstream_is_refused(tmp_path: Path) -> None:
    """The admin listener is no llama-server either."""
    ports = [str(free_port()), str(free_port())]
    ended = _refusal(
        tmp_path, "--base-url", f"http://127.0.0.1:{ports[1]}/v1", "--port", ports[0], "--admin-port", ports[1]
    )
    assert (2, True) == (ended.returncode, "status page" in ended.stderr)


def test_taken_port_is_told_in_one_line(tmp_path: Path) -> None:
    """Which address, that somebody has it, and what to change."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ended = _refusal(tmp_path, "--port", str(port), "--admin-port", "")
    assert 2 == ended.returncode
    assert 1 == len(ended.stderr.splitlines()), ended.stderr
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "choose another --port" in ended.stderr


def test_address_of_another_machine_is_told_in_one_line(tmp_path: Path) -> None:
    """A `HOST` that isn't this machine's is named, not met with a traceback."""
    ended = _refusal(tmp_path, "--host", "192.0.2.1", "--port", "0", "--admin-port", "")
    assert 2 == ended.returncode
    assert 1 == len(ended.stderr.splitlines()), ended.stderr
    assert "choose another --host" in ended.stderr


def test_slips_in_settings_dont_keep_it_from_starting(tmp_path: Path) -> None:
    """A bad number and a misspelt name are warnings."""
    env = environment(PI_PREFIX_CACHE_KEEP_RECENT="many", PI_PREFIX_CACHE_PRESIST="1")
    with Served("http://127.0.0.1:9/v1", tmp_path, env=env) as served:
        served.until("listening")
        served.tell()
        assert 0 == served.ended()
    assert 2 == len(served.said("setting"))
