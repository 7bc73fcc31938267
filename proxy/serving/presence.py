"""Is the server there, for those who ask from outside: readiness, metrics, the status page.

Asks `/props`, which neither wakes a sleeping server nor keeps it awake, and not more often than every few seconds
however many ask. Learns nothing for the engine; what that believes is its own business.
"""

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus

from proxy.llama.client import Auth, ControlFailed, LlamaClient
from proxy.llama.identity import process

FRESH_S = 2.0
PATIENCE_S = 2.0
READY = frozenset({"ready", "sleeping", "locked"})
"""States in which a request would be served (`locked`: it wants a key that is the clients' and not ours)."""


class Presence:
    """Looks whether the server is there."""

    def __init__(self, client: LlamaClient, auth: Auth, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._auth = auth
        self._clock = clock
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self.state = "unknown"
        """unknown, ready, sleeping, locked, loading, unreachable."""

    @property
    def is_ready(self) -> bool:
        """Whether a request would have been served when it was last looked."""
        return self.state in READY

    async def look(self, fresh_s: float = FRESH_S) -> str:
        """How it is now, or was a moment ago."""
        async with self._looking:
            if self._clock() - self._looked_at >= fresh_s:
                self.state = await self._ask()
                self._looked_at = self._clock()
        return self.state

    async def _ask(self) -> str:
        try:
            told = process(await self._client.props(self._auth, PATIENCE_S))
        except ControlFailed as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return "loading"
            return "locked" if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) else "unreachable"
        return "sleeping" if told.is_sleeping else "ready"
