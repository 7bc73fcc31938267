"""What a person sees of the checkpoints: what the index knows beside what lies in the slot directory.

Pure, over what ``slot_directory.scan`` saw; knows no path and changes nothing. A running proxy and the commands show
the same records, whichever of them has looked.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from proxy.checkpoints.cleanup import FileSeen
from proxy.checkpoints.key import FileKind, OwnName, companion_name, final_name, main_name, parse_name
from proxy.checkpoints.record import Checkpoint

_documented = ConfigDict(use_attribute_docstrings=True)

THERE, MISSING, OTHER_SIZE, UNSEEN = "there", "missing", "other size", "unseen"
UNLISTED, ASIDE, UNFINISHED = "in no index", "put aside", "unfinished"
_KINDS = {FileKind.FINAL: UNLISTED, FileKind.BAD: ASIDE, FileKind.TEMPORARY: UNFINISHED}


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint, or a file of ours that is none."""

    __pydantic_config__: ClassVar[ConfigDict] = _documented
    key: str
    disk: str
    """there, missing, other size, unseen (SLOT_DIR not set); without entry: in no index, put aside, unfinished."""
    size_bytes: int
    created_at: float
    """Seconds since 1970."""
    last_used_at: float
    model: str = ""
    tokens: int = 0
    uses: int = 0
    verdict: str = ""
    """Of the last verification: good, another word, or nothing."""
    strikes: int = 0
    """Verifications failed since the last good one."""
    build: str = ""
    """Of the server that saved it."""
    format_version: int = 0
    fingerprints: tuple[str, ...] = ()
    """First 16 hex digits of those requests that it served, newest last."""

    @property
    def is_known(self) -> bool:
        """Whether the index has it."""
        return self.disk in (THERE, MISSING, OTHER_SIZE, UNSEEN)


def model_name(model_id: str) -> str:
    """A model's name; where nobody gave it one its id is the path of its file."""
    return model_id.rpartition("/")[2]


def listing(records: Iterable[Checkpoint], files: Sequence[FileSeen] | None) -> list[Listed]:
    """Everything there is, the most recently used first; ``files`` is None where the directory can't be seen."""
    seen = {file.name: file for file in files or ()}
    known = [_known(record, None if files is None else seen) for record in records]
    names = {final_name(one.key) for one in known}
    mains = sorted({main_name(name) for name in seen} - names)
    strays = [_stray(own, main, seen) for main in mains if (own := parse_name(main)) is not None]
    return sorted([*known, *strays], key=lambda one: (one.is_known, one.last_used_at), reverse=True)


def _known(record: Checkpoint, seen: Mapping[str, FileSeen] | None) -> Listed:
    return Listed(
        key=record.key,
        disk=UNSEEN if seen is None else _state(record, seen.get(final_name(record.key))),
        size_bytes=record.size_bytes + (record.companion.size_bytes if record.companion else 0),
        created_at=record.created_at,
        last_used_at=record.last_used_at,
        model=model_name(record.model_id),
        tokens=record.n_tokens,
        uses=record.uses,
        verdict=record.verdict,
        strikes=record.strikes,
        build=record.build,
        format_version=record.format_version,
        fingerprints=tuple(name[:16] for name in record.fingerprints),
    )


def _state(record: Checkpoint, file: FileSeen | None) -> str:
    if file is None:
        return MISSING
    return THERE if file.is_regular and file.size_bytes == record.size_bytes else OTHER_SIZE


def _stray(own: OwnName, main: str, seen: Mapping[str, FileSeen]) -> Listed:
    files = [seen[name] for name in (main, companion_name(main)) if name in seen]
    written_at = max(file.mtime for file in files)
    size = sum(file.size_bytes for file in files)
    return Listed(own.key, _KINDS[own.kind], size, created_at=written_at, last_used_at=written_at)
