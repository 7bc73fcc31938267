"""The end of a proxy: running answers are let through, nothing new is taken, what was learned is on disk."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import aiohttp
import pytest

from proxy.demo.sessions import session
from tests.conftest import StartLlama
from tests.packaging.served import Served
from tests.serving.running import ask, talking

N_CLIENTS = 4
N_TOKENS = 200
SOON_S = 1.0


def _body(folder: str, n_tokens: int = N_TOKENS, prefix_tokens: int = 600) -> dict[str, object]:
    return {**session(folder, prefix_tokens=prefix_tokens, max_tokens=n_tokens), "temperature": 0, "ignore_eos": True}


async def _first_piece(client: aiohttp.ClientSession, base_url: str, folder: str, begun: asyncio.Event) -> bytes:
    """A long answer, whole; tells when its first piece is there."""
    async with client.post(f"{base_url}/chat/completions", json=_body(folder)) as response:
        data = b""
        async for line in response.content:
            data += line
            begun.set()
        return data


async def test_term_under_load_loses_no_answer(start_llama: StartLlama, tmp_path: Path) -> None:
    """SIGTERM while answers are streamed: each comes whole, and the proxy ends with 0."""
    server = start_llama("dense", "-np", str(N_CLIENTS))
    with Served(server.base_url, tmp_path) as served:
        served.until("listening")
        begun = [asyncio.Event() for _ in range(N_CLIENTS)]
        async with talking() as client:
            asked = [
                asyncio.create_task(_first_piece(client, served.base_url, f"/projects/{i}", event))
                for i, event in enumerate(begun)
            ]
            await asyncio.gather(*(event.wait() for event in begun))
            served.tell()
            answers = await asyncio.gather(*asked)
        status = await asyncio.to_thread(served.ended)
    assert [True] * N_CLIENTS == [data.rstrip().endswith(b"data: [DONE]") for data in answers]
    assert [True] * N_CLIENTS == [data.count(b'"content"') >= N_TOKENS // 2 for data in answers]
    assert 0 == status
    assert 1 == len(served.said("stopped"))


async def test_term_takes_no_new_connection(start_llama: StartLlama, tmp_path: Path) -> None:
    """While a running answer may end, another client is refused at once and can go elsewhere."""
    server = start_llama()
    with Served(server.base_url, tmp_path) as served:
        served.until("listening")
        begun = asyncio.Event()
        async with talking() as client:
            asked = asyncio.create_task(_first_piece(client, served.base_url, "/projects/a", begun))
            await begun.wait()
            os.kill(server.pid, signal.SIGSTOP)  # the answer lasts as long as we like
            try:
                served.tell()
                await asyncio.to_thread(served.until, "stopping")
                async with asyncio.timeout(SOON_S):
                    while await asyncio.to_thread(_is_accepted, served.port):
                        await asyncio.sleep(0.01)
                assert not asked.done()
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert (await asked).rstrip().endswith(b"data: [DONE]")
        assert 0 == await asyncio.to_thread(served.ended)


def _is_accepted(port: int) -> bool:
    """Whether a connection gets in: it is told that the proxy stops a moment before its socket is closed."""
    try:
        socket.create_connection(("127.0.0.1", port), 5.0).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_drain_timeout_cuts_what_is_left(start_llama: StartLlama, tmp_path: Path) -> None:
    """An answer that outlasts the limit is aborted, never ended as if it were whole; the exit is still orderly."""
    server = start_llama()
    with Served(server.base_url, tmp_path, "--drain-timeout", "0.2") as served:
        served.until("listening")
        begun = asyncio.Event()
        async with talking() as client:
            asked = asyncio.create_task(_first_piece(client, served.base_url, "/projects/a", begun))
            await begun.wait()
            os.kill(server.pid, signal.SIGSTOP)
            try:
                served.tell()
                with pytest.raises(aiohttp.ClientError):
                    await asked
                assert 0 == await asyncio.to_thread(served.ended)
            finally:
                os.kill(server.pid, signal.SIGCONT)


async def test_second_term_ends_at_once(start_llama: StartLlama, tmp_path: Path) -> None:
    """Whoever asks twice isn't kept waiting for the answers, whatever the limit."""
    server = start_llama()
    with Served(server.base_url, tmp_path, "--drain-timeout", "600") as served:
        served.until("listening")
        begun = asyncio.Event()
        async with talking() as client:
            asked = asyncio.create_task(_first_piece(client, served.base_url, "/projects/a", begun))
            await begun.wait()
            os.kill(server.pid, signal.SIGSTOP)
            try:
                served.tell()
                await asyncio.to_thread(served.until, "stopping")
                served.tell()
                assert 130 == await asyncio.to_thread(served.ended)
                with pytest.raises(aiohttp.ClientError):
                    await asked
            finally:
                os.kill(server.pid, signal.SIGCONT)


