"""What a user says and the key they use appear nowhere: not in logs, the index, metrics, status, page or commands."""

import asyncio
import contextlib
import copy
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from proxy import logs
from proxy.__main__ import main
from proxy.demo.sessions import Body, next_turn
from proxy.serving.app import Proxy
from proxy.serving.needs import Needs
from proxy.settings import Settings
from tests.conftest import StartLlama
from tests.serving.admin.administered import Administered, administered, persisting
from tests.serving.running import ask, sessions, talking

SENTENCE = "canarysentence nobody else says"
ANSWER = "canaryanswer nobody else gives"
TOOL = "canarytool nobody else has"
KEY = "sk-canarykey0123456789"


@pytest.fixture(params=["console", "json"])
def log(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    """All that is written at the lowest level, by whatever library."""
    logs.configure(request.param, "debug")
    yield capfd
    structlog.reset_defaults()


def telltale(folder: str) -> Body:
    body = copy.deepcopy(sessions(folder)[0])
    body["messages"][0]["content"] = f"{SENTENCE}. {body['messages'][0]['content']}"
    body["messages"][1]["content"] = f"{SENTENCE}?"
    body["tools"][0]["function"]["description"] += TOOL
    body["tools"][1]["function"]["parameters"]["properties"][TOOL] = {"type": "string", "description": SENTENCE}
    return body


async def use(proxy: Administered) -> None:
    """Sessions that are warmed, saved and restored; some that go wrong."""
    for folder in ("/a", "/b"):
        await proxy.ask(telltale(folder), {"Authorization": f"Bearer {KEY}"})
        later = next_turn(telltale(folder), ANSWER, SENTENCE)
        await proxy.ask(later, {"Authorization": f"Bearer {KEY}"})
    await proxy.ask(telltale("/c"), {"Authorization": f"Bearer {KEY}x"})
    broken = {**telltale("/d"), "tools": SENTENCE}
    await proxy.ask(broken, {"Authorization": f"Bearer {KEY}"})
    path = f"{proxy.base_url}/chat/completions"
    for body in (b'{"messages": [{"content": "' + SENTENCE.encode(), b"{}", SENTENCE.encode()):
        async with proxy.client.post(path, data=body, headers={"Authorization": f"Bearer {KEY}"}) as answer:
            await answer.read()
    await proxy.look("/warm", "POST")
    changed = telltale("/e")
    changed["messages"][0]["content"] = changed["messages"][0]["content"].replace("<rules>", f"<rules>\n{SENTENCE}")
    changed["tools"][1]["function"]["parameters"]["properties"][TOOL]["description"] += SENTENCE
    await proxy.ask(changed, {"Authorization": f"Bearer {KEY}"})


async def test_neither_a_sentence_nor_a_key_is_found_anywhere(
    start_llama: StartLlama, tmp_path: Path, log: pytest.CaptureFixture[str]
) -> None:
    """0 hits in all logs at debug level, in the index, in metrics, in status and in the page's events."""
    settings = persisting(tmp_path)
    server = start_llama("dense", "--slot-save-path", str(settings["slot_dir"]), "--api-key", KEY)
    async with administered(server, **settings, api_key=KEY, admin_token=f"{KEY}admin") as proxy:
        await use(proxy)
        seen = {path: await told(proxy, path) for path in ("/", "/metrics", "/status", "/status/schema", "/readyz")}
        async with proxy.client.get(f"{proxy.admin_url}/events", headers=bearer()) as events:
            seen["/events"] = (await events.content.readline()).decode()
        seen["log"] = "".join(log.readouterr())
        for words in (("ls",), ("ls", "--json"), ("status",), ("explain",), ("explain", "1"), ("warm",)):
            seen[" ".join(words)] = await asyncio.to_thread(typed, *words, *where(proxy))
        its_own = ("--base-url", server.base_url, "--api-key", KEY, "--persist", "--slot-dir", settings["slot_dir"])
        seen["doctor"] = await asyncio.to_thread(typed, "doctor", *its_own, *where(proxy))
        key = max(path.stem.removeprefix("pi-prefix-") for path in settings["slot_dir"].glob("*.bin"))
        seen["show"] = await asyncio.to_thread(typed, "show", key, *where(proxy))
    seen |= {str(path): path.read_text() for path in settings["dir"].rglob("*") if path.is_file()}
    seen["log"] += "".join(log.readouterr())
    assert "parameters.field 3.description" in seen["explain"]
    assert "what it has found out is taken from it" in seen["doctor"]
    assert key in seen["ls"]
    assert "proof" in seen["show"]
    assert '"checkpoints"' in seen["/status"]
    assert "pi-prefix-" in seen["log"]
    assert any("index.json" in name for name in seen)
    for name, text in seen.items():
        assert "canary" not in text.lower(), f"{name} shows it: {around(text)}"


async def test_an_error_of_ours_tells_its_place_and_not_its_words(
    start_llama: StartLlama, log: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An exception whose message quotes the request: the request is served, the log has the type and the lines."""

    async def fail(*_: Any) -> None:
        raise ValueError(SENTENCE) from KeyError(KEY)

    monkeypatch.setattr(Needs, "of", fail)
    server = start_llama("dense", "--api-key", KEY)
    where = {"base_url": server.base_url, "port": 0, "admin_port": 0, "dir": tmp_path}
    proxy = Proxy(Settings(_env_file=None, **where))  # type: ignore[arg-type, call-arg]
    await proxy.start()
    try:
        async with talking() as client:
            url = f"http://127.0.0.1:{proxy.port}/v1"
            answer = await ask(client, url, telltale("/a"), {"Authorization": f"Bearer {KEY}"})
    finally:
        await proxy.close()
    said = "".join(log.readouterr())
    assert 200 == answer.status
    assert "unexpected ValueError" in said or "ValueError after KeyError" in said
    said = said.replace(__file__, "")  # one of the places
    assert "canary" not in said.lower(), around(said)


def typed(*words: object) -> str:
    """All that a command writes."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        main([str(word) for word in words])
    return out.getvalue()


def where(proxy: Administered) -> tuple[object, ...]:
    return "--admin-port", proxy.proxy.admin.port, "--admin-token", f"{KEY}admin"


def bearer() -> dict[str, str]:
    return {"Authorization": f"Bearer {KEY}admin"}


async def told(proxy: Administered, path: str) -> str:
    answer = await proxy.look(path, **bearer())
    assert answer.status in (200, 503)
    return answer.text


def around(text: str) -> str:
    at = text.lower().index("canary")
    return text[max(0, at - 200) : at + 80]
