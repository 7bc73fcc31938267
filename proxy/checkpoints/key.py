"""Names of checkpoints: the key that says what a saved state is, and the file names made of it.

Owns the way from "this model, these tokens" to 16 hex digits and to names in the slot directory, and
back from a name to what it means. It refuses every name that it would not have written itself, so that
clean-up can never touch a file of somebody else. Its counterpart is ``slot_directory``, which does the
I/O with these names.

Whatever does not change the saved state stays out of the key: the agent's version, the wording of
the request, our own version. Two fingerprints whose prefix is the same tokens share one checkpoint.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256

# Changes only when the same key would mean another state; every checkpoint is then built once again.
KEY_FORMAT = "pi-prefix-checkpoint-1"
KEY_DIGITS = 16
COMPANION = ".ckpt"  # patched servers write their context checkpoints to "<state file>.ckpt"

_NAME = re.compile(
    rf"pi-prefix-(?P<key>[0-9a-f]{{{KEY_DIGITS}}})\.bin"
    r"(?:\.tmp-(?P<pid>0|[1-9][0-9]{0,9})-(?P<serial>0|[1-9][0-9]{0,9})|\.bad-(?P<bad_at>0|[1-9][0-9]{0,11}))?"
    r"(?P<companion>\.ckpt)?"
)


class FileKind(Enum):
    """What one of our files is for."""

    FINAL = "final"
    TEMPORARY = "temporary"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class OwnName:
    """A file name that we (or a patched server on our behalf) have written, taken apart."""

    key: str
    kind: FileKind
    is_companion: bool = False
    pid: int = 0  # of the proxy that asked for a TEMPORARY
    serial: int = 0
    bad_at: int = 0  # unix time at which a BAD was put aside


def checkpoint_key(model: str, lora: str, server_id: str, tokens: Sequence[int]) -> str:
    """Name the state that a slot of this model holds after exactly these tokens: 16 hex digits.

    ``model`` identifies the weights, ``lora`` the adapters and their scales, ``server_id`` is the user's
    own word for "this is another server". Each part is hashed with its length before it, so that no two
    different sets of parts run together to the same bytes.
    """
    digest = sha256()
    for part in (KEY_FORMAT, model, lora, server_id):
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(struct.pack("<Q", len(raw)) + raw)
    digest.update(struct.pack(f"<{len(tokens)}q", *tokens))
    return digest.hexdigest()[:KEY_DIGITS]


def final_name(key: str) -> str:
    """The name under which a checkpoint that is whole is kept."""
    return f"pi-prefix-{key}.bin"


def temporary_name(key: str, pid: int, serial: int) -> str:
    """The name that the server is told to write to, until what it wrote has been checked."""
    return f"{final_name(key)}.tmp-{pid}-{serial}"


def bad_name(key: str, bad_at: int) -> str:
    """The name of a file that must never be restored again."""
    return f"{final_name(key)}.bad-{bad_at}"


def companion_name(name: str) -> str:
    """The name of what a patched server writes beside ``name``."""
    return name + COMPANION


def main_name(name: str) -> str:
    """The name of the state file that ``name`` is, or is the companion of."""
    return name.removesuffix(COMPANION)


def parse_name(name: str) -> OwnName | None:
    """Read a file name; None for every name that is not exactly one of ours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    part = match.groupdict()
    companion = part["companion"] is not None
    if part["pid"] is not None:
        return OwnName(part["key"], FileKind.TEMPORARY, companion, pid=int(part["pid"]), serial=int(part["serial"]))
    if part["bad_at"] is not None:
        return OwnName(part["key"], FileKind.BAD, companion, bad_at=int(part["bad_at"]))
    return OwnName(part["key"], FileKind.FINAL, companion)


def is_key(text: object) -> bool:
    """Whether ``text`` has the form of a checkpoint key."""
    return isinstance(text, str) and re.fullmatch(rf"[0-9a-f]{{{KEY_DIGITS}}}", text) is not None
