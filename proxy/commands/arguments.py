"""What is typed after a command: its own words and flags, and the settings that it reads, from the one class of them.

A flag wins over the environment, the environment over `.env`, as for `serve`. Slips in settings are told on stderr.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from proxy.settings import Settings, add_flags, load

LISTENER = ("admin_host", "admin_port", "admin_token")
FILES = ("dir", "slot_dir", "server_id", "ttl_days", "keep_recent", "max_gb")
More = Callable[[argparse.ArgumentParser], None]
"""Adds a command's own words to its parser."""
EXIT_CODES = "Exit code: 0 done, 1 not done, 2 wrong input or nobody there to ask."


@dataclass(frozen=True, slots=True)
class Given:
    """A command line, read."""

    own: argparse.Namespace
    settings: Settings
    warnings: tuple[str, ...] = ()

    @property
    def as_json(self) -> bool:
        """Whether a program reads the answer."""
        return bool(self.own.json)


def read(
    argv: Sequence[str],
    name: str,
    description: str,
    *,
    settings: Sequence[str] = LISTENER,
    more: More | None = None,
    epilog: str = EXIT_CODES,
) -> Given:
    """Read a command line; raises `SystemExit` for `--help` and unknown flags, as argparse does."""
    parser = argparse.ArgumentParser(f"pi-prefix-cache {name}", description=description, epilog=epilog)
    parser.allow_abbrev = False
    if more is not None:
        more(parser)
    parser.add_argument("--json", action="store_true", help="for programs: JSON on stdout")
    add_flags(parser, settings)
    found, warnings = load(argv, parser)
    return Given(parser.parse_args(argv), found, tuple(warnings))


def tell_warnings(given: Given) -> None:
    """Say what is wrong with the settings, apart from the answer."""
    for warning in given.warnings:
        sys.stderr.write(f"pi-prefix-cache: {warning}\n")


def write_json(value: Any) -> None:
    """An answer for a program."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")
