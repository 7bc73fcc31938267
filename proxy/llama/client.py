"""Our own calls to llama-server: each a typed question with a typed answer, or a `ControlFailed` that says why not.

Owns paths, bodies and what counts as a failure; refuses to decide when a call is safe. Each call takes the headers that
authorise it (the client's own, or the configured key's), so that nobody's key serves anybody else. A status of 500 and
up, or an answer that isn't what it should be, is a failure like a refused connection: the caller goes on without.
Counterpart: `replies` reads what the server says.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp.http_exceptions import HttpProcessingError

from proxy.errors import PrefixCacheError
from proxy.llama.replies import (
    SlotFile,
    Warmed,
    are_tokens,
    count,
    error_message,
    event_of,
    is_count,
    look,
    top_logprobs,
    warmed,
)
from proxy.llama.upstream import Upstream
from proxy.slots.ledger import Look

Auth = Mapping[str, str]
NO_OUTPUT = 'root ::= ""'
"""A grammar that allows nothing: the one token that is sampled is always end-of-text, never half a character."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class ControlFailed(PrefixCacheError):  # noqa: N818
    """A call of ours did not do what it should."""

    def __init__(
        self,
        what: str,
        status: int = 0,
        *,
        is_broken: bool = False,
        is_timeout: bool = False,
        is_unreachable: bool = False,
        told: str = "",
    ) -> None:
        super().__init__(f"{what}: HTTP {status}" if status else what)
        self.code = status
        """HTTP status, 0 where there was no answer."""
        self.is_timeout = is_timeout
        self.is_unreachable = is_unreachable
        """No connection could be made."""
        self.told = told
        """The server's own words; of a call that carries a prompt they may quote it."""
        self.is_broken = is_broken
        """The server took the request and then dropped the connection: it may have died of it."""


