"""The head of a state file that llama-server wrote: which tokens does it hold?

Owns the reading of the first bytes; pure, ``slot_directory`` gets them from the disk. The server itself
checks of a file hardly more than the architecture's name before it loads the rest, and it aborts on many
that are damaged. So we read what can be proven from outside: magic, format version, token ids.

Layout, all little-endian 32-bit words, the same in the builds seen, whatever the model's kind of memory:

    magic, format version, W, then W words of payload, then the state itself

The payload is either ``-1, 1, N, N token ids, 0`` (a list of tokens and no media) or, in older builds,
the plain token ids. A payload of another form is not understood, hence not handed to a server.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

MAGIC = 0x67677371
FIXED_BYTES = 12
_WRAPPING_WORDS = 4  # -1, 1, N … 0
_WORD = 4


@dataclass(frozen=True, slots=True)
class Header:
    """What the first bytes of a state file say."""

    format_version: int
    tokens: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Header(format_version={self.format_version}, n_tokens={len(self.tokens)})"


@dataclass(frozen=True, slots=True)
class NotRead:
    """These bytes are not the head of a state file that we understand."""

    reason: str  # "too_short", "magic", "payload"


def header_bytes(first: bytes) -> int | NotRead:
    """How many bytes the whole head has, read from its first 12."""
    if len(first) < FIXED_BYTES:
        return NotRead("too_short")
    magic, _, words = struct.unpack_from("<3I", first)
    return FIXED_BYTES + _WORD * words if magic == MAGIC else NotRead("magic")


def read_header(head: bytes) -> Header | NotRead:
    """Read the head of a state file; bytes that follow it don't matter."""
    needed = header_bytes(head)
    if isinstance(needed, NotRead):
        return needed
    if len(head) < needed:
        return NotRead("too_short")
    _, version, words = struct.unpack_from("<3I", head)
    tokens = _tokens(struct.unpack_from(f"<{words}i", head, FIXED_BYTES))
    return NotRead("payload") if tokens is None else Header(version, tokens)


def is_of(header: Header, tokens: Sequence[int]) -> bool:
    """Whether the file holds exactly these tokens."""
    return header.tokens == tuple(tokens)


def _tokens(words: tuple[int, ...]) -> tuple[int, ...] | None:
    if words and words[0] == -1:
        is_text = len(words) >= _WRAPPING_WORDS and words[1] == 1 and words[-1] == 0
        if not is_text or words[2] != len(words) - _WRAPPING_WORDS:
            return None
        words = words[3:-1]
    return None if any(word < 0 for word in words) else words
