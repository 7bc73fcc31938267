"""Odd chat bodies through the whole proxy: the server's answer is the one it gives directly, whatever is in them."""

import pytest

from tests.conftest import StartLlama
from tests.serving.running import running, talking

ODD = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"messages": "no list"}',
    b'{"messages": [1]}',
    b'\xef\xbb\xbf{"messages": 1}',
    b'{"messages": NaN}',
    b'{"messages": 1, "messages": 2}',
    b"[" * 10_000,
    b'{"messages": [{"role": "system", "content": [{"type": "image_url"}]}], "n": 1e400}',
    b'{"temperature": 123456789012345678901234567890, "messages": {}}\r\n',
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
async def test_odd_bodies_are_answered_as_directly(start_llama: StartLlama, path: str) -> None:
    """Status and body are the server's own, and no error of ours is logged on the way."""
    server = start_llama("dense", "-np", "1")
    async with running(server) as proxied, talking() as client:
        for body in ODD:
            told = []
            for base in (server.url, proxied.base_url.removesuffix("/v1")):
                async with client.post(base + path, data=body) as answer:
                    told.append((answer.status, await answer.read()))
            assert told[0] == told[1], body[:40]
