"""What decides how a request is rendered into tokens, and how to find out what all such requests begin with.

The exact prefix (the tokens that every session with these rendering inputs begins with) can't be cut out of one
rendering: tokens merge across a cut, and templates put things before and after the system text. So the real request
is rendered beside several made-up ones that agree with it in everything stable and differ right after it; what their
token lists have in common is the exact prefix. This module makes the bodies and compares the lists; asking the
server is `llama`'s part.

Key order is kept everywhere: the same tools in another order are other tokens.
"""

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from itertools import cycle, takewhile
from typing import Any

import orjson

from proxy.request.body import ChatRequest
from proxy.request.prefix import MARKERS, SYSTEM_ROLES, StablePrefix, with_tail

RENDERING_FIELDS: tuple[str, ...] = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "json_schema",
    "reasoning_effort",
    "reasoning_format",
    "chat_template_kwargs",
    "thinking_budget_tokens",
    "reasoning_budget_tokens",
    "reasoning_budget",
    "reasoning_budget_message",
    "add_generation_prompt",
    "continue_final_message",
)
_FIELDS = frozenset(RENDERING_FIELDS)

# One tail for each way that a known section can begin (four characters tell them apart), and one that goes on
# within the line, for boundaries that a user has added.
_TAILS: tuple[str, ...] = (*{marker[:4]: marker for marker in MARKERS}.values(), "x")
_USERS = ("Why?", "1 + 1", "{}", "\u00e9t\u00e9", "(a)", "\n", "- b", "zero")


def rendering_inputs(request: ChatRequest) -> dict[str, Any]:
    """The fields that change a rendering, as they came; messages apart."""
    return {name: value for name, value in request.fields.items() if name in _FIELDS}


def inputs_digest(request: ChatRequest) -> str:
    """The rendering inputs in 64 hex digits, key order kept: made once, since tools are most of what agents send."""
    return _digest(rendering_inputs(request))


def rendering_key(inputs: str, prefix: StablePrefix) -> str:
    """Under what the exact prefix of such requests is remembered (64 hex digits); one server model assumed."""
    return _digest([inputs, prefix.role, prefix.text])


def _shared(request: ChatRequest) -> dict[str, Any]:
    """What all bodies for `POST /apply-template` have from the request, beside messages."""
    shared: dict[str, Any] = {"model": request.model} if request.model else {}
    return shared | rendering_inputs(request)


def variants(request: ChatRequest, prefix: StablePrefix) -> list[bytes]:
    """Bodies for `POST /apply-template`: the real request first, then made-up ones with other tails and users."""
    system = request.messages[prefix.position]
    shared = _shared(request)
    bodies = [orjson.dumps({**shared, "messages": request.messages})]
    for tail, user in zip(_TAILS, cycle(_USERS), strict=False):
        retold = {**system, "content": with_tail(system["content"], len(prefix.text), tail + user)}
        bodies.append(orjson.dumps({**shared, "messages": [retold, {"role": "user", "content": user}]}))
    return bodies


def other_text(request: ChatRequest, prefix: StablePrefix) -> bytes:
    """A body for `POST /apply-template` that agrees in everything but the system text, from its first letter on."""
    system = request.messages[prefix.position]
    shared = _shared(request)
    retold = {**system, "content": with_tail(system["content"], 0, "y" if prefix.text.startswith("x") else "x")}
    return orjson.dumps({**shared, "messages": [retold, {"role": "user", "content": _USERS[0]}]})


def head_key(inputs: str, request: ChatRequest, prefix: StablePrefix) -> str:
    """Under what the head of such requests is remembered: rendering inputs and all messages before the first user's."""
    return _digest(["head", inputs, _leading(request, prefix)])


def head_variants(request: ChatRequest, prefix: StablePrefix) -> list[bytes]:
    """Bodies for `POST /apply-template` that agree in the head and differ in the first message that follows it.

    The last one differs in its role, too, which not every template takes: of a user's message the head has nothing.
    """
    shared = _shared(request)
    leading = _leading(request, prefix)
    others = [*({"role": "user", "content": user} for user in _USERS), {"role": "assistant", "content": _USERS[0]}]
    return [orjson.dumps({**shared, "messages": [*leading, other]}) for other in others]


def _leading(request: ChatRequest, prefix: StablePrefix) -> list[Mapping[str, Any]]:
    """The system messages up to the first message of another role."""
    return list(takewhile(lambda message: message.get("role") in SYSTEM_ROLES, request.messages)) or [
        request.messages[prefix.position]
    ]


def chat_shaped(request: ChatRequest, prefix: StablePrefix) -> bytes:
    """A chat request that prefills the stable prefix and generates nothing, for a server that can't render."""
    system = request.messages[prefix.position]
    stable = {**system, "content": with_tail(system["content"], len(prefix.text), "")}
    body = _shared(request)
    body |= {"messages": [stable, {"role": "user", "content": ""}], "n_predict": 0, "max_tokens": 0}
    return orjson.dumps({**body, "cache_prompt": True, "stream": True, "return_progress": True})


def common_length(a: "array[int]", b: "array[int]") -> int:
    """How many tokens two lists begin with alike; halving, since comparing slices is fast and looping is not."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def common_prefix(token_lists: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all lists begin with; none for no lists."""
    if not token_lists:
        return []
    # All lists share what the smallest and the largest of them share.
    lists = [list(tokens) for tokens in token_lists]
    first, last = min(lists), max(lists)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]


def _digest(told: object) -> str:
    return hashlib.sha256(orjson.dumps(told)).hexdigest()
