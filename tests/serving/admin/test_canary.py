"""What a user says and the key they use appear nowhere: not in logs, the index, metrics, status or page."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from proxy import logs
from proxy.demo.sessions import Body, next_turn
from tests.conftest import StartLlama
from tests.serving.admin.administered import Administered, administered, persisting
from tests.serving.running import sessions

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
    seen |= {str(path): path.read_text() for path in settings["dir"].rglob("*") if path.is_file()}
    seen["log"] = "".join(log.readouterr())
    assert '"checkpoints"' in seen["/status"]
    assert "pi-prefix-" in seen["log"]
    assert any("index.json" in name for name in seen)
    for name, text in seen.items():
        assert "canary" not in text.lower(), f"{name} shows it: {around(text)}"


def bearer() -> dict[str, str]:
    return {"Authorization": f"Bearer {KEY}admin"}


async def told(proxy: Administered, path: str) -> str:
    answer = await proxy.look(path, **bearer())
    assert answer.status in (200, 503)
    return answer.text


def around(text: str) -> str:
    at = text.lower().index("canary")
    return text[max(0, at - 200) : at + 80]
