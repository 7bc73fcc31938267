"""Proxy or server killed -9 at any step of a save or a restore: the next start is clean, and nothing good is gone."""

import asyncio
import os
import signal
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from proxy.checkpoints.key import FileKind
from proxy.demo.proxies import ProxyProcess
from proxy.demo.servers import LlamaServer
from tests.conftest import StartLlama
from tests.serving.checkpoints.persisting import HYBRID, QUIET, Place, crash, told
from tests.serving.checkpoints.prepared import ask_new, started
from tests.serving.checkpoints.relay import Relay, When, relaying
from tests.serving.running import Answer, ask, distance, talking

SAVING = ["prefill", "save", "beyond", "restore", "chat"]
"""What is asked of the server where there is no checkpoint and the model can't roll back."""
RESTORING = ["restore", "beyond", "restore", "chat"]


def at_every(steps: list[str]) -> pytest.MarkDecorator:
    points = [(number, when) for number in range(len(steps)) for when in ("before", "after")][:-1]
    names = [f"{when}-{number}-{steps[number]}" for number, when in points]
    return pytest.mark.parametrize("point", points, ids=names)


async def ask_in_vain(base_url: str) -> int:
    """Ask somebody who may die of it; the status, 0 for a broken connection."""
    async with talking() as client:
        with suppress(aiohttp.ClientError):
            return (await ask(client, base_url, told("/new"))).status
    return 0


async def recovers(place: Place, server: LlamaServer, cold: Answer, **settings: Any) -> list[str]:
    """A proxy started anew answers as a cold server would and leaves no trace of what was; its sources."""
    async with place.proxy(server, **settings) as proxied:
        answer = await ask_new(proxied)
        proxied.proxy.engine.context.tidy_up()
        sources = proxied.sources
    assert QUIET > distance(cold, answer)
    assert place.is_clean()
    return sources


async def killed_at(relay: Relay, place: Place, point: tuple[int, When]) -> None:
    """Have a proxy in a process of its own killed at that point of a request."""
    relay.stop_at = point
    flags = ("--persist", "1", "--slot-dir", str(place.slots))
    proxy = await asyncio.to_thread(ProxyProcess(relay.base_url, place.home, *flags).__enter__)
    asking = asyncio.create_task(ask_in_vain(proxy.base_url))
    try:
        await relay.arrive()
        assert proxy._process is not None
        os.kill(proxy._process.pid, signal.SIGKILL)
    finally:
        await asyncio.to_thread(proxy.__exit__)
    await relay.go_on()
    assert 0 == await asking


@at_every(SAVING)
async def test_the_proxy_is_killed_while_it_saves(
    start_llama: StartLlama, place: Place, point: tuple[int, When]
) -> None:
    """The next one finds no fragment, answers rightly, and after one more crash of the server restores."""
    server, cold = await started(start_llama, place, HYBRID, is_saved=False)
    async with relaying(server) as relay:
        await killed_at(relay, place, point)
        assert SAVING[: point[0] + 1] == relay.steps
    await recovers(place, server, cold)
    crash(server)
    await recovers(place, server, cold)
    crash(server)
    assert (await recovers(place, server, cold))[0] in ("restore", "hit")
    assert not place.files(FileKind.BAD)


@at_every(RESTORING)
async def test_the_proxy_is_killed_while_it_restores(
    start_llama: StartLlama, place: Place, point: tuple[int, When]
) -> None:
    """The file did no harm to the server that read it: it stays, and is restored after the next crash."""
    server, cold = await started(start_llama, place, HYBRID)
    before = place.checkpoint.read_bytes()
    async with relaying(server) as relay:
        await killed_at(relay, place, point)
    await recovers(place, server, cold)
    assert before == place.checkpoint.read_bytes()
    crash(server)
    assert "none" not in await recovers(place, server, cold)
    assert not place.files(FileKind.BAD)


@pytest.mark.usefixtures("unwatched")
@at_every(SAVING)
async def test_the_server_is_killed_in_a_save(start_llama: StartLlama, place: Place, point: tuple[int, When]) -> None:
    """Whoever asks next is answered rightly, no fragment is left, and the checkpoint is made or kept."""
    server, cold = await started(start_llama, place, HYBRID, is_saved=False)
    async with relaying(server) as relay, place.proxy(relay.base_url) as proxied:
        relay.stop_at = point
        asking = asyncio.create_task(ask_in_vain(proxied.base_url))
        await relay.arrive()
        server.kill()
        await relay.go_on(drop=True)
        assert await asking in (0, 502)
        server.start()
        answer = await ask_new(proxied)
        assert QUIET > distance(cold, answer)
    assert int("restore" == SAVING[point[0]]) == len(place.files(FileKind.BAD))
    assert not place.files(FileKind.TEMPORARY)
    crash(server)
    await recovers(place, server, cold)
    crash(server)
    assert ["restore"] == await recovers(place, server, cold)


@pytest.mark.usefixtures("unwatched")
@at_every(RESTORING)
async def test_the_server_is_killed_in_a_restore(
    start_llama: StartLlama, place: Place, point: tuple[int, When]
) -> None:
    """A file that it died of is put aside, never deleted and never tried again; any other is restored."""
    server, cold = await started(start_llama, place, HYBRID)
    before = place.checkpoint.read_bytes()
    async with relaying(server) as relay, place.proxy(relay.base_url) as proxied:
        relay.stop_at = point
        asking = asyncio.create_task(ask_in_vain(proxied.base_url))
        await relay.arrive()
        server.kill()
        await relay.go_on(drop=True)
        assert await asking in (0, 502)
        server.start()
        answer = await ask_new(proxied)
        assert QUIET > distance(cold, answer)
        died_of_it = "restore" == RESTORING[point[0]]
        assert ["warm-up" if died_of_it else "restore"] == proxied.sources[-1:]
    kept = place.files(FileKind.BAD if died_of_it else FileKind.FINAL)
    assert [before] == [path.read_bytes() for path in kept]
    crash(server)
    assert ["restore"] == await recovers(place, server, cold)
