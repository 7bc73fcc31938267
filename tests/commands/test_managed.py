"""`serve --model FILE`: a llama-server of the proxy's own, started, restarted and ended with it."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.commands.managed import CannotManageError, planned
from proxy.demo.models import model_path
from proxy.demo.servers import ServerBinary
from proxy.settings import Settings
from tests.packaging.served import Served, environment
from tests.serving.running import ask, sessions, talking

PATIENCE_S = 30.0
BODY = sessions("/a", tokens=600)[0]
LONG = {**BODY, "max_completion_tokens": 100, "ignore_eos": True}


@pytest.fixture
def managing(llama_binary: ServerBinary, tmp_path: Path) -> Callable[..., Served]:
    """A proxy with a model; more flags come before those of the server."""

    def serve(*flags: str, of_server: tuple[str, ...] = ()) -> Served:
        env = {**llama_binary.environment, **environment()}
        where = ("--model", str(model_path("dense")), "--llama-server", str(llama_binary.path))
        rest = ("--", "-c", "16384", "-t", "2", *of_server)
        return Served("", tmp_path, *where, *flags, *rest, env=env)

    return serve


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]


async def gone(pid: int) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while await asyncio.to_thread(is_alive, pid):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def until_served(base_url: str) -> bytes:
    """An answer, as soon as there is one."""
    async with talking() as client, asyncio.timeout(PATIENCE_S):
        while (answer := await ask(client, base_url, BODY)).status != 200:
            await asyncio.sleep(0.05)
        return answer.data


async def test_a_model_file_is_all_it_needs(managing: Callable[..., Served], tmp_path: Path) -> None:
    """Requests are answered, prefixes prepared and saved beside the index; with the proxy its server ends."""
    with managing("--persist") as served:
        pid = (await asyncio.to_thread(served.until, "managed"))["pid"]
        await until_served(served.base_url)
        async with talking() as client:
            answers = [await ask(client, served.base_url, body) for body in sessions("/b", "/c", tokens=600, seed=2)]
        await asyncio.to_thread(served.until, "saved")
        served.tell()
        assert 0 == await asyncio.to_thread(served.ended)
    assert [0] == [line["code"] for line in served.said("managed_stopped")]
    assert answers[1].reused > 0.8 * answers[1].prompt_tokens
    assert await gone(pid)
    slots = tmp_path / "index" / "slots"
    assert 0o700 == slots.stat().st_mode & 0o777
    assert list(slots.glob("pi-prefix-*.bin"))


async def test_a_server_that_dies_is_started_again(managing: Callable[..., Served]) -> None:
    """On the same port, after a pause; the proxy goes on."""
    with managing() as served:
        first = (await asyncio.to_thread(served.until, "managed"))["pid"]
        await until_served(served.base_url)
        os.kill(first, signal.SIGKILL)
        said = await asyncio.to_thread(served.until, "managed_ended")
        second = (await asyncio.to_thread(served.until, "managed"))["pid"]
        await until_served(served.base_url)
        served.tell()
        assert 0 == await asyncio.to_thread(served.ended)
    assert -9 == said["code"]
    assert first != second
    assert await gone(second)


async def test_its_server_does_not_outlive_a_killed_proxy(managing: Callable[..., Served]) -> None:
    """Whatever ends the proxy; a model in memory that nobody knows of is of no use."""
    with managing() as served:
        pid = (await asyncio.to_thread(served.until, "managed"))["pid"]
        await until_served(served.base_url)
        served.tell(signal.SIGKILL)
        await asyncio.to_thread(served.ended)
        assert await gone(pid)


async def test_ctrl_c_lets_answers_end(managing: Callable[..., Served]) -> None:
    """The terminal signals all processes in front: the server is not among them."""
    with managing() as served:
        await asyncio.to_thread(served.until, "managed")
        await until_served(served.base_url)
        async with talking() as client, client.post(f"{served.base_url}/chat/completions", json=LONG) as response:
            first = await response.content.readline()
            os.killpg(served.pid, signal.SIGINT)
            rest = await response.content.read()
        assert 0 == await asyncio.to_thread(served.ended)
    assert (first + rest).rstrip().endswith(b"data: [DONE]")


def test_flags_of_the_server_come_last_and_win(managing: Callable[..., Served]) -> None:
    """Its own pauses grow while it can't start: a flag that it doesn't know ends it at once."""
    with managing(of_server=("--no-such-flag",)) as served:
        pauses = [served.until("managed_ended") for _ in range(2)]
        served.tell()
        assert 0 == served.ended()
    assert [1, 1] == [one["code"] for one in pauses]
    assert [1.0, 2.0] == [one["pause_s"] for one in pauses]
    assert any(b"--no-such-flag" in line["text"] for line in served.said("text"))


@pytest.mark.parametrize(
    ("given", "flags", "expected"),
    [
        ({"model": "/no/such.gguf"}, (), "MODEL=/no/such.gguf is no file"),
        ({"llama_server": "no-such-program"}, (), "no-such-program is not on PATH; say --llama-server /path or PI_"),
        ({"llama_server": "/no/such"}, (), "/no/such is no program that can be run; say --llama-server /path"),
        ({"base_url": "http://127.0.0.1:8080/v1"}, (), "leave BASE_URL out"),
        ({}, ("--port", "1"), "--port is the proxy's to set"),
        ({}, ("--model=/x",), "--model=/x is the proxy's to set"),
        ({"model": None}, ("-c", "1"), "--model FILE"),
    ],
)
def test_what_cannot_be_started_is_told(
    tmp_path: Path, given: dict[str, object], flags: tuple[str, ...], expected: str
) -> None:
    """In one line, before anything runs."""
    right = {"model": str(Path(__file__)), "llama_server": "sh", "dir": tmp_path / "index"}
    settings = Settings(_env_file=None, **{**right, **given})  # type: ignore[call-arg, arg-type]
    with pytest.raises(CannotManageError, match=re.escape(expected)):
        planned(settings, flags)
    assert not (tmp_path / "index").exists()
