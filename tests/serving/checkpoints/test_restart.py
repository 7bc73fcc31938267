"""A server that was killed and started again has its prefix back from disk."""

import pytest

from proxy.serving import acquaintance
from tests.conftest import StartLlama
from tests.serving.checkpoints.persisting import (
    EXACT,
    QUIET,
    SWA,
    TOKENS,
    Calls,
    Place,
    Setup,
    both,
    crash,
    reasons,
    saved,
    setups,
    slot_flags,
    told,
)
from tests.serving.running import ask_directly, distance, sessions


@setups
@slot_flags
async def test_a_new_session_after_a_crash_prefills_its_own_tail_only(
    start_llama: StartLlama, place: Place, setup: Setup, slots: tuple[str, ...]
) -> None:
    """All of the exact prefix is reused, and the log-probabilities are those of a cold server."""
    server = place.start(start_llama, setup, *EXACT, *slots)
    (cold,) = await ask_directly(server, {**told("/new"), "cache_prompt": False})
    crash(server)
    async with place.proxy(server) as proxied:
        await proxied.ask(sessions("/old", tokens=TOKENS)[0])
        crash(server, under=proxied)
        answer = await proxied.ask(told("/new"))
        assert ["warm-up", "restore"] == proxied.sources
        assert proxied.prefix.n_tokens <= answer.reused
    assert QUIET > distance(cold, answer)
    assert place.is_clean()


@setups
async def test_proxy_and_server_both_start_again(start_llama: StartLlama, place: Place, setup: Setup) -> None:
    """What is on disk is enough: a new proxy and a new server go on where the old ones were."""
    server = place.start(start_llama, setup)
    await saved(place, server, tokens=2000)
    crash(server)
    async with place.proxy(server) as proxied:
        answers = [await proxied.ask(body) for body in sessions("/one", "/two", tokens=2000)]
        assert all(proxied.prefix.n_tokens <= answer.reused for answer in answers)
        assert all(warmed.cache_n >= proxied.prefix.n_tokens for warmed in proxied.heard.warm_ups)


@both
async def test_with_default_flags_an_answer_after_a_restore_is_that_after_a_warm_up(
    start_llama: StartLlama, place: Place, setup: Setup
) -> None:
    """Prefilled in the same batches, a restored prefix gives the same log-probabilities, flash attention or not."""
    server = place.start(start_llama, setup)
    async with place.proxy(server) as proxied:
        warmed = await proxied.ask(told("/new"))
        crash(server, under=proxied)
        restored = await proxied.ask(told("/new"))
        assert ["warm-up", "restore"] == proxied.sources
    assert QUIET > distance(warmed, restored)


async def test_a_sliding_window_without_its_flag_is_told_once_and_left_alone(
    start_llama: StartLlama, place: Place
) -> None:
    """One advice, no file, no restore, and no request is more than 8 tokens dearer than directly."""
    bodies = sessions("/one", "/two", "/three", tokens=TOKENS)
    server = place.start(start_llama, SWA)
    directly = []
    for body in bodies:
        crash(server)
        directly += await ask_directly(server, body)
    crash(server)
    async with place.proxy(server) as proxied:
        answers = []
        for body in bodies:
            answers.append(await proxied.ask(body))
            assert 8 >= answers[-1].prefilled + proxied.heard.prefilled - directly[len(answers) - 1].prefilled
            proxied.heard.warm_ups.clear()
            proxied.heard.anchors.clear()
            crash(server, under=proxied)
        assert {"restore_useless"} == set(reasons(proxied, ["restore"]))
    assert "restore" not in proxied.sources
    assert not place.files()


async def test_a_restore_that_is_not_reused_is_not_tried_again(
    start_llama: StartLlama, place: Place, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server that was hot when it was met, and so not probed, and whose model's file can't be read from here.

    The first restore shows that none is worth it.
    """
    monkeypatch.setattr(acquaintance, "sliding_window", lambda _: None)
    server = place.start(start_llama, SWA, "-np", "1")
    await ask_directly(server, sessions("/hot", seed=8, tokens=TOKENS)[0])
    async with place.proxy(server) as proxied:
        for folder in ("/one", "/two", "/three", "/four"):
            await proxied.ask(sessions(folder, tokens=TOKENS)[0])
            await proxied.ask(sessions(folder, seed=9, tokens=TOKENS)[0])
        assert {"restore_useless"} == set(reasons(proxied, ["restore"]))
    assert 1 == calls.restores
