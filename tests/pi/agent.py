"""Pi as a person starts it, in a home of its own: nothing of the developer's settings gets in, nothing gets out.

Owns: Pi's configuration, environment and command line. Counterpart: `install`, which says what to start.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.pi.install import Installed

TURN_S = 60
MODEL = "tiny"
API_KEY = "sk-of-the-client-0123456789"
LATER = Path(__file__).parent / "later.cjs"


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of Pi and what came of it."""

    folder: str
    day: int
    status: int
    answer: str
    complaints: str


class Pi:
    """One installed Pi with one home directory, talking to one address."""

    def __init__(self, installed: Installed, home: Path, base_url: str) -> None:
        self._installed = installed
        self._home = home
        home.mkdir()
        (home / "models.json").write_text(json.dumps(_models(base_url)))

    def __repr__(self) -> str:
        return f"<Pi {self._installed.version} home={self._home}>"

    def ask(self, folder: Path, words: str, *, day: int = 0, resumed: bool = False) -> Turn:
        """Ask one thing in this folder, `day` days from now, in a new session or the last one of this folder."""
        program = [str(self._installed.node), str(self._installed.cli)]
        options = ["--provider", "local", "--model", MODEL, *(["--continue"] if resumed else [])]
        done = subprocess.run(
            [*program, *options, "-p", words],
            cwd=folder,
            env=self._environment(day),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TURN_S,
            check=False,
        )
        return Turn(folder.name, day, done.returncode, done.stdout.strip(), done.stderr)

    def _environment(self, day: int) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self._home),
            "PI_CODING_AGENT_DIR": str(self._home),
            "PI_OFFLINE": "1",
            "NODE_OPTIONS": f"--require {json.dumps(str(LATER))}",
            "DAYS_LATER": str(day),
        }


def _models(base_url: str) -> dict[str, object]:
    model = {"id": MODEL, "name": MODEL, "contextWindow": 32768, "maxTokens": 64}
    provider = {"baseUrl": base_url, "api": "openai-completions", "apiKey": API_KEY, "models": [model]}
    return {"providers": {"local": provider}}
