"""What is handed out: a wheel that installs and runs where nothing else is."""

import subprocess
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import proxy
from tests.packaging.conftest import Installed
from tests.packaging.files import ROOT
from tests.packaging.served import Served, environment

pytestmark = pytest.mark.timeout(600)


def _run(installed: Installed, directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = environment(PYTHONPATH="")
    return subprocess.run(
        [installed.command, *args], env=env, cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )


def test_version_is_the_same_everywhere(installed: Installed, tmp_path: Path) -> None:
    """File name, metadata and `--version` all follow `proxy.__version__`."""
    ended = _run(installed, tmp_path, "--version")
    with zipfile.ZipFile(installed.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        told = Parser().parsestr(wheel.read(name).decode())["Version"]
    assert f"pi-prefix-cache {proxy.__version__}\n" == ended.stdout
    assert proxy.__version__ == told
    assert installed.wheel.name.startswith(f"pi_prefix_cache-{proxy.__version__}-")


def test_wheel_holds_the_package_and_nothing_else(installed: Installed) -> None:
    """Every file of the package, data included; no tests, no benches."""
    made = {"__pycache__", ".mypy_cache"}
    source = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "proxy").rglob("*")
        if path.is_file() and not made & set(path.parts)
    }
    with zipfile.ZipFile(installed.wheel) as wheel:
        packed = set(wheel.namelist())
    assert set() == source - packed
    assert {"proxy"} == {name.split("/")[0] for name in packed if ".dist-info/" not in name}


def test_help_needs_no_package_of_the_demo(installed: Installed, tmp_path: Path) -> None:
    """A person who installed the wheel can read every flag."""
    ended = _run(installed, tmp_path, "serve", "--help")
    assert (0, "") == (ended.returncode, ended.stderr)
    assert "--base-url" in ended.stdout


def test_installed_wheel_serves(installed: Installed, tmp_path: Path) -> None:
    """With its declared dependencies alone it listens, and ends in order."""
    program = [str(installed.command)]
    with Served("http://127.0.0.1:9/v1", tmp_path, program=program, env=environment(PYTHONPATH="")) as served:
        served.until("listening")
        served.tell()
        assert 0 == served.ended()
    assert [] == served.said("text")
