"""The conversation that a request belongs to: one running hash for each of its messages.

An agent resends all earlier messages unchanged and appends, so one conversation continues another exactly when the
hashes of the earlier one are a proper prefix of the later one's. Each hash covers everything before it; one
comparison at the right place therefore compares all. The chain starts from what else decides the tokens (rendering
inputs, model): the same messages under other tools are another conversation.
"""

import hashlib
from itertools import takewhile

import orjson

from proxy.request.body import ChatRequest
from proxy.request.prefix import SYSTEM_ROLES

HASH_BYTES = 16


def inputs_key(inputs: str, model: str) -> bytes:
    """What decides the tokens beside the messages: the rendering inputs' digest, and the model."""
    return _hash(orjson.dumps([model, inputs]))


def links(request: ChatRequest, inputs_key: bytes) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """One running hash for each message; and bytes of each message's JSON, to estimate tokens from."""
    hashes: list[bytes] = []
    sizes: list[int] = []
    # The quickest there is, with and without a processor's help. Nothing depends on its strength: the server compares
    # tokens itself, and who makes two conversations look alike only has his own prefilled again.
    running = hashlib.sha1(inputs_key, usedforsecurity=False)
    for message in request.messages:
        # What ends by itself needs nothing between: `{"a":1}{"b":2}` can't be another two messages.
        told = orjson.dumps(message)
        running.update(told)
        hashes.append(running.copy().digest()[:HASH_BYTES])
        sizes.append(len(told))
    return tuple(hashes), tuple(sizes)


def continues(later: tuple[bytes, ...], earlier: tuple[bytes, ...]) -> bool:
    """Whether `later` is `earlier` with something appended; equal length is a retry or an edit."""
    return 0 < len(earlier) < len(later) and later[len(earlier) - 1] == earlier[-1]


def shared_messages(a: tuple[bytes, ...], b: tuple[bytes, ...]) -> int:
    """How many leading messages are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def has_assistant_turns(request: ChatRequest) -> bool:
    """Whether the request is in mid-conversation."""
    return any(message.get("role") == "assistant" for message in request.messages)


def opening(request: ChatRequest) -> bytes:
    """What names a conversation whatever becomes of its system text: how its messages begin, to the first answer."""
    told = [message for message in request.messages if message.get("role") not in SYSTEM_ROLES]
    until = next((place for place, message in enumerate(told) if message.get("role") == "assistant"), len(told))
    return _hash(orjson.dumps(told[: until + 1]))


def _hash(*pieces: bytes) -> bytes:
    whole = hashlib.blake2b(digest_size=HASH_BYTES)
    for piece in pieces:
        whole.update(piece)
    return whole.digest()
