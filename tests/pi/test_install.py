"""Installing Pi: what a developer sees when it can't be had, and that a half of it is never used."""

from pathlib import Path

import pytest

from tests.pi.install import VERSIONS, Installed, InstallError, install

NPM = """#!/bin/sh
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/node_modules/@earendil-works/pi-coding-agent"
cd "$2/node_modules/@earendil-works/pi-coding-agent"
echo '{"bin": {"pi": "cli.js"}}' > package.json
"""
NODE = "#!/bin/sh\necho v24.1.0\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with a Node that is new enough and an empty cache."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/sbin:/sbin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _write(folder / "node", NODE)
    return folder


def test_a_missing_npm_is_told(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install, instead of a traceback out of subprocess."""
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(InstallError, match=r"pi-coding-agent@1\.6\.0 .* no npm on PATH: install Node\.js with npm"):
        install(VERSIONS[0])


def test_what_npm_says_is_passed_on(programs: Path) -> None:
    """Without a network the reason is npm's own."""
    _write(programs / "npm", "#!/bin/sh\necho ENOTFOUND registry >&2\nexit 1\n")
    with pytest.raises(InstallError, match="ENOTFOUND registry"):
        install(VERSIONS[0])


def test_a_cut_installation_is_done_again(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """npm ending in the middle leaves nothing that is taken for Pi; a whole one is used from then on without npm."""
    _write(programs / "npm", NPM + "exit 1\n")
    with pytest.raises(InstallError):
        install(VERSIONS[0])
    assert [] == list((tmp_path / "cache/pi-prefix-cache-dev").glob("pi-*"))
    _write(programs / "npm", NPM)
    home = tmp_path / "cache/pi-prefix-cache-dev/pi-1.6.0"
    cli = home / "node_modules/@earendil-works/pi-coding-agent/cli.js"
    assert Installed(VERSIONS[0], programs / "node", cli) == install(VERSIONS[0])
    (programs / "npm").unlink()
    monkeypatch.setenv("PATH", str(programs))
    assert cli == install(VERSIONS[0]).cli


def _write(program: Path, text: str) -> None:
    program.write_text(text)
    program.chmod(0o755)
