"""LoRA adapters: what is applied to the model now, and whether that is still what it was when the server was met.

Adapters change a state and nothing in a state file tells of them, so they are part of each checkpoint's key. A server
lets them be changed while it runs, by anybody, and goes on with what its slots hold of the old ones.
"""

import asyncio
from typing import Any

from proxy.llama.client import Auth, ControlFailed, LlamaClient
from proxy.llama.identity import adapters_text, file_identity
from proxy.serving.context import Context


async def adapters(client: LlamaClient, auth: Auth) -> list[Any]:
    """What the server says of its adapters, each with the identity of its file where that can be seen from here."""
    return await asyncio.to_thread(_with_files, await client.lora_adapters(auth))


async def are_as_met(context: Context, auth: Auth) -> bool:
    """Whether the key of a checkpoint is still right; where it isn't, the server is met anew."""
    model = context.model
    if model.identity is None:
        return False
    try:
        now = adapters_text(await adapters(model.client, auth))
    except ControlFailed:
        return False
    if now != model.identity.lora:
        model.process = None
    return now == model.identity.lora


def _with_files(told: list[Any]) -> list[Any]:
    return [
        {**adapter, "file": file_identity(adapter["path"])}
        if isinstance(adapter, dict) and isinstance(adapter.get("path"), str)
        else adapter
        for adapter in told
    ]
