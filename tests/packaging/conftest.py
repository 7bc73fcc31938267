"""The wheel as it is handed out, in an environment of its own with nothing but what it declares."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packaging.files import ROOT

PIP = ("pip", "--quiet", "--disable-pip-version-check", "--no-input")


@dataclass(frozen=True, slots=True)
class Installed:
    """A clean environment with the wheel in it."""

    wheel: Path
    bin: Path

    @property
    def command(self) -> Path:
        return self.bin / "pi-prefix-cache"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the wheel and install it as a user does."""
    home = tmp_path_factory.mktemp("installed")
    _run(sys.executable, "-m", *PIP, "wheel", "--no-deps", "--wheel-dir", home, ROOT)
    _run(sys.executable, "-m", "venv", home / "venv")
    (wheel,) = home.glob("*.whl")
    _run(home / "venv" / "bin" / "python", "-m", *PIP, "install", wheel)
    return Installed(wheel, home / "venv" / "bin")


def _run(*command: str | Path) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if ended.returncode:
        pytest.fail(f"{command}: {ended.stdout}{ended.stderr}", pytrace=False)
