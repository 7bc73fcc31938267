"""What the README tells to type first, on a clean clone: the Makefile's own recipes, from nothing but a Python."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy.demo.servers import ServerBinary
from proxy.settings import PREFIX
from tests.packaging.files import ROOT

MADE = shutil.ignore_patterns(".git", ".venv", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", "build", "dist")
DEMO_S = 500
TOTALS = re.compile(r"in all: ([\d,]+) tokens directly, ([\d,]+) through the proxy")


@dataclass(frozen=True, slots=True)
class Demo:
    """One run of `make demo` on a clean clone, and what was left of it."""

    clone: Path
    ended: "subprocess.CompletedProcess[str]"
    files: list[Path]
    processes: list[str]

    @property
    def tables(self) -> list[list[list[str]]]:
        """A row a turn (session, number, source, prompt, prefilled directly and proxied); then what both ways took."""
        parts = self.ended.stdout.split("model, tools")[1:]
        rows = [[line.split()[:6] for line in part.splitlines() if line.lstrip().startswith("~/")] for part in parts]
        totals = [[*total] for total in TOTALS.findall(" ".join(self.ended.stdout.split()))]
        return [[*turns, total] for turns, total in zip(rows, totals, strict=True)]


@pytest.fixture(scope="module")
def demo(llama_binary: ServerBinary, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """`make demo`, as a person types it who has just cloned."""
    del llama_binary
    home = tmp_path_factory.mktemp("demo")
    there, rest = clone(home / "clone"), home / "tmp"
    rest.mkdir()
    # The README quotes the server that `make demo` installs.
    ours = {"PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "LLAMA_SERVER"}
    kept = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith(PREFIX)}
    environment = {**kept, "PYTHON": sys.executable, "TMPDIR": str(rest), "COLUMNS": "80"}
    ended = subprocess.run(
        ["make", "demo"], cwd=there, env=environment, capture_output=True, text=True, timeout=DEMO_S, check=False
    )
    return Demo(there, ended, [*rest.iterdir()], [line for line in processes() if str(home) in line])


def clone(there: Path) -> Path:
    """The repository's last commit; the files themselves where they came without a repository."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        whoever_owns_it = ["-c", "safe.directory=*"]
        subprocess.run(["git", *whoever_owns_it, "clone", "--quiet", ROOT, there], check=True, timeout=60)
    else:
        shutil.copytree(ROOT, there, ignore=MADE)
    return there


@pytest.mark.timeout(DEMO_S + 60)
def test_make_demo_on_a_clean_clone(demo: Demo) -> None:
    """Installs, shows both models, each turn both ways, ends well and leaves nothing running."""
    assert 0 == demo.ended.returncode, demo.ended.stderr[-4000:]
    assert ["dense", "hybrid"] == [line.split()[0] for line in demo.ended.stdout.splitlines() if "model," in line]
    assert [7, 7] == [len(table) for table in demo.tables]
    assert "through the proxy: turn 2" in demo.ended.stderr
    assert (demo.clone / ".venv" / "bin" / "pi-prefix-cache").exists()
    assert ([], []) == (demo.files, demo.processes)


@pytest.mark.timeout(DEMO_S + 60)
def test_the_demo_shows_the_difference(demo: Demo) -> None:
    """By the servers' own counts: a third at most on a hybrid model with its tools last, no more on a dense one."""
    (*_, dense), (*rows, hybrid) = demo.tables
    assert 3 * number(hybrid[1]) < number(hybrid[0])
    assert number(dense[1]) <= number(dense[0])
    assert [True] * 6 == [50 * number(row[5]) < number(row[4]) for row in rows]


@pytest.mark.timeout(DEMO_S + 60)
@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_the_readme_quotes_the_demo(demo: Demo, kind: str) -> None:
    """Token for token, the totals too: nothing in these figures is left to chance."""
    assert quoted(kind) == demo.tables[["dense", "hybrid"].index(kind)]


def quoted(kind: str) -> list[list[str]]:
    """The README's table of this model, in the demo's order of columns."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    part = readme.split(f"**{kind.capitalize()} model")[1].split("\n\n")[1]
    cells = [[cell.strip(" *`") for cell in line.strip("|").split("|")] for line in part.splitlines()[2:]]
    return [[*row[0].split(), *row[1:]] for row in cells[:-1]] + [cells[-1][-2:]]


def number(told: str) -> int:
    return int(told.replace(",", ""))


def processes() -> list[str]:
    """The command lines of all processes."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_text(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return lines
