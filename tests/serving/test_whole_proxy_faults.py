"""The whole proxy where the server is of no use or the client errs: what is answered, and how little is said of it."""

import logging
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from proxy.demo.processes import free_port
from proxy.serving.snapshot import snapshot
from tests.conftest import StartLlama
from tests.serving.route import HOST, answer
from tests.serving.running import Running, running, sessions, talking
from tests.serving.scripted import whole
from tests.wire import Message, Peer, client, recording

CHAT = orjson.dumps(sessions("/a")[0])
SECRET = "key-of-the-client"
MANY = 100


async def fine(peer: Peer, _: Message) -> None:
    await peer.send(answer(b"fine"))


async def statuses(proxied: Running, path: str, **headers: str) -> list[int]:
    """Of many requests to one path, one after the other."""
    told = []
    async with talking() as visitor:
        for _ in range(MANY):
            async with visitor.post(proxied.base_url + path, data=CHAT, headers=headers) as got:
                told.append(got.status)
    return told


def said(lines: list[Any], level: str = "info") -> list[Any]:
    """Lines that stand in a log at this level."""
    levels = logging.getLevelNamesMapping()
    return [line for line in lines if levels[line["log_level"].upper()] >= levels[level.upper()]]


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/models"])
async def test_many_requests_to_a_dead_server(path: str) -> None:
    """Each is answered with 502; beside a chat's own line the log has a few in all, and each reason once."""
    with capture_logs() as lines:
        async with running(f"http://127.0.0.1:{free_port()}/v1") as proxied:
            assert [502] * MANY == await statuses(proxied, path)
    own = [line["status"] for line in lines if line["event"] == "request"]
    assert [502] * (MANY if "chat" in path else 0) == own
    assert 3 >= len(said(lines)) - len(own), lines
    reasons = [line["reason"] for line in said(lines, "warning")]
    assert len(set(reasons)) == len(reasons)


@pytest.mark.parametrize("status", [401, 503])
async def test_many_requests_to_a_server_that_refuses_everything(status: int) -> None:
    """Its own words each time; beside each request's own line there are a few in all."""
    words = b'{"error":{"message":"its own words","type":"x"}}'

    async def refusing(peer: Peer, _: Message) -> None:
        await peer.send(answer(words, b"Content-Type: application/json", status=b"%d No" % status))

    with capture_logs() as lines:
        async with recording(refusing) as upstream, running(f"http://127.0.0.1:{upstream.port}/v1") as proxied:
            assert [status] * MANY == await statuses(proxied, "/chat/completions")
    asked = [message.target for message in upstream.requests]
    assert MANY == asked.count(b"/v1/chat/completions")
    assert MANY == len([line for line in said(lines) if line["event"] == "request"])
    assert 3 >= len([line for line in said(lines) if line["event"] != "request"]), lines


async def test_the_limit_of_our_own_questions_is_no_limit_of_a_request() -> None:
    """`CONTROL_TIMEOUT` too short for anything: nothing is prepared, and every request is answered."""
    async with whole(fine, control_timeout=1e-9) as path, client(path.port) as visitor:
        for target in (b"/v1/chat/completions", b"/v1/completions"):
            head = b"POST %b HTTP/1.1\r\n" % target + HOST + b"X-Client: of the test\r\n"
            for _ in range(5):
                assert b"fine" == (await visitor.ask(head + b"Content-Length: %d\r\n\r\n" % len(CHAT) + CHAT)).body


async def test_a_wrong_key_does_not_become_a_right_one(start_llama: StartLlama) -> None:
    """A byte of it that can't be carried is not left out: the request is refused here, and does no work there."""
    server = start_llama("dense", "-np", "1", "--api-key", SECRET)
    async with running(server) as proxied:
        for name in (b"Authorization: Bearer \xff", b"X-Api-Key: \xff"):
            head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + name + SECRET.encode() + b"\r\n"
            async with client(proxied.proxy.port) as visitor:
                got = await visitor.ask(head + b"Content-Length: %d\r\n\r\n" % len(CHAT) + CHAT)
            assert (400, "proxy_error") == (got.status, orjson.loads(got.body)["error"]["type"])
        async with proxied.client.get(f"{server.url}/slots", headers={"X-Api-Key": SECRET}) as looks:
            assert [-1] == [slot.get("id_task", -1) for slot in await looks.json()]


QUERY = f"?key={SECRET}&a=b"
TARGETS = [
    f"POST /v1/chat/completions{QUERY}",
    f"POST /chat/completions{QUERY}#{SECRET}",
    f"POST http://me:{SECRET}@there/v1/chat/completions{QUERY}",
    f"POST /v1/completions{QUERY}",
    f"POST /lora-adapters{QUERY}",
    f"GET /v1/models{QUERY}",
    f"DELETE /v1/models{QUERY}",
    f"CONNECT {SECRET}:80",
    f"GET /\xff{QUERY}",
    f"BREW /v1/models{QUERY}",
    f"GET {QUERY}",
]


@pytest.mark.parametrize("is_there", [True, False], ids=["server", "no-server"])
async def test_no_query_is_ever_told(is_there: bool, caplog: pytest.LogCaptureFixture) -> None:
    """In no line of any level, whoever writes it, nor in status or metrics: it may carry a key."""
    caplog.set_level(logging.DEBUG)
    with capture_logs() as lines:
        async with AsyncExitStack() as stack:
            dead = f"http://127.0.0.1:{free_port()}/v1"
            if is_there:
                proxied = (await stack.enter_async_context(whole(fine))).proxied
            else:
                proxied = await stack.enter_async_context(running(dead))
            for target in TARGETS:
                async with client(proxied.proxy.port) as visitor:
                    head = f"{target} HTTP/1.1\r\nX-Client: of the test\r\n".encode("latin-1") + HOST
                    await visitor.send(head + b"Content-Length: %d\r\n\r\n" % len(CHAT) + CHAT)
                    assert (await visitor.head()).status in {200, 400, 501, 502}
            admin = proxied.proxy.admin
            shown = snapshot(proxied.proxy.engine, admin.history, await admin.presence.look(), 0.0, limit=100)
            told = f"{shown} {admin.metrics.text('')}"
    assert "'path': '/v1/chat/completions'" in str(lines)
    assert [] == [place for place in (str(lines), caplog.text, told) if SECRET in place]
