"""What llama-server's answers to our own calls say, read without trust: nothing in here raises, whatever they are.

Pure. Counterpart: `client` asks, and decides what a missing figure means.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import orjson

from proxy.slots.ledger import Look

MAX_TOLD = 200


@dataclass(frozen=True, slots=True)
class Warmed:
    """What came of prefilling a prompt."""

    slot: int
    """-1 where the answer did not say."""
    prompt_n: int
    cache_n: int
    prompt_ms: float


@dataclass(frozen=True, slots=True)
class SlotFile:
    """What the server says of a state file it has written or read."""

    n_tokens: int
    n_bytes: int


def error_message(body: bytes) -> str:
    """The message of an error as llama-server shapes it, as far as it is text and short."""
    try:
        message = orjson.loads(body)["error"]["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
        return ""
    return "".join(c for c in message[:MAX_TOLD] if c.isprintable()) if isinstance(message, str) else ""


def event_of(line: bytes) -> dict[str, Any]:
    """One line of a stream; empty for a line that is no event."""
    if not line.startswith(b"data:"):
        return {}
    try:
        told = orjson.loads(line[5:])
    except orjson.JSONDecodeError:
        return {}
    return told if isinstance(told, dict) else {}


def is_count(value: object) -> bool:
    """Whether this is a whole number that counts something."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def are_tokens(value: Any) -> TypeGuard[list[int]]:
    """Whether these are token ids; there may be half a million of them, so nothing here looks at one by one."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        return False
    try:
        return min(array("i", value), default=0) >= 0
    except OverflowError:
        return False


def count(told: Mapping[str, Any], name: str) -> int:
    """A count by its name; 0 where there is none."""
    value = told.get(name)
    return value if isinstance(value, int) and is_count(value) else 0


def warmed(told: Mapping[str, Any]) -> Warmed | None:
    """Slot and figures of a completion; None where it has no timings."""
    timings = told.get("timings")
    if not isinstance(timings, dict):
        return None
    slot = told.get("id_slot")
    took = timings.get("prompt_ms")
    return Warmed(
        slot if isinstance(slot, int) and is_count(slot) else -1,
        count(timings, "prompt_n"),
        count(timings, "cache_n"),
        float(took) if isinstance(took, int | float) else 0.0,
    )


def look(slot: Mapping[str, Any], asked_at: float) -> Look:
    """One slot of `GET /slots`, asked for at this time on the monotonic clock."""
    task = slot.get("id_task")
    busy = slot.get("is_processing")
    # Builds that number no tasks say -1 for "none yet"; a slot that ran something and tells no length is an older one.
    number = task if isinstance(task, int) and is_count(task) else None
    tells_length = number is None or "n_prompt_tokens" in slot
    return Look(
        count(slot, "id"),
        number,
        count(slot, "n_prompt_tokens"),
        busy is True,
        tells_length,
        n_processed=count(slot, "n_prompt_tokens_processed"),
        n_cache=count(slot, "n_prompt_tokens_cache"),
        asked_at=asked_at,
    )


def top_logprobs(told: Mapping[str, Any]) -> dict[int, float] | None:
    """Log-probabilities of the likeliest next tokens by token id; None where the answer has none."""
    try:
        top = told["completion_probabilities"][0]["top_logprobs"]
        return {int(entry["id"]): float(entry["logprob"]) for entry in top}
    except (KeyError, IndexError, TypeError, ValueError):
        return None
