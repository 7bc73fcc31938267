"""After a start of the server that was seen its prefix is in a slot before anybody asks; whoever asks comes first."""

import asyncio
import math
import shutil
from dataclasses import replace
from typing import Any

import pytest

from proxy.checkpoints.index_file import write_index
from proxy.serving import lifecycle
from proxy.serving.lifecycle import Lifecycle
from proxy.serving.store import Store
from tests.conftest import StartLlama
from tests.serving.checkpoints.persisting import (
    DENSE,
    HYBRID,
    TOKENS,
    Calls,
    Place,
    Setup,
    both,
    crash,
    setups,
)
from tests.serving.checkpoints.prepared import started
from tests.serving.checkpoints.relay import relaying
from tests.serving.running import Running, ask_server, sessions

pytestmark = pytest.mark.usefixtures("unwatched")
(NEW,) = sessions("/new", tokens=TOKENS)


def looking(proxied: Running) -> "asyncio.Task[None]":
    """The idle proxy looks at its server."""
    return asyncio.ensure_future(proxied.proxy.engine.lifecycle.look())


def noticed(lifecycle: Lifecycle, patch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a request has come that way is made for."""
    came, make_way = asyncio.Event(), lifecycle.make_way

    def notice() -> None:
        make_way()
        came.set()

    patch.setattr(lifecycle, "make_way", notice)
    return came


@setups
async def test_a_server_that_was_seen_to_start_has_its_prefix_before_any_request(
    start_llama: StartLlama, place: Place, setup: Setup
) -> None:
    """The prefix used last is in the slot, and the first request finds it there."""
    server, _ = await started(start_llama, place, setup)
    async with place.proxy(server) as proxied:
        await looking(proxied)
        answer = await proxied.ask(NEW)
        assert ["hit"] == proxied.sources
        assert proxied.prefix.n_tokens <= answer.reused


@both
async def test_so_it_has_where_the_directory_can_not_be_seen(
    start_llama: StartLlama, place: Place, calls: Calls, setup: Setup
) -> None:
    """What this proxy has in memory of the prefix is enough to verify the file before anybody is let in."""
    server, _ = await started(start_llama, place, setup, is_saved=False)
    async with place.proxy(server, slot_dir=None) as proxied:
        await proxied.ask(NEW)
        crash(server, under=proxied)
        await looking(proxied)
        (key,) = (record.key for record in place.known().records)
        assert key in proxied.proxy.engine.model.verified
        before = calls.restores
        answer = await proxied.ask(NEW)
        assert (["warm-up", "hit"], before) == (proxied.sources, calls.restores)
        assert proxied.prefix.n_tokens <= answer.reused


async def test_without_its_tokens_a_file_that_can_not_be_seen_waits_for_its_request(
    start_llama: StartLlama, place: Place, calls: Calls
) -> None:
    """What can't be verified before the first request is let in is not put into a slot; the request has it restored."""
    server, _ = await started(start_llama, place, DENSE)
    before = calls.restores
    async with place.proxy(server, slot_dir=None) as proxied:
        await looking(proxied)
        assert 1 == calls.restores - before  # the probe's
        await proxied.ask(NEW)
        assert ["restore"] == proxied.sources


async def test_for_a_request_that_comes_while_the_server_is_met_nothing_else_is_restored(
    start_llama: StartLlama, place: Place, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the probe, and then it is its own prefix that counts."""
    server, _ = await started(start_llama, place, DENSE)
    async with place.proxy(server) as proxied:
        reached, go_on, engine = asyncio.Event(), asyncio.Event(), proxied.proxy.engine
        probe = engine.acquaintance.probe

        async def slow(auth: Any) -> None:
            reached.set()
            await go_on.wait()
            await probe(auth)

        monkeypatch.setattr(engine.acquaintance, "probe", slow)
        before, look = calls.restores, looking(proxied)
        await reached.wait()
        came = noticed(engine.lifecycle, monkeypatch)
        asking = asyncio.ensure_future(proxied.ask(sessions("/other", seed=2, tokens=TOKENS)[0]))
        await came.wait()
        go_on.set()
        await asking
        await look
        assert (["warm-up"], 1) == (proxied.sources, calls.restores - before)  # the probe's


async def test_a_request_that_comes_before_the_server_reads_the_file_ends_the_restore(
    start_llama: StartLlama, place: Place, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits neither for the proof of a large file nor for the restore of a prefix that isn't its own."""
    server, _ = await started(start_llama, place, DENSE)
    reached, prove = asyncio.Event(), Store.prove

    async def endless(*_: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Store, "prove", endless)
    async with place.proxy(server) as proxied:
        look = looking(proxied)
        await reached.wait()
        before = calls.restores
        await proxied.ask(sessions("/other", seed=2, tokens=TOKENS)[0])
        assert (["warm-up"], before) == (proxied.sources, calls.restores)
        await look
        monkeypatch.setattr(Store, "prove", prove)
        crash(server, under=proxied)
        await proxied.ask(NEW)
        assert "restore" == proxied.sources[-1]


@pytest.mark.parametrize("setup", [HYBRID], ids=["hybrid"])
async def test_a_request_that_comes_while_the_server_reads_finds_the_prefix(
    start_llama: StartLlama, place: Place, monkeypatch: pytest.MonkeyPatch, setup: Setup
) -> None:
    """What the server is at goes on to its end, verified and all; only then is the slot somebody else's."""
    server, _ = await started(start_llama, place, setup)
    async with relaying(server) as relay, place.proxy(relay.base_url) as proxied:
        relay.stop_at = (0, "before")
        look = looking(proxied)
        await relay.arrive()
        came = noticed(proxied.proxy.engine.lifecycle, monkeypatch)
        asking = asyncio.ensure_future(proxied.ask(NEW))
        await came.wait()
        assert not (await asyncio.wait({asking}, timeout=0.3))[0]
        assert ["restore"] == relay.steps
        await relay.go_on()
        answer = await asking
        await look
        assert ["restore", "beyond", "restore", "chat"] == relay.steps
        assert ["hit"] == proxied.sources
        assert proxied.prefix.n_tokens <= answer.reused


async def test_nothing_is_restored_into_a_server_that_only_slept(start_llama: StartLlama, place: Place) -> None:
    """An idle proxy lets the server sleep, and gives it nothing when it has."""
    server = place.start(start_llama, DENSE, "--sleep-idle-seconds", "1")
    async with place.proxy(server) as proxied:
        await proxied.ask(sessions("/old", tokens=TOKENS)[0])
        model, watch = proxied.proxy.engine.model, proxied.proxy.engine.lifecycle
        while not (await ask_server(server, "/props"))["is_sleeping"]:
            model.last_answer = -math.inf
            await watch.look()
        await watch.look()
        assert (await ask_server(server, "/props"))["is_sleeping"]
        answer = await proxied.ask(NEW)
        assert proxied.prefix.n_tokens <= answer.reused


async def test_nothing_is_restored_into_a_server_that_was_asleep_when_it_was_met(
    start_llama: StartLlama, place: Place, calls: Calls
) -> None:
    """Somebody else wakes it: its slots are as empty as after a start, but it was not a start."""
    server, _ = await started(start_llama, place, DENSE, "--sleep-idle-seconds", "1")
    async with place.proxy(server) as proxied:
        while not (await ask_server(server, "/props"))["is_sleeping"]:
            pass
        before = calls.restores
        await looking(proxied)
        await ask_server(server, "/tokenize", {"content": "awake"})
        await looking(proxied)
        assert 1 == calls.restores - before  # the probe's


async def test_a_file_that_holds_other_tokens_than_its_name_says_is_not_recalled(
    start_llama: StartLlama, place: Place, calls: Calls
) -> None:
    """Saved where it could not be seen, it has no checksum: that another one was put in its place its tokens tell."""
    server, _ = await started(start_llama, place, DENSE)
    path = place.checkpoint
    async with place.proxy(server) as proxied:
        await proxied.ask(sessions("/other", seed=2, tokens=TOKENS)[0])
    (other,) = set(place.files()) - {path}
    shutil.copy(other, path)
    late = [replace(r, seal=None, size_bytes=path.stat().st_size, last_used_at=2e9) for r in place.known().records]
    (place.index / "index.json").write_bytes(write_index(record for record in late if record.key in path.name))
    crash(server)
    before = calls.restores
    async with place.proxy(server) as proxied:
        await looking(proxied)
        assert 1 == calls.restores - before  # the probe's
        await proxied.ask(NEW)
        assert ["warm-up"] == proxied.sources


async def test_a_damaged_file_is_put_aside_and_nothing_else_comes_of_it(
    start_llama: StartLlama, place: Place, calls: Calls
) -> None:
    """The prefix used last can't be given back: the request that needs it builds it, and the end is an orderly one."""
    server, _ = await started(start_llama, place, DENSE)
    damaged = bytearray(place.checkpoint.read_bytes())
    damaged[-100:] = b"\xff" * 100
    place.checkpoint.write_bytes(damaged)
    before = calls.restores
    async with place.proxy(server) as proxied:
        await looking(proxied)
        assert 1 == calls.restores - before  # the probe's
        await proxied.proxy.engine.lifecycle.stop()
        await proxied.ask(NEW)
        assert ["warm-up"] == proxied.sources


async def test_one_look_that_goes_wrong_is_not_the_last(
    start_llama: StartLlama, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of ours in the watch over the server is told, and the next look is as good as ever."""
    server, _ = await started(start_llama, place, DENSE)
    monkeypatch.setattr(lifecycle, "WATCH_S", 0.01)
    looks, second = 0, asyncio.Event()

    async def look(_: Lifecycle) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise KeyError(looks)
        second.set()

    monkeypatch.setattr(Lifecycle, "look", look)
    async with place.proxy(server) as proxied:
        watching = asyncio.ensure_future(proxied.proxy.engine.lifecycle._watch())
        async with asyncio.timeout(5.0):
            await second.wait()
        watching.cancel()
        assert [KeyError] == [type(bug) for bug in proxied.heard.bugs]
        proxied.heard.bugs.clear()
