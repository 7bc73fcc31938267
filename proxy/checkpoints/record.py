"""What we know about one checkpoint, and how that is written down.

Owns the record, the few changes that can happen to it, and its JSON form. Reading is tolerant of the
file and strict with the entry: an entry that doesn't fit is returned as a ``Misfit`` with its reason, and
the caller goes on with the others. No I/O, no clock; ``index`` keeps the records.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from proxy.checkpoints.key import is_key

MAX_FINGERPRINTS = 32  # a prefix that ever more fingerprints point at must not make the index grow without end
MAX_LOGPROBS = 64


@dataclass(frozen=True, slots=True)
class Seal:
    """A file as it was when its bytes were last proven: while the stat is the same, so are the bytes."""

    size_bytes: int
    checksum: str  # xxh3-128, 32 hex digits
    inode: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One exact prefix that the server has saved."""

    key: str
    model_id: str
    model: str  # the same three strings that went into the key
    lora: str
    server_id: str
    n_tokens: int
    size_bytes: int
    created_at: float
    last_used_at: float
    fingerprints: tuple[str, ...] = ()  # newest last
    seal: Seal | None = None  # None: the slot directory can't be seen from here
    companion: Seal | None = None  # what a patched server wrote beside it
    format_version: int = 0  # of the state file; 0: not known
    build: str = ""  # of the server that saved it
    uses: int = 0
    strikes: int = 0  # verifications failed since the last good one
    verdict: str = ""  # of the last verification
    logprobs: tuple[tuple[int, float], ...] = ()  # (token id, log-probability) after the prefix and one fixed token

    def pointed_at(self, fingerprint: str) -> "Checkpoint":
        """The same checkpoint with one more fingerprint; the oldest goes when there are too many."""
        if fingerprint in self.fingerprints:
            return self
        return replace(self, fingerprints=(*self.fingerprints, fingerprint)[-MAX_FINGERPRINTS:])

    def used(self, now: float) -> "Checkpoint":
        """The same checkpoint after a use."""
        return replace(self, last_used_at=now, uses=self.uses + 1)

    def verified(self, verdict: str) -> "Checkpoint":
        """The same checkpoint after the server has proven it good."""
        return replace(self, verdict=verdict, strikes=0)

    def struck(self, verdict: str) -> "Checkpoint":
        """The same checkpoint after a verification that failed."""
        return replace(self, verdict=verdict, strikes=self.strikes + 1)


@dataclass(frozen=True, slots=True)
class Misfit:
    """An entry that could not be read, and why."""

    key: str
    reason: str


class _NotFittingError(ValueError):
    """Ends the reading of one entry; never leaves this module."""


def to_json(record: Checkpoint) -> bytes:
    """One record as one line of JSON; text that isn't Unicode keeps its shape but not its surrogates."""
    try:
        return orjson.dumps(record)
    except TypeError:
        return orjson.dumps({name: _clean(value) for name, value in asdict(record).items()})


def from_json(key: str, entry: object) -> Checkpoint | Misfit:
    """Read one parsed entry that the index keeps under ``key``."""
    try:
        return _read(key, entry)
    except _NotFittingError as misfit:
        return Misfit(key[:64], str(misfit))


def _clean(value: object) -> object:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _read(key: str, entry: object) -> Checkpoint:
    if not is_key(key):
        raise _NotFittingError("key: not 16 hex digits")
    if not isinstance(entry, Mapping):
        raise _NotFittingError("not an object")
    if entry.get("key") != key:
        raise _NotFittingError("key: not the one it is kept under")
    return Checkpoint(
        key=key,
        model_id=_text(entry, "model_id"),
        model=_text(entry, "model"),
        lora=_text(entry, "lora"),
        server_id=_text(entry, "server_id"),
        n_tokens=_count(entry, "n_tokens"),
        size_bytes=_count(entry, "size_bytes"),
        created_at=_number(entry, "created_at"),
        last_used_at=_number(entry, "last_used_at"),
        fingerprints=_fingerprints(entry),
        seal=_seal(entry, "seal"),
        companion=_seal(entry, "companion"),
        format_version=_count(entry, "format_version"),
        build=_text(entry, "build"),
        uses=_count(entry, "uses"),
        strikes=_count(entry, "strikes"),
        verdict=_text(entry, "verdict"),
        logprobs=_logprobs(entry),
    )


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise _NotFittingError(f"{name}: not a text")
    return value


def _count(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _NotFittingError(f"{name}: not a count")
    return value


def _number(entry: Mapping[str, Any], name: str) -> float:
    return _finite(entry.get(name), name)


def _finite(value: object, name: str) -> float:
    # By type, not by class: thousands of these are read at a start, and a bool is no number here.
    if type(value) is float or type(value) is int:
        number = float(value)
        if math.isfinite(number):
            return number
    raise _NotFittingError(f"{name}: not a number")


def _list(entry: Mapping[str, Any], name: str) -> list[Any]:
    value = entry.get(name)
    if not isinstance(value, list):
        raise _NotFittingError(f"{name}: not a list")
    return value


def _fingerprints(entry: Mapping[str, Any]) -> tuple[str, ...]:
    values = _list(entry, "fingerprints")
    if not all(isinstance(value, str) for value in values):
        raise _NotFittingError("fingerprints: not all texts")
    return tuple(values[-MAX_FINGERPRINTS:])


def _seal(entry: Mapping[str, Any], name: str) -> Seal | None:
    value = entry.get(name)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _NotFittingError(f"{name}: not an object")
    mtime_ns = value.get("mtime_ns")
    if not isinstance(mtime_ns, int) or isinstance(mtime_ns, bool):
        raise _NotFittingError(f"{name}: mtime_ns: not a time")
    return Seal(_count(value, "size_bytes"), _text(value, "checksum"), _count(value, "inode"), mtime_ns)


def _logprobs(entry: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    pairs = []
    for pair in _list(entry, "logprobs")[:MAX_LOGPROBS]:
        if type(pair) is not list or len(pair) != 2 or type(pair[0]) is not int:  # noqa: PLR2004
            raise _NotFittingError("logprobs: not pairs of a token and a number")
        pairs.append((pair[0], _finite(pair[1], "logprobs")))
    return tuple(pairs)
