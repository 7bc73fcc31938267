"""Which server process and which model is this: records read from `/props`, `/v1/models` and `/lora-adapters`. Pure.

`media_marker` is drawn anew by each server process, so one cheap `GET /props`, which does not even wake a sleeping
server, tells whether everything we believe is still about the process that runs now. Older builds have none; then the
best there is is the number of slots and the model's path.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from proxy.request.fingerprint import ModelIdentity

MOST_SLOTS = 1024
"""More are not a llama-server's."""
_UNSTABLE = frozenset({"created", "updated", "loaded_at"})


@dataclass(frozen=True, slots=True)
class Process:
    """What `/props` says of the server process."""

    marker: str
    total_slots: int
    n_ctx: int
    model_path: str
    build: str
    is_sleeping: bool
    is_router: bool = False
    """It has no slots of its own, but passes requests to a process for each model."""
    has_own_marker: bool = False
    """The marker is of this process alone; else another one with the same model and build has it too."""


def process(props: Mapping[str, Any]) -> Process:
    """Read `/props`; whatever is missing or odd becomes empty."""
    settings = props.get("default_generation_settings")
    n_ctx = settings.get("n_ctx") if isinstance(settings, dict) else 0
    slots = props.get("total_slots")
    path, build = _text(props.get("model_path")), _text(props.get("build_info"))
    marker = _text(props.get("media_marker"))
    return Process(
        marker=marker or f"{path}|{slots}|{build}",
        total_slots=slots if isinstance(slots, int) and 0 < slots <= MOST_SLOTS else 1,
        n_ctx=n_ctx if isinstance(n_ctx, int) else 0,
        model_path=path,
        build=build,
        is_sleeping=props.get("is_sleeping") is True,
        is_router=props.get("role") == "router",
        has_own_marker=bool(marker),
    )


def model_identity(
    told: Process, models: Mapping[str, Any], lora: Sequence[Any], *, server_id: str, file: str, wanted: str = ""
) -> ModelIdentity:
    """Which weights: the file where it can be seen from here, else what the server says of them."""
    data = models.get("data")
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    entry = next((e for e in entries if e.get("id") == wanted), entries[0] if entries else {})
    meta = entry.get("meta")
    stable = {k: v for k, v in meta.items() if k not in _UNSTABLE} if isinstance(meta, dict) else {}
    return ModelIdentity(
        model_id=_text(entry.get("id")),
        file=file,
        meta=_canonical(stable),
        model_path=told.model_path,
        lora=adapters_text(lora),
        server_id=server_id,
    )


def adapters_text(lora: Sequence[Any]) -> str:
    """LoRA adapters and their scales, as they go into an identity."""
    return _canonical(list(lora)) if lora else ""


def names_of_models(models: Mapping[str, Any]) -> dict[str, str]:
    """From `/v1/models`: every name under which a model may be asked for, with its id."""
    data = models.get("data")
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    names: dict[str, str] = {}
    for entry in entries:
        aliases = entry.get("aliases")
        for name in [*(aliases if isinstance(aliases, list) else ()), entry.get("id")]:
            names[_text(name)] = _text(entry.get("id"))
    names.pop("", None)
    return names


def file_identity(path: str) -> str:
    """Size and modification time of the model file (blocking); "" where it can't be seen from here."""
    try:
        seen = Path(path).stat() if path else None
    except (OSError, ValueError):
        return ""
    return f"{seen.st_size}:{seen.st_mtime_ns}" if seen else ""


def _canonical(value: Any) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # nested deeper than orjson writes, though not than it reads
        return ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
