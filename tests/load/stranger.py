"""Somebody who uses the server directly, from a seed: other prompts, aimed requests, erased and restored slots.

Never a request aimed at a slot with a beginning that others share: that alone makes a server spoil what runs there, and
would be this stranger's own doing.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from proxy.demo.servers import LlamaServer
from proxy.demo.sessions import session
from proxy.demo.vocabulary import WORDS
from tests.serving.running import ask_server

KINDS = ("chat", "aimed", "erase", "save", "restore")
SLOW_DOWN_S = 0.2


@dataclass(slots=True)
class Stranger:
    """Goes on until it is sent away."""

    server: LlamaServer
    slots: int
    choose: random.Random
    done: list[str] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)
    is_sent_away: bool = False

    async def live(self) -> None:
        """What it has begun when it is sent away it ends: of a request that is dropped the server may hear later."""
        while not self.is_sent_away:
            kind = self.choose.choice(KINDS)
            await self._do(kind, self.choose.randrange(self.slots))
            self.done.append(kind)
            await asyncio.sleep(self.choose.uniform(0, SLOW_DOWN_S))

    async def _do(self, kind: str, slot: int) -> None:
        if kind == "chat":
            body = session(f"/{self.choose.randrange(9)}", prefix_tokens=600, user=self._words(), max_tokens=8)
            await self._post("/v1/chat/completions", {**body, "stream": False, "stream_options": None})
        elif kind == "aimed":
            await self._post("/completion", {"prompt": self._words(), "n_predict": 8, "id_slot": slot})
        elif kind == "restore" and self.saved:
            await self._post(f"/slots/{slot}?action=restore", {"filename": self.choose.choice(self.saved)})
        elif kind == "save":
            name = f"theirs-{len(self.saved)}.bin"
            if (await self._post(f"/slots/{slot}?action=save", {"filename": name})).get("n_saved"):
                self.saved.append(name)
        else:
            await self._post(f"/slots/{slot}?action=erase", {})

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        told = await ask_server(self.server, path, body)
        return dict(told)

    def _words(self) -> str:
        return " ".join(self.choose.choices(WORDS, k=self.choose.randint(20, 200)))
