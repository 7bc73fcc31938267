"""What the files in `docker` and `systemd` say, as plain values; and running a program as somebody else."""

import os
import re
import shlex
from collections import defaultdict
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from proxy.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
COMPOSE = ROOT / "docker" / "compose.yaml"
PROXY_UNIT = ROOT / "systemd" / "pi-prefix-cache.service"
LLAMA_UNIT = ROOT / "systemd" / "llama-server.service"
SYSUSERS = ROOT / "systemd" / "prefix-cache.sysusers"
TMPFILES = ROOT / "systemd" / "prefix-cache.tmpfiles"
SETTINGS = {PREFIX + name.upper() for name in Settings.model_fields}


def instructions(dockerfile: Path = DOCKERFILE) -> list[tuple[str, str]]:
    """The instructions of the last stage, with continued lines joined."""
    text = "\n".join(line for line in dockerfile.read_text().splitlines() if not line.startswith("#"))
    lines = [line.partition(" ") for line in re.sub(r"\\\n\s*", "", text).splitlines() if line]
    found = [(name, rest) for name, _, rest in lines]
    last = max(i for i, (name, _) in enumerate(found) if name == "FROM")
    return found[last:]


def instruction(name: str) -> str:
    """The last instruction of this name."""
    return [rest for word, rest in instructions() if word == name][-1]


def image_environment() -> dict[str, str]:
    """What the image sets, PATH apart."""
    pairs = (word.split("=", 1) for word in shlex.split(instruction("ENV")))
    return {name: value for name, value in pairs if name != "PATH"}


def compose() -> dict[str, Any]:
    """The services of the compose file, with `${NAME:-default}` at its default."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE.read_text())
    services: dict[str, Any] = YAML(typ="safe").load(text)["services"]
    return services


def unit(path: Path) -> dict[str, list[str]]:
    """A unit's settings, whatever their section, each with its values in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in re.sub(r"\\\n\s*", "", path.read_text()).splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name].append(value)
    return found


def as_user(uid: int, gid: int, *groups: int) -> list[str]:
    """The beginning of a command line that is to run as this user; nothing where we may not become others.

    The user may read everything, since our interpreter may lie in a home directory, but can write only what is its own.
    """
    if os.geteuid() != 0:
        return []
    read = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    who = ["--reuid", str(uid), "--regid", str(gid)]
    theirs = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    return ["setpriv", *who, *theirs, *read, "--bounding-set=-all,+dac_read_search", "--pdeathsig", "KILL"]
