"""Getting a compiled server: downloaded and compiled once, resumed when broken off, never taken half-made."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from proxy.demo import newer

HOME = Path("pi-prefix-cache-dev") / "llama-server-11434"


class Tools:
    """Stands for pip, tar, cmake and ninja: makes what they would make, notes who was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.breaks: str | None = None

    def __call__(self, command: Sequence[str | Path], **_: object) -> None:
        words = [str(word) for word in command]
        step = "download" if "download" in words else "unpack" if words[0] == "tar" else words[1]
        self.calls.append(step)
        if step == self.breaks:
            raise subprocess.CalledProcessError(1, words)
        self.make(step, words)

    def make(self, step: str, words: list[str]) -> None:
        match step:
            case "download":
                Path(words[words.index("--dest") + 1], "package.tar.gz").touch()
            case "unpack":
                Path(words[-1], "package", "llama.cpp").mkdir(parents=True)
            case "-G":
                Path(words[words.index("-B") + 1]).mkdir(exist_ok=True)
            case "--build":
                program = Path(words[2], "bin", "llama-server")
                program.parent.mkdir()
                program.touch()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    made = Tools()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("proxy.demo.newer.subprocess.run", made)
    monkeypatch.setattr("proxy.demo.newer.shutil.which", lambda tool: f"/usr/bin/{tool}")
    return made


def test_first_time_compiles_and_later_finds(tools: Tools, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first call downloads and compiles, the second only tells where the program is; stdout has nothing else."""
    assert 0 == newer.main() == newer.main()
    assert ["download", "unpack", "-G", "--build"] == tools.calls
    assert f"{tmp_path / HOME / 'llama-server'}\n" * 2 == capsys.readouterr().out
    assert [tmp_path / HOME] == list((tmp_path / HOME).parent.glob("llama-server*"))


@pytest.mark.parametrize(
    ("broken", "again"),
    [
        ("download", ["download", "unpack", "-G", "--build"]),
        ("unpack", ["download", "unpack", "-G", "--build"]),
        ("-G", ["-G", "--build"]),
        ("--build", ["-G", "--build"]),
    ],
)
def test_what_broke_off_goes_on(tools: Tools, tmp_path: Path, broken: str, again: list[str]) -> None:
    """A failure at any step gives exit 1 and no program; the next call repeats what is needed."""
    tools.breaks = broken
    assert 1 == newer.main()
    assert not (tmp_path / HOME).exists()
    tools.breaks = None
    tools.calls.clear()
    assert 0 == newer.main()
    assert again == tools.calls


def test_without_a_compiler_it_says_so(
    tools: Tools, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No C++ compiler: exit 1 and what to install, before anything is compiled."""
    monkeypatch.setattr("proxy.demo.newer.shutil.which", lambda _: None)
    assert 1 == newer.main()
    assert "g++" in capsys.readouterr().err
    assert "--build" not in tools.calls
