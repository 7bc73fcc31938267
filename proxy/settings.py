"""Every setting, declared once: environment, `.env` file and command line read the same class.

Owns names, defaults, limits and the words people read about them: `--help` and `config.example.env` are made from the
declarations below, so they can't disagree. A flag wins over the environment, the environment over `.env`.

A slip in a setting must not keep the proxy from starting: a value that can't be read falls back to its default and a
misspelt name is told, both as warnings for the caller to log. The one exception is the upstream's address: with a wrong
one there is nothing to forward to, and guessing could send prompts to a stranger.

Refuses to look at the server or the disk; whether a directory is there is for those to say who use it.
"""

import argparse
import difflib
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import BeforeValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from proxy.errors import BadBaseUrl, PrefixCacheError

PREFIX: Final = "PI_PREFIX_CACHE_"
ENV_FILE: Final = ".env"


class SettingsError(PrefixCacheError):
    """The settings can't be read at all; the text says where they stand."""


@dataclass(frozen=True, slots=True)
class Expects:
    """What a person should write for a setting, for warnings and `--help`."""

    text: str


def _unescaped(marker: str) -> str:
    r"""Write `\n`, `\t` and `\\` out: a line break can hardly be typed into an environment variable."""
    return re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t", "\\": "\\"}[found[1]], marker)


def _items(value: object) -> object:
    """Read `a, b` or `["a", "b"]`; anything but text is left to pydantic."""
    if not isinstance(value, str):
        return value
    if value.strip().startswith("["):
        return json.loads(value)
    # Only blanks are stripped: a line break may be part of a marker.
    return [item.strip(" ") for item in value.split(",")]


def _markers(value: object) -> object:
    """Read a list, with escapes in the comma-separated form; JSON brings its own."""
    is_plain = isinstance(value, str) and not value.strip().startswith("[")
    items = _items(value)
    return [_unescaped(item) for item in items] if is_plain and isinstance(items, list) else items


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


_finite = Field(ge=0, allow_inf_nan=False)
Port = Annotated[int, Field(ge=0, le=65535), Expects("a port from 0 to 65535")]
Seconds = Annotated[float, _finite, Expects("seconds, 0 or more")]
Count = Annotated[int, Field(ge=0), Expects("a whole number, 0 or more")]
Amount = Annotated[float, _finite, Expects("a number, 0 or more")]
Switch = Annotated[bool, Expects("1 or 0")]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_items), Expects('a, b or ["a", "b"]')]
Markers = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_markers), Expects(r'\n\n# A,\n\n# B or ["\n\n# A"]')]
Slot = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=0)], BeforeValidator(_lower), Expects("auto or a slot number")
]
OptionalPort = Annotated[
    Annotated[int, Field(ge=0, le=65535)] | None, Expects("a port from 0 to 65535, or nothing to turn it off")
]


def _setting(group: str, default: Any, description: str) -> Any:
    return Field(default=default, description=description, json_schema_extra={"group": group}, validate_default=True)


