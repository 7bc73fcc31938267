"""What a person may look up and have done over the admin listener: checkpoints, clean-up, warm, explain.

Owns these paths and the shape of their answers; the store and the lifecycle do what is wanted. Every GET here changes
nothing. Counterparts: `admin` listens and decides who may ask, `commands` asks.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

from proxy.checkpoints.key import is_key
from proxy.serving.engine import Engine
from proxy.serving.explanations import Explanations
from proxy.serving.history import History

MAX_DIGITS = 12
WARM = ("restored", "built", "already_warm")


class Actions:
    """Does what is asked for, for the engine that is shown when it is asked."""

    def __init__(self, shown: Callable[[], Engine], history: History, explanations: Explanations) -> None:
        self._shown, self._history, self._explanations = shown, history, explanations

    @property
    def _engine(self) -> Engine:
        return self._shown()

    def routes(self) -> list[web.RouteDef]:
        """Paths and who answers them."""
        return [
            web.get("/checkpoints", self._list),
            web.get("/checkpoints/{key}", self._prove),
            web.post("/checkpoints/{key}/delete", self._delete),
            web.get("/explain", self._explain),
            web.get("/prune", self._would_prune),
            web.post("/prune", self._prune),
            web.post("/warm", self._warm),
        ]

    async def _explain(self, request: web.Request) -> web.Response:
        """Why a request found no prefix: the last one, or that of a number."""
        given = request.query.get("request")
        number = int(given) if given and given.isascii() and given.isdigit() and len(given) < MAX_DIGITS else None
        found = None if given and number is None else self._explanations.find(number)
        if found is None:
            words = "no miss of that number is remembered" if given else "no request has missed since the start"
            return as_json({"error": words}, HTTPStatus.NOT_FOUND)
        return as_json(found)

    async def _list(self, _: web.Request) -> web.Response:
        store = self._engine.store
        return as_json({"is_on": store.is_on, "checkpoints": await store.listed()})

    async def _prove(self, request: web.Request) -> web.Response:
        """What is known of a checkpoint, and whether its file still is what was saved; reads all of it."""
        key, store = request.match_info["key"], self._engine.store
        found = [one for one in await store.listed() if one.key == key]
        if not found:
            return as_json({"error": "unknown"}, HTTPStatus.NOT_FOUND)
        return as_json({"checkpoints": found, "proof": await store.proof(key)})

    async def _delete(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        if not is_key(key):
            return as_json({"error": "not a checkpoint's key"}, HTTPStatus.BAD_REQUEST)
        refusal = await self._engine.store.delete(key)
        self._history.touch()
        if refusal is not None:
            code = HTTPStatus.NOT_FOUND if refusal == "unknown" else HTTPStatus.CONFLICT
            return as_json({"error": refusal}, code)
        return as_json({"deleted": key})

    async def _would_prune(self, _: web.Request) -> web.Response:
        return as_json(await self._engine.store.prune(is_dry_run=True))

    async def _prune(self, _: web.Request) -> web.Response:
        cleaned = await self._engine.store.prune(is_dry_run=False)
        self._history.touch()
        return as_json(cleaned)

    async def _warm(self, _: web.Request) -> web.Response:
        told = await self._engine.lifecycle.warm_now()
        self._history.touch()
        code = HTTPStatus.OK if told in WARM else HTTPStatus.CONFLICT
        return as_json({"warmed" if told in WARM else "error": told}, code)


def as_json(value: Any, code: int = HTTPStatus.OK) -> web.Response:
    """An answer for a program."""
    return web.Response(body=orjson.dumps(value), status=code, content_type="application/json")
