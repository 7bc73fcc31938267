"""What makes a checkpoint another one and what doesn't: its key, the server's flags, what the server says of a save."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.checkpoints.key import FileKind
from proxy.demo.sessions import USER_AGENTS, next_turn
from proxy.llama.client import ControlFailed, LlamaClient
from tests.conftest import StartLlama
from tests.serving.checkpoints.persisting import (
    DENSE,
    HYBRID,
    HYBRID_TOOLS_LAST,
    QUIET,
    TOKENS,
    Calls,
    Place,
    Setup,
    both,
    crash,
    reasons,
    saved,
)
from tests.serving.checkpoints.prepared import ask_new, started
from tests.serving.running import ask_directly, distance, sessions

pytestmark = pytest.mark.usefixtures("unwatched")
ONE, TWO, THREE = sessions("/one", "/two", "/three", tokens=600)


@both
@pytest.mark.parametrize("layout", [("-np", "2"), ("-ctk", "f32")], ids=["own-buffers", "other-type"])
async def test_another_layout_of_the_server_costs_one_cold_build(
    start_llama: StartLlama, place: Place, setup: Setup, layout: tuple[str, str]
) -> None:
    """Slots with buffers of their own, or of another type, refuse the file: said, built once, restored from then on."""
    server = place.start(start_llama, setup, "-np", "1")
    async with place.proxy(server) as proxied:
        await proxied.ask(ONE)
        for body in (TWO, THREE):
            crash(server, *layout, under=proxied)
            assert 200 == (await proxied.ask(body)).status
        assert ["warm-up", "warm-up", "restore"] == proxied.sources
        assert ["restore_failed"] == reasons(proxied, ["restore"])
        said = proxied.heard.said["restore_failed"]
        assert "HTTP 400 (" in said, "the server's own words"
        assert "); saved under another -np, -c or --kv-unified? → cold build" in said
    assert not place.files(FileKind.BAD)


async def test_a_context_too_small_for_the_prefix_is_not_tried(
    start_llama: StartLlama, place: Place, calls: Calls
) -> None:
    """The server refuses such a request anyway, as directly; the checkpoint waits for a server that has room."""
    server = place.start(start_llama, DENSE, "-np", "1")
    async with place.proxy(server) as proxied:
        await proxied.ask(ONE)
        crash(server, "-c", "1024", under=proxied)
        before = calls.restores
        answer = await proxied.ask(TWO)
        (directly,) = await ask_directly(server, TWO)
        assert (400, directly.data) == (answer.status, answer.data)
        assert 1 == calls.restores - before  # the probe's
        crash(server, under=proxied)
        await proxied.ask(THREE)
        assert "restore" == proxied.sources[-1]


async def test_a_new_server_id_forces_a_rebuild(start_llama: StartLlama, place: Place) -> None:
    """The user's word for *this is another server* is part of the key; the old file stays."""
    server = place.start(start_llama, DENSE, "-np", "1")
    await saved(place, server)
    crash(server)
    async with place.proxy(server, server_id="other") as proxied:
        await proxied.ask(sessions("/new", tokens=TOKENS)[0])
        assert ["warm-up"] == proxied.sources
    assert 2 == len(place.files())


async def test_another_agent_with_the_same_tokens_uses_the_same_checkpoint(
    start_llama: StartLlama, place: Place
) -> None:
    """Its fingerprint is another one, its prefix the same: one file, restored, and known under both."""
    server = place.start(start_llama, DENSE, "-np", "1")
    async with place.proxy(server) as proxied:
        await proxied.ask(ONE)
        crash(server, under=proxied)
        await proxied.ask(TWO, {"User-Agent": USER_AGENTS["0.74"]})
        assert ["warm-up", "restore"] == proxied.sources
    (record,) = place.known().records
    assert (1, 2) == (len(place.files()), len(record.fingerprints))


async def test_without_slot_actions_none_is_asked_for_again(
    start_llama: StartLlama, place: Place, calls: Calls
) -> None:
    """No --slot-save-path: learned once from the probe, said once; what is in the slots is reused all the same."""
    server = start_llama("dense", "-np", "1")
    async with place.proxy(server) as proxied:
        answers = [await proxied.ask(body) for body in (ONE, TWO, THREE)]
        assert {"slot_actions_off"} == set(proxied.heard.troubles)
        assert all(proxied.prefix.n_tokens <= answer.reused for answer in answers)
    assert (1, 0) == calls


