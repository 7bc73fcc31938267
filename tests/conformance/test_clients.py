"""Programs that people really use, through the proxy: what they understand is what they understand directly."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from tests.conformance.conftest import Pair, Pairs
from tests.conformance.exchange import Ask, told
from tests.conformance.table import AGENT, ALONE, CHAT, GREEDY
from tests.serving.route import answer
from tests.serving.running import running
from tests.wire import Message, Peer, client, recording


@pytest.fixture
def pair(pairs: Pairs) -> Pair:
    return pairs["plain"]


# --- openai's own library ---


async def heard(base_url: str) -> dict[str, Any]:
    """One conversation with tools, streamed, as its library puts it together."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        names = [model.id async for model in client.models.list()]
        asked = {name: value for name, value in AGENT.items() if name != "store"}
        pieces = [piece async for piece in await client.chat.completions.create(**asked)]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**{**ALONE_TYPED, "n": 99})
        with pytest.raises(openai.NotFoundError):
            await client.files.list()
    usage = pieces[-1].usage
    return {
        "models": names,
        "pieces": [choice.model_dump() for piece in pieces for choice in piece.choices],
        "tokens": (usage.prompt_tokens, usage.completion_tokens) if usage else None,
        "refused": (refused.value.status_code, refused.value.body),
    }


ALONE_TYPED: dict[str, Any] = {"model": "m", "messages": ALONE["messages"], **GREEDY}


async def test_openais_library(pair: Pair) -> None:
    """Streaming with tools offered, a list of models, its errors: as directly."""
    directly = await heard(pair.server.base_url)
    assert directly == await heard(pair.proxy.base_url)
    assert 3 < len(directly["pieces"])


CALL = [
    {"index": 0, "id": "c1", "type": "function", "function": {"name": "read", "arguments": ""}},
    {"index": 0, "function": {"arguments": '{"path": '}},
    {"index": 0, "function": {"arguments": '"ä.txt"}'}},
]


async def test_openais_library_puts_a_streamed_tool_call_together() -> None:
    """In whatever pieces it comes: here byte by byte."""
    deltas = [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in CALL]
    told = b"".join(b"data: " + orjson.dumps(delta) + b"\n\n" for delta in deltas) + b"data: [DONE]\n\n"

    async def script(peer: Peer, message: Message) -> None:
        if message.target != b"/v1/chat/completions":
            await peer.send(answer(b"{}", status=b"404 Not Found"))
            return
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(len(told)):
            await peer.send(b"1\r\n%b\r\n" % told[at : at + 1])
        await peer.send(b"0\r\n\r\n")

    async with (
        recording(script) as upstream,
        running(f"http://127.0.0.1:{upstream.port}/v1") as proxied,
        openai.AsyncOpenAI(base_url=proxied.base_url, api_key="none", max_retries=0) as client,
    ):
        asked = {name: value for name, value in AGENT.items() if name != "store"}
        pieces = [piece async for piece in await client.chat.completions.create(**asked)]
    calls = [call.function for piece in pieces for call in piece.choices[0].delta.tool_calls or () if call.function]
    assert "read" == calls[0].name
    assert {"path": "ä.txt"} == orjson.loads("".join(call.arguments or "" for call in calls))


# --- a shell and `nc -N` ---


BRIEF = [Ask("/health"), Ask("/tokenize", {"content": "a b"}), Ask(CHAT, ALONE)]


@pytest.mark.parametrize("what", BRIEF, ids=lambda what: what.target)
async def test_a_client_that_sends_one_request_and_its_end(pair: Pair, what: Ask) -> None:
    """Its answer is the server's, and the connection is closed after it."""
    said = []
    for port in (pair.server.port, pair.proxy.port):
        async with client(port) as visitor:
            await visitor.send(what.wire(port))
            visitor.half_close()
            said.append(told(await visitor.answer()))
            assert b"" == await visitor.rest()
    assert said[0] == said[1]
    assert b"200 OK" == said[0].start[9:]


# --- curl ---

CURLS: dict[str, list[str]] = {
    "plain": [],
    "http-1.0": ["--http1.0"],
    "expect": ["-H", "Expect: 100-continue", "--expect100-timeout", "20"],
    "chunked": ["-H", "Transfer-Encoding: chunked"],
    "chunked-expect": ["-H", "Transfer-Encoding: chunked", "-H", "Expect: 100-continue", "--expect100-timeout", "20"],
    "http2-upgrade": ["--http2"],
    "compressed": ["--compressed"],
}


def curl(url: str, body: Path, *flags: str) -> tuple[int, str, float]:
    """Status, text of the answer and seconds."""
    shown = ["--write-out", "%{stderr}%{http_code} %{time_total}", "--silent", "--no-buffer", "--max-time", "30"]
    command = ["curl", *shown, "--data-binary", f"@{body}", "-H", "Content-Type: application/json", *flags, url]
    done = subprocess.run(command, capture_output=True, check=True)
    status, took = done.stderr.split()
    choice = orjson.loads(done.stdout)["choices"][0]
    return int(status), choice["message"]["content"], float(took)


@pytest.mark.parametrize("flags", CURLS.values(), ids=CURLS.keys())
async def test_curl(pair: Pair, tmp_path: Path, flags: list[str]) -> None:
    """However it sends a body of two megabytes, it is taken without a pause, and the answer is the server's."""
    body = tmp_path / "body.json"
    body.write_bytes(orjson.dumps({**ALONE, "user": "x" * 2_000_000}))
    urls = [f"{base}/chat/completions" for base in (pair.server.base_url, pair.proxy.base_url)]
    directly, proxied = [await asyncio.to_thread(curl, url, body, *flags) for url in urls]
    assert (200, directly[1]) == proxied[:2]
    # Nobody waits for a permission to send that doesn't come: curl would for 20 s.
    assert proxied[2] < 10