class LlamaClient:
    """Talks to one llama-server, or to one model of a router."""

    def __init__(
        self,
        upstream: Upstream,
        session: aiohttp.ClientSession,
        *,
        control_s: float,
        model: str = "",
        may_load: bool = False,
    ) -> None:
        self.upstream = upstream
        self._session = session
        self._control_s = control_s
        self._model = model
        self._may_load = may_load

    def of_model(self, model: str) -> "LlamaClient":
        """The same for one model of a router."""
        return LlamaClient(self.upstream, self._session, control_s=self._control_s, model=model)

    @property
    def model(self) -> str:
        """Which model of a router; "" for a plain server."""
        return self._model

    async def props(self, auth: Auth, timeout_s: float | None = None) -> dict[str, Any]:
        """`GET /props`."""
        return await self._object("GET", "/props", auth, timeout_s=timeout_s)

    async def props_once_loaded(self, auth: Auth, timeout_s: float) -> dict[str, Any]:
        """`GET /props` of a router's model, loaded first where the router would load it for any request.

        Waits as long as that takes; raises with code 400 where a router loads none unasked (`--no-models-autoload`).
        """
        loading = LlamaClient(self.upstream, self._session, control_s=self._control_s, model=self._model, may_load=True)
        return await loading.props(auth, timeout_s)

    async def models(self, auth: Auth) -> dict[str, Any]:
        """`GET /v1/models`."""
        return await self._object("GET", "/v1/models", auth)

    async def lora_adapters(self, auth: Auth) -> list[Any]:
        """`GET /lora-adapters`; empty where there are none or the build does not know the path."""
        try:
            told = await self._json("GET", "/lora-adapters", auth)
        except ControlFailed as error:
            if error.code in _NO_SUCH_PATH:
                return []
            raise
        return told if isinstance(told, list) else []

    async def slots(self, auth: Auth, timeout_s: float | None = None) -> list[Look]:
        """`GET /slots`; raises with code 501 under `--no-slots`."""
        asked_at = time.monotonic()
        told = await self._json("GET", "/slots", auth, timeout_s=timeout_s)
        if not isinstance(told, list):
            raise ControlFailed("/slots did not answer with a list")
        return [look(slot, asked_at) for slot in told if isinstance(slot, dict) and is_count(slot.get("id"))]

    async def can_render(self, auth: Auth) -> None:
        """Have it render something that any server can; raises ControlFailed where it can't."""
        body = self._named({"messages": [{"role": "user", "content": "a"}]})
        await self.render(orjson.dumps(body), auth)

    async def render(self, body: bytes, auth: Auth) -> str:
        """`POST /apply-template` of a chat body."""
        told = await self._object("POST", "/apply-template", auth, body)
        if not isinstance(prompt := told.get("prompt"), str):
            raise ControlFailed("/apply-template answered without a prompt")
        return prompt

    async def tokenize(self, text: str, auth: Auth) -> list[int]:
        """`POST /tokenize`, as the server tokenises a rendered prompt."""
        body = self._named({"content": text, "add_special": True, "parse_special": True})
        told = await self._object("POST", "/tokenize", auth, orjson.dumps(body))
        if not are_tokens(tokens := told.get("tokens")):
            raise ControlFailed("/tokenize answered without token ids")
        return tokens

    async def prefill(
        self,
        tokens: Sequence[int],
        auth: Auth,
        timeout_s: float,
        progressed: Callable[[int], None] | None = None,
        *,
        is_anew: bool = False,
        is_behind_empty: bool = False,
    ) -> Warmed:
        """Have a prompt of exactly these tokens prefilled, in the slot that the server chooses; `is_anew`, all of it.

        `is_behind_empty` puts an empty prompt before it, in one call: the server queues both at once, and takes up
        nothing and ends nothing between them. Streamed with progress: only then does the server notice, within a
        batch, that we have gone.
        """
        body = {
            **self._completion(tokens),
            "cache_prompt": not is_anew,
            "stream": True,
            "return_progress": True,
        }
        if is_behind_empty:
            body["prompt"] = [[], list(tokens)]
        asked, place = orjson.dumps(body), int(is_behind_empty)
        return await self._streamed("/completion", asked, auth, timeout_s, progressed, place)

    async def prefill_plainly(self, tokens: Sequence[int], auth: Auth, timeout_s: float) -> Warmed:
        """The same, as a client asks that says nothing of caching."""
        body = self._completion(tokens)
        del body["cache_prompt"]
        told = await self._object("POST", "/completion", auth, orjson.dumps(body), timeout_s=timeout_s)
        return _figures(told)

    async def prefill_chat(self, body: bytes, auth: Auth, timeout_s: float, *, is_anew: bool = False) -> Warmed:
        """The fallback where tokens can't be had: a chat request that generates nothing."""
        if is_anew:
            body = orjson.dumps({**orjson.loads(body), "cache_prompt": False})
        return await self._streamed("/v1/chat/completions", body, auth, timeout_s, None)

    async def count_chat(self, body: bytes, auth: Auth, timeout_s: float) -> int:
        """`POST /v1/chat/completions`, not streamed: how many prompt tokens the server counted; 0 if it is silent."""
        told = await self._object("POST", "/v1/chat/completions", auth, body, timeout_s=timeout_s)
        usage = told.get("usage")
        return count(usage, "prompt_tokens") if isinstance(usage, dict) else 0

    async def lets_act(self, auth: Auth) -> bool:
        """Whether slot actions are on: a name with a path is refused before anything is done, where they are."""
        try:
            await self._act(0, "save", {"filename": "not/saved"}, auth, self._control_s)
        except ControlFailed as error:
            if error.code in _NO_SUCH_PATH:
                return False
            if error.code != HTTPStatus.BAD_REQUEST:
                raise
        return True

    async def copy(self, slot: int | None, auth: Auth, timeout_s: float) -> None:
        """Have a slot's content copied to host memory: an empty prompt takes nothing from it and adds nothing.

        Without a slot the server takes the least recently used idle one; where a task empties the others, it does.
        """
        await self._object("POST", "/completion", auth, self._aimed([[]], slot), timeout_s=timeout_s)

    async def displace(self, slot: int, token: int, auth: Auth, timeout_s: float) -> None:
        """Overwrite a slot with one token; its content is copied to host memory first, where there is any."""
        await self._object("POST", "/completion", auth, self._aimed([token], slot), timeout_s=timeout_s)

    async def erase(self, slot: int, auth: Auth, timeout_s: float) -> None:
        """`POST /slots/N?action=erase`; raises with code 501 where slot actions are off."""
        await self._act(slot, "erase", {}, auth, timeout_s)

    async def save(self, slot: int, filename: str, auth: Auth, timeout_s: float) -> SlotFile:
        """Write a slot's state to a file in the server's own directory."""
        told = await self._act(slot, "save", {"filename": filename}, auth, timeout_s)
        return SlotFile(count(told, "n_saved"), count(told, "n_written"))

    async def restore(self, slot: int, filename: str, auth: Auth, timeout_s: float) -> SlotFile:
        """Read a slot's state from a file; on any failure the slot is empty."""
        told = await self._act(slot, "restore", {"filename": filename}, auth, timeout_s)
        return SlotFile(count(told, "n_restored"), count(told, "n_read"))

    async def probabilities(
        self, tokens: Sequence[int], auth: Auth, timeout_s: float, count: int = 5
    ) -> tuple[Warmed, dict[int, float]]:
        """Prefill, and tell the log-probabilities of the likeliest next tokens by token id."""
        body = {**self._completion(tokens), "n_probs": count, "response_fields": [*_FIELDS, "completion_probabilities"]}
        told = await self._object("POST", "/completion", auth, orjson.dumps(body), timeout_s=timeout_s)
        return _figures(told), _logprobs(told)

    def _completion(self, tokens: Sequence[int]) -> dict[str, Any]:
        return self._named(
            {"prompt": list(tokens), "n_predict": 0, "cache_prompt": True, "grammar": NO_OUTPUT, "temperature": 0}
        )

    def _named(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"model": self._model, **body} if self._model else body

    def _aimed(self, prompt: Sequence[Any], slot: int | None) -> bytes:
        aim = {} if slot is None else {"id_slot": slot}
        return orjson.dumps({**self._completion(()), "prompt": prompt, **aim, "response_fields": _FIELDS})

    async def _act(self, slot: int, action: str, body: dict[str, Any], auth: Auth, timeout_s: float) -> dict[str, Any]:
        return await self._object(
            "POST", f"/slots/{slot}?action={action}", auth, orjson.dumps(self._named(body)), timeout_s=timeout_s
        )

    async def _object(
        self, method: str, path: str, auth: Auth, body: bytes | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        told = await self._json(method, path, auth, body, timeout_s)
        if not isinstance(told, dict):
            raise ControlFailed(f"{path} did not answer with an object")
        return told

    async def _json(
        self, method: str, path: str, auth: Auth, body: bytes | None = None, timeout_s: float | None = None
    ) -> Any:
        limit = aiohttp.ClientTimeout(total=timeout_s or self._control_s)
        try:
            async with self._session.request(
                method,
                self._url(method, path),
                data=body,
                headers=_headers(auth, body),
                timeout=limit,
                allow_redirects=False,
            ) as answer:
                text = await answer.content.read(MAX_ANSWER_BYTES)
                while piece := await answer.content.read(MAX_ANSWER_BYTES - len(text)):
                    text += piece
        except _CALL_ERRORS as error:
            raise self._failed(path, error) from error
        if answer.status != HTTPStatus.OK:
            raise ControlFailed(path, answer.status, told=error_message(text))
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ControlFailed(f"{path} did not answer with JSON") from error

    async def _streamed(
        self,
        path: str,
        body: bytes,
        auth: Auth,
        timeout_s: float,
        progressed: Callable[[int], None] | None,
        place: int = 0,
    ) -> Warmed:
        """The figures of a streamed answer; `place` is which one of several prompts is meant."""
        last: dict[str, Any] = {}
        limit = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.post(
                self._url("POST", path),
                data=body,
                headers=_headers(auth, body),
                timeout=limit,
                allow_redirects=False,
            ) as answer:
                if answer.status != HTTPStatus.OK:
                    raise ControlFailed(path, answer.status)
                async for line in answer.content:
                    event = event_of(line)
                    last = event if "timings" in event and event.get("index", 0) == place else last
                    if progressed and isinstance(told := event.get("prompt_progress"), dict):
                        progressed(count(told, "processed"))
        except _CALL_ERRORS as error:
            raise self._failed(path, error) from error
        if not last:
            raise ControlFailed(f"{path} ended without figures")
        return _figures(last)

    def _failed(self, path: str, error: Exception) -> ControlFailed:
        if isinstance(error, aiohttp.ClientConnectorError):
            words = f"llama-server at {self.upstream.address} can't be reached ({_cause(error)})"
            return ControlFailed(words, is_unreachable=True)
        late = isinstance(error, TimeoutError)
        broken = isinstance(error, aiohttp.ClientError | OSError) and not late
        return ControlFailed(f"{path}: {type(error).__name__}", is_broken=broken, is_timeout=late)

    def _url(self, method: str, path: str) -> str:
        if self._model:
            # A GET's query names the model, a POST's body does. Work of ours has none loaded, and none put out for it.
            named = [f"model={quote(self._model, safe='')}"] if method == "GET" else []
            asked = "&".join(named if self._may_load else [*named, "autoload=false"])
            path += f"{'&' if '?' in path else '?'}{asked}"
        return self.upstream.control(path)


_FIELDS = ["timings", "tokens_cached", "id_slot"]
_CALL_ERRORS = (
    aiohttp.ClientError,
    HttpProcessingError,  # a line too long in the middle of a stream is not a ClientError
    TimeoutError,
    OSError,
    ValueError,  # a header value that can't be sent
)
_NO_SUCH_PATH = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)


def _cause(error: aiohttp.ClientConnectorError) -> str:
    number = error.os_error.errno
    return os.strerror(number).lower() if number and number > 0 else "its name leads nowhere"


def _headers(auth: Auth, body: bytes | None) -> dict[str, str]:
    """Raises ValueError for credentials that aiohttp would send without the bytes that are no UTF-8."""
    "".join(auth.values()).encode()
    return {**auth, "Content-Type": "application/json"} if body is not None else dict(auth)


def _figures(told: Mapping[str, Any]) -> Warmed:
    if (found := warmed(told)) is None:
        raise ControlFailed("the answer has no timings")
    return found


def _logprobs(told: Mapping[str, Any]) -> dict[int, float]:
    if (found := top_logprobs(told)) is None:
        raise ControlFailed("the answer has no log-probabilities")
    return found
