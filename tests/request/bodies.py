"""Request bodies as agents send them, for the tests of what a request says."""

from typing import Any

import orjson

from proxy.request.body import ChatRequest, read_chat
from proxy.request.prefix import StablePrefix, stable_prefix

STABLE = "You are a careful assistant.\n\n<docs>\nResolve paths, not the current working directory.\n</docs>"
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]


def cwd_section(folder: str) -> str:
    return f"\n\n<cwd>\n{folder}\n</cwd>"


DEFAULT_SYSTEM = STABLE + cwd_section("/a")


def chat(system: Any = DEFAULT_SYSTEM, *turns: dict[str, Any], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, *(turns or ({"role": "user", "content": "Hello"},))]
    return {"model": "m", "messages": messages, "tools": TOOLS, **fields}


def request_of(body: Any) -> ChatRequest:
    read = read_chat(body if isinstance(body, bytes) else orjson.dumps(body))
    assert isinstance(read, ChatRequest), read
    return read


def prefix_of(request: ChatRequest) -> StablePrefix:
    found = stable_prefix(request)
    assert isinstance(found, StablePrefix), found
    return found
