"""What does not go on by itself holds up nobody: a reader that sleeps, a preparation that never ends; and `SLOT=N`."""

import asyncio
import time
from pathlib import Path

import orjson
import pytest

from proxy.demo.sessions import Body, next_turn, session
from tests.conftest import StartLlama
from tests.load.quiet import at_rest
from tests.load.relay import Call, relay
from tests.serving.running import ask, running, sessions
from tests.wire import client

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
LONG_ANSWER = 300
SILENCE_S = 1.5
SLACK_S = 1.5


async def test_a_sleeping_reader_blocks_nobody(start_llama: StartLlama) -> None:
    """One who reads the headers and then nothing keeps its connection, but not the slot that has long been idle."""
    server = start_llama("dense", "-np", "1")
    body = orjson.dumps({**talkative(session("/a", prefix_tokens=600)), "max_completion_tokens": LONG_ANSWER})
    async with running(server) as proxied:
        async with client(proxied.proxy.port, receive_buffer=4096, limit=1024) as sleeper:
            await sleeper.send(HEAD % len(body) + body)
            await sleeper.head()
            (theirs,) = proxied.proxy.engine._inside.values()
            answer = await ask(proxied.client, proxied.base_url, sessions("/b", tokens=600)[0])
            assert (200, True) == (answer.status, theirs.is_reclaimed)
        await at_rest(proxied)


def talkative(body: Body) -> Body:
    """Answered with tens of kilobytes a token, more than the buffers between us and its client hold."""
    rest = {name: value for name, value in body.items() if name != "tools"}
    return {**rest, "logprobs": True, "top_logprobs": 400}


@pytest.mark.parametrize("stuck", ["/completion", "/slots", "/props", "/apply-template", "/tokenize"])
async def test_a_stuck_preparation(start_llama: StartLlama, stuck: str) -> None:
    """A call of ours that is never answered ends at its limit, and the request goes on."""
    server = start_llama("dense", "-np", "1")
    is_stuck = asyncio.Event()

    async def hold(call: Call) -> None:
        if is_stuck.is_set() and call.path.startswith(stuck):
            await asyncio.Event().wait()

    first, other = sessions("/a", tokens=600)[0], session("/b", seed=2, prefix_tokens=600)
    async with relay(server, hold) as url, running(url, max_silence=SILENCE_S, control_timeout=SILENCE_S) as proxied:
        known = await proxied.ask(first)
        is_stuck.set()
        asked_at = time.monotonic()
        answers = [
            await ask(proxied.client, proxied.base_url, body) for body in (other, next_turn(first, known.text, "go on"))
        ]
        took_s = time.monotonic() - asked_at
        is_stuck.clear()
        await at_rest(proxied)
    assert [200, 200] == [answer.status for answer in answers]
    assert 2 * (SILENCE_S + SLACK_S) > took_s


async def test_preparation_is_confined_to_one_slot(start_llama: StartLlama, tmp_path: Path) -> None:
    """With `SLOT=2` nothing of ours is aimed at another slot, whatever turns are taken, and all are answered."""
    server = start_llama("hybrid", "-np", "4", "--no-kv-unified", "--slot-save-path", str(tmp_path))
    aimed: list[Call] = []

    async def note(call: Call) -> None:
        if call.slot is not None:
            aimed.append(call)

    bodies = [*sessions("/a", "/b", tokens=600), *sessions("/c", tokens=500, seed=2)]
    persist = {"persist": True, "slot_dir": tmp_path, "dir": tmp_path / "index"}
    async with relay(server, note) as url, running(url, slot=2, **persist) as proxied:
        await proxied.ask(bodies[2])
        aimed.clear()  # the probe looks at slots of its own
        for _ in range(3):
            for at, body in enumerate(bodies):
                answer = await proxied.ask(body)
                assert 200 == answer.status
                bodies[at] = next_turn(body, answer.text, "go on")
    assert {2} >= {call.slot for call in aimed}, aimed
