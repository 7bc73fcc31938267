"""What takes too long for a client is forwarded at once and built when the server is idle."""

import asyncio
import math

import pytest

from proxy.demo.sessions import next_turn
from proxy.serving import accounting, lifecycle
from tests.conftest import StartLlama
from tests.serving.checkpoints.persisting import (
    DENSE,
    TOKENS,
    Calls,
    Place,
    Setup,
    both,
    crash,
    slot_flags,
)
from tests.serving.running import Running, sessions

pytestmark = pytest.mark.usefixtures("unwatched")


async def slow(proxied: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the proxy believe that this server needs a quarter of an hour for a prefix."""
    await proxied.proxy.engine.lifecycle.look()
    proxied.proxy.engine.model.prompt_ms_per_token = 1000.0
    monkeypatch.setattr(accounting, "learn_rate", lambda *_: None)


async def idle(proxied: Running) -> None:
    """Let the server have been idle for a while, and what is built then be begun."""
    proxied.proxy.engine.model.last_answer = -math.inf
    await proxied.proxy.engine.lifecycle.look()


async def built(proxied: Running) -> None:
    task = proxied.proxy.engine.lifecycle._building
    assert task is not None
    await asyncio.wait({task})


@both
@slot_flags
async def test_a_slow_prefix_is_built_later(
    start_llama: StartLlama, place: Place, setup: Setup, slots: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request isn't held up; once the server is idle the checkpoint is made, and a crash later it is restored."""
    server = place.start(start_llama, setup, *slots)
    one, two = sessions("/one", "/two", tokens=TOKENS)
    async with place.proxy(server) as proxied:
        await slow(proxied, monkeypatch)
        await proxied.ask(one)
        assert (["built_when_idle"], []) == (proxied.reasons, place.files())
        await idle(proxied)
        await built(proxied)
        assert 1 == len(place.files())
        crash(server, under=proxied)
        answer = await proxied.ask(two)
        assert ["none", "restore"] == proxied.sources
        assert proxied.prefix.n_tokens == answer.reused
        assert not proxied.proxy.engine.model.to_build


@both
@slot_flags
async def test_what_the_slots_hold_outlives_the_build(
    start_llama: StartLlama, place: Place, setup: Setup, slots: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation that was going on when the server fell idle goes on where it was."""
    server = place.start(start_llama, setup, *slots)
    (body,) = sessions("/one", tokens=TOKENS)
    async with place.proxy(server) as proxied:
        await slow(proxied, monkeypatch)
        first = await proxied.ask(body)
        await idle(proxied)
        await built(proxied)
        answer = await proxied.ask(next_turn(body, first.text, "go on"))
    assert 40 > answer.prefilled


async def test_a_build_waits_until_the_server_has_been_idle(
    start_llama: StartLlama, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after a request nothing is built."""
    server = place.start(start_llama)
    async with place.proxy(server) as proxied:
        await slow(proxied, monkeypatch)
        await proxied.ask(sessions("/one", tokens=TOKENS)[0])
        await proxied.proxy.engine.lifecycle.look()
        assert not proxied.proxy.engine.lifecycle.is_building
        assert 1 == len(proxied.proxy.engine.model.to_build)


async def test_a_request_ends_the_build(start_llama: StartLlama, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes while a prefix is being built is served at once; the build is taken up again later."""
    server = place.start(start_llama, DENSE, "-np", "1", "-b", "64", "-ub", "64")
    long, short = sessions("/one", tokens=4000)[0], sessions("/two", seed=2, tokens=600)[0]
    async with place.proxy(server) as proxied:
        await slow(proxied, monkeypatch)
        await proxied.ask(long)
        await proxied.ask(short)
        begun = proxied.heard.begun_warm_ups
        await idle(proxied)
        await proxied.heard.until(lambda: proxied.heard.begun_warm_ups > begun)
        await proxied.ask(short)
        assert [] == place.files()
        assert not proxied.proxy.engine.lifecycle.is_building
        for _ in range(len(proxied.proxy.engine.model.to_build)):
            await idle(proxied)
            await built(proxied)
    assert 2 == len(place.files())


async def test_a_prefix_that_is_on_disk_by_now_is_not_built(
    start_llama: StartLlama, place: Place, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built meanwhile for somebody who could wait, it isn't built again."""
    server = place.start(start_llama)
    async with place.proxy(server) as proxied:
        await slow(proxied, monkeypatch)
        await proxied.ask(sessions("/one", tokens=TOKENS)[0])
        proxied.proxy.engine.model.prompt_ms_per_token = 0.0
        crash(server, under=proxied)
        await proxied.ask(sessions("/two", tokens=TOKENS)[0])
        assert ["none", "warm-up"] == proxied.sources
        saves = calls.saves
        await idle(proxied)
        await built(proxied)
        assert (saves, []) == (calls.saves, list(proxied.proxy.engine.model.to_build))


def test_the_server_is_left_alone_for_long_enough() -> None:
    """A build begins long after the last answer, for a person thinks longer than a moment."""
    assert 10.0 <= lifecycle.BUILD_IDLE_S
