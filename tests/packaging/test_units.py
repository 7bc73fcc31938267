"""The systemd units: correct by systemd's own tools, confined, and sharing one directory in peace."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from proxy.demo.servers import ServerBinary
from proxy.settings import Settings
from tests.packaging.files import LLAMA_UNIT, PROXY_UNIT, SETTINGS, SYSUSERS, TMPFILES, unit

MOST_EXPOSED = 2.5
SLOTS = "/var/lib/llama-slots"


def _systemd(program: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    found = shutil.which(program)
    if found is None:
        pytest.fail(f"{program} is missing: apt-get install --no-install-recommends systemd", pytrace=False)
    return subprocess.run([found, *args], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def units(tmp_path: Path) -> list[Path]:
    """Both units, with programs that are there in place of those that a user installs."""
    copies = []
    for source in (PROXY_UNIT, LLAMA_UNIT):
        text, replaced = re.subn(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", source.read_text())
        assert 1 == replaced
        copies.append(tmp_path / source.name)
        copies[-1].write_text(text)
    return copies


def test_units_are_correct(units: list[Path]) -> None:
    """`systemd-analyze verify` has nothing to say."""
    ended = _systemd("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units)
    assert (0, "") == (ended.returncode, ended.stdout + ended.stderr)


def test_proxy_is_confined(units: list[Path]) -> None:
    """`systemd-analyze security` finds little exposure."""
    ended = _systemd("systemd-analyze", "security", "--offline=true", "--no-pager", units[0])
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", ended.stdout)
    assert found is not None, ended.stdout + ended.stderr
    assert float(found[1]) < MOST_EXPOSED


def test_proxy_outlives_the_server() -> None:
    """It is started after llama-server and wants it, but doesn't go down with it."""
    proxy = unit(PROXY_UNIT)
    assert "llama-server.service" in proxy["Wants"][0].split()
    assert "llama-server.service" in proxy["After"][0].split()
    assert set() == {"Requires", "BindsTo", "PartOf", "Requisite"} & set(proxy)


def test_proxy_tells_systemd_how_it_is() -> None:
    """Ready when it says so, restarted when it falls silent, given longer to stop than answers are to end."""
    proxy = unit(PROXY_UNIT)
    assert ["notify"] == proxy["Type"]
    assert float(proxy["WatchdogSec"][0]) >= 10
    assert float(proxy["TimeoutStopSec"][0]) > Settings.model_fields["drain_timeout"].default + 10


def test_units_share_the_slot_directory() -> None:
    """Named users, one group, setgid and a umask that lets the group write; the server's flag and our setting agree."""
    proxy, llama = unit(PROXY_UNIT), unit(LLAMA_UNIT)
    assert [] == proxy["DynamicUser"] + llama["DynamicUser"]
    assert ["0007"] * 2 == [proxy["UMask"][0], llama["UMask"][0]]
    assert llama["Group"] == proxy["SupplementaryGroups"]
    assert [SLOTS.removeprefix("/var/lib/")] == llama["StateDirectory"]
    assert ["2770"] == llama["StateDirectoryMode"]
    assert f"--slot-save-path {SLOTS}/" in llama["ExecStart"][0]
    assert f"PI_PREFIX_CACHE_SLOT_DIR={SLOTS}" in proxy["Environment"]
    assert [f"-{SLOTS}"] == proxy["ReadWritePaths"]


def test_slot_directory_is_made_at_boot_as_the_server_would() -> None:
    """Whoever starts first finds it: tmpfiles and the server's StateDirectory say the same owner, group and mode."""
    llama = unit(LLAMA_UNIT)
    (line,) = (line for line in TMPFILES.read_text().splitlines() if not line.startswith("#"))
    owner, group, mode = llama["User"][0], llama["Group"][0], llama["StateDirectoryMode"][0]
    assert ["d", SLOTS, mode, owner, group, "-"] == line.split()


def test_users_of_both_units_are_made(tmp_path: Path) -> None:
    """`systemd-sysusers` makes both users and their common group."""
    (tmp_path / "etc").mkdir()
    ended = _systemd("systemd-sysusers", f"--root={tmp_path}", "--dry-run", SYSUSERS)
    assert 0 == ended.returncode, ended.stderr
    for name in (unit(PROXY_UNIT)["User"][0], unit(LLAMA_UNIT)["User"][0]):
        assert f"Would create user '{name}'" in ended.stderr or f"Creating user '{name}'" in ended.stderr
        assert re.search(rf"(?m)^m {name} +{unit(LLAMA_UNIT)['Group'][0]}$", SYSUSERS.read_text())


def test_variables_are_settings() -> None:
    """No name of ours in the unit is a misspelt one."""
    names = {pair.partition("=")[0] for pair in unit(PROXY_UNIT)["Environment"]}
    assert names
    assert set() == names - SETTINGS


def test_flags_are_known_to_the_server(llama_binary: ServerBinary) -> None:
    """Every flag in the example of the server's unit is one."""
    told = subprocess.run(
        [llama_binary.path, "--help"], env=dict(llama_binary.environment), capture_output=True, text=True, check=False
    )
    known = set(told.stdout.replace(",", " ").split())
    flags = {word for word in unit(LLAMA_UNIT)["ExecStart"][0].split() if word.startswith("--")}
    assert {"--slot-save-path", "--slots"} <= flags
    assert set() == flags - known