@pytest.mark.parametrize("wrong", [0, 5])
async def test_a_save_of_other_tokens_is_destroyed(
    start_llama: StartLlama, place: Place, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    """The server says that it saved something else (an empty slot, somebody's conversation): no entry, no file."""
    server = place.start(start_llama, DENSE, "-np", "1")
    save = LlamaClient.save

    async def of_another(*told: Any) -> Any:
        return replace(await save(*told), n_tokens=wrong)

    async with place.proxy(server) as proxied:
        await proxied.proxy.engine.lifecycle.look()
        monkeypatch.setattr(LlamaClient, "save", of_another)
        assert 200 == (await proxied.ask(ONE)).status
        assert ["not_saved"] == proxied.heard.troubles
    assert ([], ()) == (list(place.slots.iterdir()), place.known().records)


async def test_a_checkpoint_of_a_server_that_was_not_probed_is_not_trusted_by_the_next(
    start_llama: StartLlama, place: Place
) -> None:
    """Saved with nothing to compare, it could be of other flags: used on the same process only, built anew after it."""
    rope = ("--rope-freq-base", "1000000")
    server, cold = await started(start_llama, place, HYBRID, is_saved=False)
    crash(server, *rope)
    await ask_directly(server, sessions("/hot", seed=8, tokens=TOKENS)[0])
    async with place.proxy(server) as proxied:
        for body in (sessions("/hot", seed=8, tokens=400)[0], ONE):
            await proxied.ask(body)
        assert "warm-up" == proxied.sources[-1]
        assert () == next(record.logprobs for record in place.known().records if record.key == proxied.prefix.key)
    crash(server)
    async with place.proxy(server) as proxied:
        answer = await ask_new(proxied)
        assert ["warm-up"] == proxied.sources
    assert QUIET > distance(cold, answer)


async def test_on_such_a_server_a_prefix_before_much_else_is_read_back(
    start_llama: StartLlama, place: Place, calls: Calls
) -> None:
    """So the in-memory checkpoint that outlives later turns is the request's own, and an edit goes back as far."""
    (first,) = sessions("/one", tokens=600)
    edited = first | {"messages": [*first["messages"][:1], {"role": "user", "content": "another question"}]}
    server = place.start(start_llama, HYBRID_TOOLS_LAST, "-np", "1")
    *_, directly = await ask_directly(server, first, next_turn(first, "done", "go on"), edited)
    server.restart()
    await ask_directly(server, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1})
    async with place.proxy(server) as proxied:
        hot = sessions("/hot", seed=8, tokens=TOKENS)[0]
        *_, answer = [await proxied.ask(body) for body in (hot, first, next_turn(first, "done", "go on"), edited)]
        assert "warm-up" == proxied.sources[1]
        assert proxied.proxy.engine.model.able.restores
        assert all(record.logprobs for record in place.known().records)
    assert (1, 2) == calls
    assert directly.prefilled >= answer.prefilled


async def test_a_restore_that_takes_for_ever_is_tried_three_times_at_most(
    start_llama: StartLlama, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that the server can't get through may be what takes it down in the end."""
    server = place.start(start_llama, DENSE, "-np", "1")
    await saved(place, server)
    (key,) = (record.key for record in place.known().records)
    tries, restore = 0, LlamaClient.restore

    async def hangs(client: LlamaClient, slot: int, name: str, *told: Any) -> Any:
        nonlocal tries
        if key not in name:
            return await restore(client, slot, name, *told)
        tries += 1
        raise ControlFailed("/slots/0", is_timeout=True)

    monkeypatch.setattr(LlamaClient, "restore", hangs)
    async with place.proxy(server, max_gb=0.0001) as proxied:  # nothing replaces the file
        for number in range(5):
            crash(server, under=proxied)
            assert 200 == (await proxied.ask(sessions(f"/new{number}", tokens=TOKENS)[0])).status
        assert not proxied.proxy.engine.store.disk(key).has_checkpoint
    assert 3 == tries
