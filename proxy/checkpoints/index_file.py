"""The bytes of ``index.json``: what they say, and whether they can be trusted.

Pure; ``index`` reads and writes the file. Never raises, whatever the bytes. One checkpoint stands on one
line, so that a person can read the file and a diff shows what changed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from proxy.checkpoints.record import Checkpoint, Misfit, from_json, to_json

SCHEMA = 1


class IndexState(Enum):
    """What kind of file it is."""

    GOOD = "good"
    CORRUPT = "corrupt"  # also: some entries don't fit
    NEWER = "newer_schema"
    FOREIGN = "pi_extension"  # the agent's extension keeps an index of the same name, with no schema in it


@dataclass(frozen=True, slots=True)
class IndexRead:
    """What the bytes say."""

    state: IndexState
    records: tuple[Checkpoint, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    reason: str = ""


def read_index(raw: bytes) -> IndexRead:
    """Read the whole file's bytes."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return IndexRead(IndexState.CORRUPT, reason=f"not JSON: {error}"[:200])
    if not isinstance(document, Mapping) or not document:
        return IndexRead(IndexState.CORRUPT, reason="not an object with content")
    if "schema" not in document:
        return IndexRead(IndexState.FOREIGN)
    return _read_document(document)


def write_index(records: Iterable[Checkpoint]) -> bytes:
    """The whole file's bytes for these records."""
    # Encoded one by one: a single call for thousands of records would hold up the event loop's thread.
    lines = (b'"%b":%b' % (record.key.encode(), to_json(record)) for record in records)
    return b'{"schema":%d,"checkpoints":{\n%b\n}}\n' % (SCHEMA, b",\n".join(lines))


def _read_document(document: Mapping[str, Any]) -> IndexRead:
    schema, entries = document["schema"], document.get("checkpoints")
    if type(schema) is not int or schema < 1:
        return IndexRead(IndexState.CORRUPT, reason="schema: not a version")
    if schema > SCHEMA:
        return IndexRead(IndexState.NEWER, reason=f"schema {schema}, this version knows {SCHEMA}")
    if not isinstance(entries, Mapping):
        return IndexRead(IndexState.CORRUPT, reason="checkpoints: not an object")
    read = [from_json(key, entry) for key, entry in entries.items()]
    records = tuple(item for item in read if isinstance(item, Checkpoint))
    misfits = tuple(item for item in read if isinstance(item, Misfit))
    if misfits:
        return IndexRead(IndexState.CORRUPT, records, misfits, f"{len(misfits)} entries don't fit: {misfits[0].reason}")
    return IndexRead(IndexState.GOOD, records)
