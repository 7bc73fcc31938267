"""Servers that hide their slots, want a key or are not ready: status and body as directly, and few words about it."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.demo.servers import LlamaServer
from tests.conftest import StartLlama
from tests.serving.route import answer
from tests.serving.running import Answer, ask, ask_directly, running, sessions, talking
from tests.wire import Message, Peer, recording

KEY = "the-right-key"
RIGHT = {"Authorization": f"Bearer {KEY}"}
WRONG = {"Authorization": "Bearer another"}
REFUSED = [WRONG, {}, {"Authorization": f"bearer {KEY}"}, {"X-Api-Key": "another"}]
LOADING = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'


async def tasks(server: LlamaServer) -> list[Any]:
    """Which task each slot ran last, and how much it holds."""
    async with talking() as client, client.get(f"{server.url}/slots", headers=RIGHT) as response:
        return [(slot.get("id_task"), slot.get("n_prompt_tokens")) for slot in await response.json()]


async def directly(server: LlamaServer, headers: dict[str, str]) -> Answer:
    async with talking() as client:
        return await ask(client, server.base_url, sessions("/a")[0], headers)


@pytest.mark.parametrize("flags", [("-np", "1"), ()], ids=["one-slot", "default-flags"])
@pytest.mark.parametrize("kind", ["dense", "hybrid"])
async def test_hidden_slots(start_llama: StartLlama, kind: Any, flags: tuple[str, ...]) -> None:
    """Without `/slots` sessions are warmed all the same, nothing false is claimed, and it is said once."""
    bodies = sessions("/a", "/b", "/c")
    server = start_llama(kind, *flags, "--no-slots")
    plain = await ask_directly(server, *bodies)
    server.restart()
    with capture_logs() as lines:
        async with running(server) as proxied:
            answers = [await proxied.ask(body) for body in bodies]
            expected = proxied.prefix.n_tokens
    spent = sum(a.prefilled for a in answers) + sum(w.prompt_n for w in proxied.heard.warm_ups)
    assert [200, 200, 200] == [a.status for a in answers]
    assert [True, True] == [expected - 517 <= a.reused for a in answers[1:]]
    assert sum(a.prefilled for a in plain) + 8 >= spent
    assert 1 == len([line for line in lines if line.get("reason") == "no_slots"])
    assert [] == [line for line in lines if str(line.get("reason")).startswith("claim:")]


async def test_the_right_key(start_llama: StartLlama) -> None:
    """A client with the key is prepared for with its own key, however it carries it."""
    server = start_llama("dense", "-np", "1", "--api-key", KEY)
    async with running(server) as proxied:
        answers = [await proxied.ask(body, RIGHT) for body in sessions("/a")]
        answers += [await proxied.ask(body, {"X-Api-Key": KEY}) for body in sessions("/b")]
        expected = proxied.prefix.n_tokens
    assert [200, 200] == [a.status for a in answers]
    assert [True, True] == [expected <= a.reused for a in answers]


@pytest.mark.parametrize("headers", REFUSED, ids=["wrong", "none", "lower-case", "wrong-x-api-key"])
@pytest.mark.parametrize("is_known", [False, True], ids=["at-first", "later"])
async def test_a_refused_key(start_llama: StartLlama, headers: dict[str, str], is_known: bool) -> None:
    """A client that the server refuses gets the server's own words and causes no work, whoever was served before."""
    server = start_llama("dense", "-np", "1", "--api-key", KEY)
    expected = await directly(server, headers)
    async with running(server) as proxied:
        if is_known:
            await proxied.ask(sessions("/a")[0], RIGHT)
        before = await tasks(server)
        refused = [await proxied.ask(body, headers) for body in sessions("/b", "/c", seed=3)]
        assert before == await tasks(server)
        served = await proxied.ask(sessions("/d")[0], RIGHT)
        assert served.reused >= proxied.prefix.n_tokens
    assert [(401, expected.data)] * 2 == [(a.status, a.data) for a in refused]
    assert 401 == expected.status


PATHS: list[tuple[str, str, Any]] = [
    ("GET", "/health", None),
    ("GET", "/slots", None),
    ("GET", "/props", None),
    ("GET", "/metrics", None),
    ("GET", "/nowhere?a=b", None),
    ("POST", "/tokenize", {"content": "hello"}),
    ("POST", "/apply-template", {"messages": [{"role": "user", "content": "hello"}]}),
    ("POST", "/slots/0?action=save", {"filename": "../x"}),
    ("POST", "/v1/chat/completions", {"messages": "none"}),
    ("POST", "/v1/embeddings", {"input": "hello"}),
    ("DELETE", "/slots", None),
]


@pytest.mark.parametrize("flags", [("--no-slots",), ("--api-key", KEY)], ids=["no-slots", "api-key"])
async def test_every_path_is_answered_as_directly(start_llama: StartLlama, flags: tuple[str, ...]) -> None:
    """Status, reason and body, with the right key, a wrong one and none, whatever the server makes of it."""
    server = start_llama("dense", "-np", "1", *flags)
    async with running(server) as proxied, talking() as client:
        told: dict[str, list[Any]] = {server.url: [], proxied.base_url.removesuffix("/v1"): []}
        for base, answers in told.items():
            for method, path, body in PATHS:
                for headers in (RIGHT, WRONG, {}):
                    async with client.request(method, base + path, json=body, headers=headers) as got:
                        answers.append((method, path, got.status, got.reason, await got.read()))
    directly, through = told.values()
    assert directly == through
    assert {200, 400, 404, 501} | ({401} if KEY in flags else set()) <= {status for _, _, status, _, _ in through}


async def test_a_server_that_loads_its_model() -> None:
    """While the server loads, its 503 passes at once, nothing is warmed, and it is said once."""

    async def loading(peer: Peer, message: Message) -> None:
        await peer.send(answer(LOADING, b"Content-Type: application/json", status=b"503 Service Unavailable"))

    with capture_logs() as lines:
        async with recording(loading) as upstream, running(f"http://127.0.0.1:{upstream.port}/v1") as proxied:
            answers = [await proxied.ask(body) for body in sessions("/a", "/b", "/c", "/d")]
    assert [(503, LOADING)] * 4 == [(a.status, a.data) for a in answers]
    assert 4 == len([m for m in upstream.requests if m.target == b"/v1/chat/completions"])
    assert [] == [m.target for m in upstream.requests if m.start.startswith(b"POST") and b"/v1/chat/" not in m.target]
    assert 1 == len([line for line in lines if line["log_level"] in ("warning", "error")])
    assert max(a.headers_s for a in answers) < 1
