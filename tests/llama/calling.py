"""A client of ours for a port of the loopback, as the proxy makes it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.llama.client import LlamaClient
from proxy.llama.upstream import Upstream
from proxy.serving.app import control_session
from proxy.settings import Settings

NO_KEY: dict[str, str] = {}


@asynccontextmanager
async def calling(port: int, *, control_s: float = 5.0, model: str = "") -> AsyncIterator[LlamaClient]:
    """A client while the block runs."""
    async with control_session(Settings()) as session:
        yield LlamaClient(Upstream.parse(f"http://127.0.0.1:{port}/v1"), session, control_s=control_s, model=model)
