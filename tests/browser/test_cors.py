"""A page of another site asks through the proxy: its browser decides by the server's own words."""

import json
from typing import Any

import orjson
from playwright.async_api import Browser

from tests.conformance.table import ALONE
from tests.conftest import StartLlama
from tests.serving.running import running

ASK = """async ([url, body]) => {
    const headers = {"Content-Type": "application/json", "Authorization": "Bearer none"};
    try {
        const answer = await fetch(url, {method: "POST", headers, body});
        const reader = answer.body.getReader(), words = new TextDecoder(), pieces = [];
        for (;;) {
            const {done, value} = await reader.read();
            if (done) return [answer.status, pieces.join("")];
            pieces.push(words.decode(value, {stream: true}));
        }
    } catch (error) {
        return [0, String(error)];
    }
}"""


def heard(status: int, text: str) -> tuple[int, list[Any]]:
    events = [orjson.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return status, [event["choices"] for event in events] or [text]


async def test_a_page_that_may_ask_the_server_may_ask_the_proxy(start_llama: StartLlama, chromium: Browser) -> None:
    """Preflight and stream pass; the proxy adds nothing that a browser would look at."""
    server = start_llama("dense", "-np", "1", "-fa", "off")
    body = json.dumps({**ALONE, "stream": True})
    async with running(server) as proxied:
        page = await chromium.new_page()
        # Another name of the same machine is another site to a browser.
        await page.goto(f"http://localhost:{server.port}/health")
        urls = [f"{base}/chat/completions" for base in (server.base_url, proxied.base_url)]
        told = [heard(*await page.evaluate(ASK, [url, body])) for url in urls]
    assert told[0] == told[1]
    assert 200 == told[0][0]
    assert 3 < len(told[0][1])