class Settings(BaseSettings):
    """All settings of a running proxy."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=ENV_FILE, env_file_encoding="utf-8", extra="ignore", frozen=True
    )

    base_url: Annotated[str, Expects("http://HOST:PORT/v1, without user, password or query")] = _setting(
        "The server", "http://127.0.0.1:8080/v1", "Where llama-server answers."
    )
    api_key: Annotated[SecretStr, Expects("a key")] = _setting(
        "The server",
        SecretStr(""),
        "Key for work that no client asked for; clients' requests keep their own. Others can read a command line.",
    )
    model: Annotated[Path | None, Expects("a .gguf file")] = _setting(
        "The server", None, "A model that the proxy starts a llama-server of its own for; empty starts none."
    )
    llama_server: Annotated[str, Expects("a program")] = _setting(
        "The server", "llama-server", "The program that is started for MODEL."
    )
    server_id: Annotated[str, Expects("a name")] = _setting(
        "The server",
        "",
        "Tells servers apart whose model files can't be seen from here; part of each checkpoint's key.",
    )
    host: Annotated[str, Expects("an address")] = _setting("Listening", "127.0.0.1", "Address clients connect to.")
    port: Port = _setting("Listening", 8081, "Port clients connect to; 0 takes any free one.")
    admin_host: Annotated[str, Expects("an address")] = _setting(
        "Listening", "127.0.0.1", "Address of status page, metrics and commands."
    )
    admin_port: OptionalPort = _setting("Listening", 8082, "Port of status page, metrics and commands; empty is off.")
    admin_allowed_hosts: Names = _setting(
        "Listening", (), "More names under which the admin listener may be asked for (the Host header)."
    )
    admin_token: Annotated[SecretStr, Expects("a secret")] = _setting(
        "Listening", SecretStr(""), "Token the admin listener asks for; empty asks for none. Better not as a flag."
    )
    observe_only: Switch = _setting("What is prepared", False, "Explain each request and prepare nothing.")
    slot: Slot = _setting("What is prepared", "auto", "Confine all preparation to this slot; auto uses any.")
    models: Names = _setting("What is prepared", (), "Only these model ids; empty is all.")
    markers: Markers = _setting(
        "What is prepared", (), r"More texts that end the stable part of a system prompt; \n is a line break."
    )
    min_prefix_tokens: Count = _setting("What is prepared", 256, "Shorter prefixes aren't worth preparing.")
    persist: Switch = _setting("Checkpoints", False, "Save prefixes as files that outlive the server.")
    slot_dir: Annotated[Path | None, Expects("a directory")] = _setting(
        "Checkpoints", None, "The server's --slot-save-path as seen from here; empty if it can't be seen."
    )
    dir: Annotated[Path, Expects("a directory")] = _setting(
        "Checkpoints", Path("~/.cache/pi/llama-prefix"), "Where the index of checkpoints is kept."
    )
    cleanup: Switch = _setting("Checkpoints", True, "Delete checkpoints by the three limits below.")
    ttl_days: Amount = _setting("Checkpoints", 30, "Days a checkpoint may lie unused.")
    keep_recent: Count = _setting("Checkpoints", 3, "This many of the latest stay, however old.")
    max_gb: Amount = _setting("Checkpoints", 0, "All checkpoints together, in GB; 0 is no limit.")
    max_silence: Seconds = _setting("Time limits", 25, "Longest a client ever waits for work of ours.")
    control_timeout: Seconds = _setting("Time limits", 5, "A short question to the server.")
    warm_timeout: Seconds = _setting("Time limits", 120, "Prefilling a prefix.")
    save_timeout: Seconds = _setting("Time limits", 120, "Saving a slot.")
    restore_timeout: Seconds = _setting("Time limits", 120, "Restoring a slot.")
    erase_timeout: Seconds = _setting("Time limits", 120, "Erasing a slot.")
    drain_timeout: Seconds = _setting("Time limits", 30, "Running answers at shutdown, before they are cut.")
    log_format: Annotated[Literal["console", "json"], BeforeValidator(_lower), Expects("console or json")] = _setting(
        "Logs", "console", "Lines for people, or one JSON object a line."
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(_lower),
        Expects("debug, info, warning or error"),
    ] = _setting("Logs", "info", "Least important line that is written.")

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: object, info: ValidationInfo) -> object:
        """Compose files pass variables that nobody set as empty ones; only an empty admin port says something."""
        if not isinstance(value, str) or value.strip(" ") or info.field_name is None:
            return value
        return None if info.field_name == "admin_port" else cls.model_fields[info.field_name].default

    @field_validator("base_url")
    @classmethod
    def _upstream(cls, value: str) -> str:
        value = value.strip()
        value = value if "://" in value else f"http://{value}"  # `localhost:8080`, as people write it
        parts = urlsplit(value)  # a bracketed address that never closes raises here
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:
            raise ValueError("no http(s) address")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("more than scheme, host, port and path")
        return value

    @field_validator("dir", "slot_dir", "model")
    @classmethod
    def _at_home(cls, value: Path | None) -> Path | None:
        return value.expanduser() if value else value

    @field_validator("markers", "models", "admin_allowed_hosts")
    @classmethod
    def _without_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # An empty marker would match everywhere, an empty model id those requests that name none.
        return tuple(filter(None, value))

    @classmethod
    def read(cls, flags: Mapping[str, Any]) -> tuple[Self, list[str]]:
        """Settings from flags, environment and `.env`, with what to warn about."""
        try:
            return cls(**flags), []
        except ValidationError as error:
            wrong = {str(slip["loc"][0]): slip["input"] for slip in error.errors(include_url=False)}
        if "base_url" in wrong:
            raise BadBaseUrl(_complaint("base_url", wrong["base_url"], flags))
        defaults = {name: cls.model_fields[name].default for name in wrong}
        warnings = [
            f"{_complaint(name, value, flags)}; using {_written(defaults[name]) or 'none'}"
            for name, value in wrong.items()
        ]
        return cls(**{**flags, **defaults}), warnings


def _complaint(name: str, value: object, flags: Mapping[str, Any]) -> str:
    where = flag(name) if name in flags else PREFIX + name.upper()
    shown = re.sub(r"(^|//)[^/]*@", r"\1…@", str(value))[:80]  # this ends in logs, a password mustn't
    return f"{where}={shown!r} can't be read: write {_expects(Settings.model_fields[name])}"


def _expects(field: FieldInfo) -> str:
    return next(note.text for note in field.metadata if isinstance(note, Expects))


def _group(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return str(extra["group"]) if isinstance(extra, dict) else ""


def _grouped() -> Iterator[tuple[str, Iterator[tuple[str, FieldInfo]]]]:
    return groupby(Settings.model_fields.items(), key=lambda item: _group(item[1]))


def _written(value: object) -> str:
    """A default as one would write it into the environment."""
    match value:
        case None | ():
            return ""
        case bool():
            return str(int(value))
        case SecretStr():
            return value.get_secret_value()
        case _:
            return str(value)


def flag(name: str) -> str:
    """The command line's word for a setting."""
    return "--" + name.replace("_", "-")


