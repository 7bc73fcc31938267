"""Answers that tell nothing of themselves: what `/slots` shows stands in, under its own name."""

from collections.abc import Mapping
from typing import Any

import orjson

from tests.serving.route import answer
from tests.serving.running import Running, running, sessions
from tests.wire import Message, Peer, recording

PROMPT_TOKENS, PREFIX_TOKENS = 900, 600
JSON = b"Content-Type: application/json"
STREAM = b"Content-Type: text/event-stream"
PROPS = {"total_slots": 1, "media_marker": "<one>", "model_path": "", "default_generation_settings": {"n_ctx": 4096}}


class Quiet:
    """A server of one slot whose chat answers have neither timings nor usage."""

    def __init__(self) -> None:
        self.task = -1
        self.n_tokens = 0

    def _slots(self) -> list[Mapping[str, Any]]:
        return [{"id": 0, "id_task": self.task, "n_prompt_tokens": self.n_tokens, "is_processing": False}]

    async def script(self, peer: Peer, message: Message) -> None:
        path = message.target.partition(b"?")[0]
        told: dict[bytes, Any] = {b"/props": PROPS, b"/slots": self._slots(), b"/v1/models": {"data": []}}
        told |= {b"/lora-adapters": [], b"/apply-template": {"prompt": message.body.decode()}}
        if path == b"/tokenize":
            text = orjson.loads(message.body)["content"]
            told[path] = {"tokens": [*range(PREFIX_TOKENS), *text[-(PROMPT_TOKENS - PREFIX_TOKENS) :].encode()]}
        if path == b"/completion":
            self._ran(len(orjson.loads(message.body)["prompt"]))
            timings = {"prompt_n": self.n_tokens, "cache_n": 0, "prompt_ms": 1.0}
            event = orjson.dumps({"id_slot": 0, "timings": timings})
            await peer.send(answer(b"data: " + event + b"\n\n", STREAM))
        elif path == b"/v1/chat/completions":
            self._ran(PROMPT_TOKENS)
            await peer.send(answer(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n', STREAM))
        elif path in told:
            await peer.send(answer(orjson.dumps(told[path]), JSON))
        else:
            await peer.send(answer(b"{}", JSON, status=b"404 Not Found"))

    def _ran(self, n_tokens: int) -> None:
        self.task += 10
        self.n_tokens = n_tokens


async def test_figures_come_from_the_slot() -> None:
    """A request whose answer has no figures is told with its slot's prompt tokens, named as such."""
    quiet = Quiet()
    async with recording(quiet.script) as upstream, running(f"http://127.0.0.1:{upstream.port}/v1") as proxied:
        said = await proxied.ask(sessions("/a")[0])
        figures = proxied.last.figures
    assert (200, "a") == (said.status, said.text)
    assert figures is not None
    assert ("slots", PROMPT_TOKENS) == (figures.source, figures.prompt_tokens)


async def test_no_claim_is_judged_by_what_nobody_told() -> None:
    """Sessions after it are served, and no claim counts as failed for want of figures."""
    quiet = Quiet()
    async with recording(quiet.script) as upstream, running(f"http://127.0.0.1:{upstream.port}/v1") as proxied:
        said = [await proxied.ask(body) for body in sessions("/a", "/b", "/c")]
    assert [200] * 3 == [one.status for one in said]
    assert [] == failed(proxied)


def failed(proxied: Running) -> list[str]:
    return [reason for reason in proxied.heard.troubles if reason.startswith("claim:")]
