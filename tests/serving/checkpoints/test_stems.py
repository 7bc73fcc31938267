"""Parts that later prefixes begin with, too: of those that differ in the date, or share their tools."""

from typing import Any

import pytest

from proxy.demo.sessions import next_turn
from proxy.llama.client import ControlFailed
from proxy.serving import needs
from proxy.serving.model import ExactPrefix
from tests.conftest import StartLlama
from tests.serving.checkpoints.persisting import (
    DENSE,
    EXACT,
    HYBRID,
    HYBRID_TOOLS_LAST,
    QUIET,
    SWA_FULL,
    TOKENS,
    Place,
    Setup,
    crash,
    told,
)
from tests.serving.running import Running, ask_directly, distance

OWN = 8
"""Tokens that a file may cost, its verification included."""
kinds = pytest.mark.parametrize(
    "setup", [HYBRID, HYBRID_TOOLS_LAST, SWA_FULL], ids=["hybrid", "hybrid-tools-last", "swa-full"]
)


def dated(folder: str, day: int) -> dict[str, Any]:
    """A session's first request with the date in the middle of what all folders share."""
    body = told(folder, tokens=2 * TOKENS)
    system, *others = body["messages"]
    lines = system["content"].replace("\n</rules>", f"\nToday is 2026-12-{day:02}.\n</rules>")
    assert lines != system["content"]
    return {**body, "messages": [{**system, "content": lines}, *others]}


def stem_of(proxied: Running) -> ExactPrefix:
    """The longest stem of the latest request's prefix."""
    stem = proxied.proxy.engine.model.by_key((proxied.prefix.stems or ("",))[-1])
    assert stem is not None
    return stem


@kinds
@pytest.mark.parametrize("slots", [("-np", "1"), ()], ids=["one-slot", "default-flags"])
async def test_the_next_day_prefills_what_follows_the_date(
    start_llama: StartLlama, place: Place, setup: Setup, slots: tuple[str, ...]
) -> None:
    """After a start of the server, too, and with the log-probabilities of a cold one."""
    server = place.start(start_llama, setup, *EXACT, *slots)
    (cold,) = await ask_directly(server, {**dated("/c", 3), "cache_prompt": False})
    crash(server)
    async with place.proxy(server) as proxied:
        first = await proxied.ask(dated("/a", 1))
        stem = stem_of(proxied)
        assert OWN >= first.prefilled + proxied.heard.prefilled - first.prompt_tokens
        for folder, day in (("/b", 2), ("/c", 3)):
            crash(server, under=proxied)
            proxied.heard.warm_ups.clear()
            answer = await proxied.ask(dated(folder, day))
            assert "stem_on_disk" == proxied.reasons[-1]
            assert OWN >= answer.prefilled + proxied.heard.prefilled - (answer.prompt_tokens - stem.n_tokens)
            assert proxied.prefix.n_tokens <= answer.reused
    assert QUIET > distance(cold, answer)
    assert place.is_clean()


@pytest.mark.parametrize("setup", [HYBRID, SWA_FULL], ids=["hybrid", "swa-full"])
async def test_a_conversation_goes_on_under_another_date(start_llama: StartLlama, place: Place, setup: Setup) -> None:
    """What precedes the date is not prefilled again; no file is made of a prefix that may never come again."""
    server = place.start(start_llama, setup, "-np", "1")
    async with place.proxy(server) as proxied:
        body = dated("/a", 1)
        first = await proxied.ask(body)
        n_files = len(place.files())
        crash(server, under=proxied)
        later = {**body, "messages": [dated("/a", 2)["messages"][0], *body["messages"][1:]]}
        answer = await proxied.ask(next_turn(later, first.text, "go on"))
        stem = stem_of(proxied)
        assert "stem_on_disk" == proxied.reasons[-1]
        assert stem.n_tokens <= answer.reused
    assert n_files == len(place.files())


@pytest.mark.parametrize(("setup", "n_files"), [(HYBRID, [1, 3, 4]), (SWA_FULL, [2, 3, 4])], ids=["hybrid", "swa-full"])
async def test_another_text_with_the_same_tools_goes_on_from_them(
    start_llama: StartLlama, place: Place, setup: Setup, n_files: list[int]
) -> None:
    """They get a file with the second text; with a sliding window at once, since a slot may soon be without them."""
    server = place.start(start_llama, setup, "-np", "1")
    async with place.proxy(server) as proxied:
        found = []
        for install in (1, 2, 3):
            crash(server, under=proxied)
            proxied.heard.warm_ups.clear()
            answer = await proxied.ask(told("/a", seed=install))
            found.append(len(place.files()))
        stem = stem_of(proxied)
        assert "stem_on_disk" == proxied.reasons[-1]
        assert OWN >= answer.prefilled + proxied.heard.prefilled - (answer.prompt_tokens - stem.n_tokens)
        kept = proxied.proxy.engine.store.record(stem.key)
        assert kept is not None
        assert (1, ()) <= (kept.uses, kept.fingerprints)
    assert n_files == found


@pytest.mark.parametrize("status", [400, 500])
async def test_where_stems_can_not_be_found_out_there_are_none(
    start_llama: StartLlama, place: Place, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A template may refuse another text; the request has its prefix all the same, and nobody asks again."""
    asked = 0

    async def refuses(*_: Any) -> Any:
        nonlocal asked
        asked += 1
        raise ControlFailed("/apply-template", status)

    monkeypatch.setattr(needs, "likely_to_stay", refuses)
    async with place.proxy(place.start(start_llama, HYBRID, "-np", "1")) as proxied:
        for folder in ("/a", "/b"):
            await proxied.ask(dated(folder, 1))
        assert ["warm-up", "restore"] == proxied.sources
    assert (1, 1) == (asked, len(place.files()))


async def test_a_model_that_can_roll_back_needs_no_stem(start_llama: StartLlama, place: Place) -> None:
    """The server finds what two days have in common by itself."""
    server = place.start(start_llama, DENSE, "-np", "1")
    async with place.proxy(server) as proxied:
        await proxied.ask(dated("/a", 1))
        answer = await proxied.ask(dated("/b", 2))
        assert TOKENS / 2 < answer.reused + sum(warmed.cache_n for warmed in proxied.heard.warm_ups[1:])
    assert 2 == len(place.files())


@pytest.mark.usefixtures("unwatched")
async def test_a_stem_is_not_what_a_started_server_is_given(start_llama: StartLlama, place: Place) -> None:
    """But the whole prefix."""
    server = place.start(start_llama, HYBRID, "-np", "1")
    async with place.proxy(server) as proxied:
        await proxied.ask(dated("/a", 1))
        crash(server, under=proxied)
        await proxied.proxy.engine.lifecycle.look()
        await proxied.ask(dated("/b", 1))
        assert "hit" == proxied.sources[-1]