def add_flags(parser: argparse.ArgumentParser, names: Collection[str] = ()) -> None:
    """Offer settings (default: all) as flags, each in its group; what isn't given isn't in the result."""
    for title, fields in _grouped():
        wanted = [(name, field) for name, field in fields if not names or name in names]
        if not wanted:
            continue
        group = parser.add_argument_group(title)
        for name, field in wanted:
            is_switch = field.annotation is bool
            default = _written(field.default)
            words = f"{field.description} ({_expects(field)}{f'; default {default}' if default else ''})"
            group.add_argument(
                flag(name),
                dest=name,
                metavar=name.rsplit("_", 1)[-1].upper() if not is_switch else "1|0",
                nargs="?" if is_switch else None,
                const="1" if is_switch else None,
                default=argparse.SUPPRESS,
                help=words.replace("%", "%%"),
            )


def load(argv: Sequence[str], parser: argparse.ArgumentParser | None = None) -> tuple[Settings, list[str]]:
    """Settings for this command line and environment, and what to warn about.

    Raises `BadBaseUrl` or `SettingsError` where no proxy could run, and `SystemExit` as argparse does for `--help` and
    unknown flags.
    """
    if parser is None:
        parser = argparse.ArgumentParser(prog="pi-prefix-cache serve", allow_abbrev=False, epilog=_EPILOG)
        add_flags(parser)
    flags = {name: value for name, value in vars(parser.parse_args(argv)).items() if name in Settings.model_fields}
    try:
        settings, warnings = Settings.read(flags)
        in_file = dotenv_values(ENV_FILE) if Path(ENV_FILE).is_file() else {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{ENV_FILE} in {Path.cwd()} can't be read: {type(error).__name__}") from error
    return settings, [*warnings, *_unknown(os.environ, "the environment"), *_unknown(in_file, ENV_FILE)]


_EPILOG: Final = f"Each flag is also a variable, in the environment or {ENV_FILE}: --base-url is {PREFIX}BASE_URL."


def _unknown(names: Iterable[str], where: str) -> list[str]:
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    strangers = [name for name in names if name.upper().startswith(PREFIX) and name.upper() not in known]
    return [f"{name} in {where} is no setting{_nearest(name.upper(), known)}" for name in strangers]


def _nearest(name: str, known: Sequence[str]) -> str:
    # Compared without the prefix, which would make everything look alike.
    nearest = difflib.get_close_matches(name.removeprefix(PREFIX), [word.removeprefix(PREFIX) for word in known], n=1)
    return f"; did you mean {PREFIX}{nearest[0]}?" if nearest else ""


def example_env() -> str:
    """The text of `config.example.env`: `python -m proxy.settings > config.example.env` writes it anew."""
    lines = ["# Copy to .env and uncomment what should differ; each line shows the default."]
    for title, fields in _grouped():
        lines += ["", f"## {title}"]
        for name, field in fields:
            words = f"# {field.description} ({_expects(field)})"
            lines += ["", words, f"#{PREFIX}{name.upper()}={_written(field.default)}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(example_env())