async def test_what_was_saved_is_in_the_index_after_term(start_llama: StartLlama, tmp_path: Path) -> None:
    """A proxy that is stopped right after a save knows the checkpoint when it starts again."""
    slots = tmp_path / "slots"
    slots.mkdir()
    server = start_llama("dense", "--slot-save-path", f"{slots}/")
    with Served(server.base_url, tmp_path, "--persist", "--slot-dir", str(slots)) as served:
        served.until("listening")
        async with talking() as client:
            answer = await ask(client, served.base_url, _body("/projects/a", n_tokens=4))
        saved = (await asyncio.to_thread(served.until, "saved"))["file"]
        served.tell()
        assert 0 == await asyncio.to_thread(served.ended)
    assert 200 == answer.status
    assert [saved] == [file.name for file in slots.glob("*.bin")]
    assert saved.removeprefix("pi-prefix-").removesuffix(".bin") in (tmp_path / "index" / "index.json").read_text()


async def test_no_save_begins_after_term(start_llama: StartLlama, tmp_path: Path) -> None:
    """A request whose prefix was being prefilled gets its answer; the prefix is left for another time."""
    slots = tmp_path / "slots"
    slots.mkdir()
    server = start_llama("dense", "--slot-save-path", f"{slots}/")
    with Served(server.base_url, tmp_path, "--persist", "--slot-dir", str(slots)) as served:
        served.until("probed")
        async with talking() as client:
            # Long enough that the server is halted in the middle of it.
            body = _body("/projects/a", n_tokens=4, prefix_tokens=4000)
            asked = asyncio.create_task(ask(client, served.base_url, body))
            await asyncio.to_thread(served.until, "warming")
            os.kill(server.pid, signal.SIGSTOP)
            try:
                served.tell()
                await asyncio.to_thread(served.until, "stopping")
            finally:
                os.kill(server.pid, signal.SIGCONT)
            answer = await asked
        assert 0 == await asyncio.to_thread(served.ended)
    assert 200 == answer.status
    assert answer.data.rstrip().endswith(b"data: [DONE]")
    assert [] == served.said("saved")
    assert [] == [file.name for file in slots.iterdir()]


async def test_a_checkpoint_that_fails_at_the_start_changes_nothing_about_the_end(
    start_llama: StartLlama, tmp_path: Path
) -> None:
    """The latest file is of a server with other flags: said, and SIGTERM still ends with 0 and `stopped`."""
    slots = tmp_path / "slots"
    slots.mkdir()
    flags = ("--persist", "--slot-dir", str(slots))
    server = start_llama("dense", "-np", "1", "--slot-save-path", f"{slots}/")
    with Served(server.base_url, tmp_path, *flags) as served:
        served.until("listening")
        async with talking() as client:
            await ask(client, served.base_url, _body("/projects/a", n_tokens=4))
        await asyncio.to_thread(served.until, "saved")
        served.tell()
        assert 0 == await asyncio.to_thread(served.ended)
    server.kill()
    server.start("-np", "2")
    with Served(server.base_url, tmp_path, *flags) as served:
        assert "restore_failed" == (await asyncio.to_thread(served.until, "trouble"))["reason"]
        served.tell()
        status = await asyncio.to_thread(served.ended)
    assert (0, 1) == (status, len(served.said("stopped")))
    assert [] == served.said("text") + served.said("bug")
