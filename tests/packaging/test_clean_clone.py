"""What the README tells to type first, on a clean clone: the Makefile's own recipes, from nothing but a Python."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.settings import PREFIX
from tests.packaging.files import ROOT

MADE = shutil.ignore_patterns(".git", ".venv", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", "build", "dist")
DEMO_S = 500
TOTALS = re.compile(r"in all: ([\d,]+) tokens directly, ([\d,]+) through the proxy")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The repository's last commit; the files themselves where they came without a repository."""
    there = tmp_path / "clone"
    if (ROOT / ".git").exists() and shutil.which("git"):
        whoever_owns_it = ["-c", "safe.directory=*"]
        subprocess.run(["git", *whoever_owns_it, "clone", "--quiet", ROOT, there], check=True, timeout=60)
    else:
        shutil.copytree(ROOT, there, ignore=MADE)
    return there


@pytest.mark.timeout(DEMO_S + 60)
@pytest.mark.usefixtures("llama_binary")
def test_make_demo_on_a_clean_clone(clone: Path, tmp_path: Path) -> None:
    """Installs, shows both models with the difference that the proxy makes, ends well and leaves nothing running."""
    ours = {"PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL"}
    kept = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith(PREFIX)}
    rest = tmp_path / "tmp"
    rest.mkdir()
    environment = {**kept, "PYTHON": sys.executable, "TMPDIR": str(rest), "COLUMNS": "80"}
    made = subprocess.run(
        ["make", "demo"], cwd=clone, env=environment, capture_output=True, text=True, timeout=DEMO_S, check=False
    )
    assert 0 == made.returncode, made.stderr[-4000:]
    assert ["dense", "hybrid"] == [line.split()[0] for line in made.stdout.splitlines() if "model," in line]
    assert 12 == sum(made.stdout.count(folder) for folder in ("~/shop", "~/blog", "~/notes"))
    assert "through the proxy: turn 2" in made.stderr
    dense, hybrid = (
        [int(count.replace(",", "")) for count in total] for total in TOTALS.findall(" ".join(made.stdout.split()))
    )
    assert dense[0] + 100 > dense[1]
    assert hybrid[0] > 3 * hybrid[1]
    assert (clone / ".venv" / "bin" / "pi-prefix-cache").exists()
    assert [] == list(rest.iterdir())
    assert [] == [line for line in processes() if str(tmp_path) in line]


def processes() -> list[str]:
    """The command lines of all processes."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_text(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return lines
