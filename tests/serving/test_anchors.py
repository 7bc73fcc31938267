"""Anchors on real servers: new sessions and early edits find their beginning, whatever became of the conversation."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.models import Kind
from proxy.demo.servers import LlamaServer
from proxy.demo.sessions import Body, next_turn
from proxy.llama.client import ControlFailed, LlamaClient
from proxy.serving.history import saved_tokens
from proxy.slots import anchoring
from tests.conftest import StartLlama
from tests.serving.running import Answer, Running, ask_directly, running, sessions

flags = pytest.mark.parametrize("flags", [("-np", "1"), ()], ids=["one-slot", "default-flags"])
kinds = pytest.mark.parametrize(
    ("kind", "tools_last"), [("hybrid", False), ("hybrid", True), ("swa", False)], ids=["hybrid", "tools-last", "swa"]
)
SLACK = 8
"""A sliding window loses some tokens each time."""
A_RESUME = 24
"""What a resume may cost."""
AT_LENGTH = " and then the next thing" * 60
"""Of less a resume is not worth what a sliding window loses by it."""
PROJECT = "write tests first" * 10
TITLE: Body = {
    "messages": [{"role": "system", "content": "give this a short title."}, {"role": "user", "content": "hello there"}],
    "max_tokens": 4,
}


def turns(first: Body, count: int, said: str = "") -> list[Body]:
    bodies = [first]
    while len(bodies) < count:
        bodies.append(next_turn(bodies[-1], "done", f"go on {len(bodies)}{said}"))
    return bodies


def edited(first: Body) -> Body:
    """The second turn says something else."""
    return next_turn(first, "done", "no, do it the other way round")


def edited_last(body: Body) -> Body:
    """Its last question is another one."""
    return {**body, "messages": [*body["messages"][:-1], {"role": "user", "content": "and this?"}]}


def forgets(proxied: Running) -> bool:
    """Whether this build leaves anything to do."""
    return proxied.proxy.engine.model.able.needs_anchors


async def asked(proxied: Running, *bodies: Body) -> list[Answer]:
    return [await proxied.ask(body) for body in bodies]


@flags
@kinds
async def test_a_session_that_begins_in_a_later_turn_of_another(
    start_llama: StartLlama, kind: Kind, tools_last: bool, flags: tuple[str, ...]
) -> None:
    """Prefills none of the exact prefix, and the other one goes on where it was."""
    first, second = (turns(body, 4, AT_LENGTH) for body in sessions("/a", "/b"))
    server = start_llama(kind, *flags, tools_last=tools_last)
    async with running(server) as proxied:
        *_, third = await asked(proxied, *first[:3])
        before = proxied.heard.prefilled
        (answer,) = await asked(proxied, second[0])
        rest = answer.reused + answer.prefilled - proxied.prefix.n_tokens
        assert rest + 2 * SLACK >= answer.prefilled + proxied.heard.prefilled - before
        (further,) = await asked(proxied, first[3])
        assert "resume" == proxied.sources[-1]
        assert third.prefilled + A_RESUME >= further.prefilled
    assert [] == proxied.heard.troubles


async def last_costs_no_more_than_directly(server: LlamaServer, bodies: list[Body]) -> None:
    """All are asked in this order, directly and through the proxy: of the last one the tokens are compared."""
    *_, directly = await ask_directly(server, *bodies)
    server.restart()
    async with running(server) as proxied:
        await asked(proxied, *bodies[:-1])
        before = proxied.heard.prefilled
        (answer,) = await asked(proxied, bodies[-1])
        assert directly.prefilled + SLACK >= answer.prefilled + proxied.heard.prefilled - before
    assert [] == proxied.heard.troubles


@pytest.mark.parametrize(
    ("tools_last", "turned", "more"),
    [(False, 1, ()), (True, 1, ()), (True, 2, ()), (True, 1, ("--cache-ram", "0"))],
    ids=["hybrid", "tools-last", "second-turn", "no-host-memory"],
)
async def test_another_session_in_the_same_folder(
    start_llama: StartLlama, tools_last: bool, turned: int, more: tuple[str, ...]
) -> None:
    """It prefills no more than directly, where the server goes back to where the first question began."""
    (first,), (second,) = (sessions("/a", user=text, project_context=PROJECT) for text in ("tell me", "what is this"))
    bodies = [*turns(first, turned, AT_LENGTH), second]
    server = start_llama("hybrid", "-np", "1", *more, tools_last=tools_last)
    await last_costs_no_more_than_directly(server, bodies)


@pytest.mark.parametrize("kind", ["hybrid", "swa"])
async def test_a_session_in_a_folder_after_one_elsewhere(start_llama: StartLlama, kind: Kind) -> None:
    """It prefills its question only: what all sessions of its folder begin with has stayed in host memory.

    A build that keeps its checkpoints has the prefix only, and directly nothing.
    """
    bodies = [sessions(folder, project_context=50 * PROJECT)[0] for folder in ("/a", "/b", "/a")]
    bodies[-1] = edited_last(bodies[-1])
    async with running(start_llama(kind, "-np", "1")) as proxied:
        await asked(proxied, bodies[0], TITLE, bodies[1], TITLE)
        before = proxied.heard.prefilled
        (last,) = await asked(proxied, bodies[2])
        rest = last.prompt_tokens - proxied.prefix.n_tokens
        assert rest > 500
        most = A_RESUME if forgets(proxied) else rest + SLACK
        assert most >= last.prefilled + proxied.heard.prefilled - before


@pytest.mark.parametrize("is_displaced", [False, True], ids=["in its slot", "in host memory"])
async def test_another_session_in_the_folder_of_one_first_seen_in_mid_way(
    start_llama: StartLlama, *, is_displaced: bool
) -> None:
    """All of it was prefilled: there, too, the server goes back to where the first question began."""
    (first,), (second,) = (sessions("/a", user=text, project_context=PROJECT) for text in ("tell me", "what is this"))
    (other,) = sessions("/b", seed=5, tokens=600)
    bodies = [turns(first, 3, AT_LENGTH)[-1], *([other] if is_displaced else []), second]
    server = start_llama("hybrid", "-np", "1", tools_last=True)
    await last_costs_no_more_than_directly(server, bodies)


@pytest.mark.parametrize("is_displaced", [False, True], ids=["in its slot", "in host memory"])
@pytest.mark.parametrize("tools_last", [False, True], ids=["hybrid", "tools-last"])
async def test_a_long_last_question_is_edited(start_llama: StartLlama, *, tools_last: bool, is_displaced: bool) -> None:
    """The server goes back to where it begins, though a batch and more lies behind that."""
    first, other = sessions("/a", "/b")
    *before, last = turns(first, 3, 3 * AT_LENGTH)
    bodies = [*before, last, *([other] if is_displaced else []), edited_last(last)]
    server = start_llama("hybrid", "-np", "1", tools_last=tools_last)
    await last_costs_no_more_than_directly(server, bodies)


async def test_a_prefix_does_not_wait_for_a_head_that_takes_too_long(start_llama: StartLlama) -> None:
    """A long project text is prefilled by its own request; the next folder's session finds the prefix."""
    long = "write tests first. " * 800
    first, second = sessions("/a", "/b", project_context=long)
    async with running(start_llama("hybrid", "-np", "1")) as proxied:
        await asked(proxied, TITLE)
        proxied.proxy.engine.model.prompt_ms_per_token = 6.0  # of the head 26 s and more, of the prefix 17
        await asked(proxied, first)
        proxied.proxy.engine.model.prompt_ms_per_token = 6.0
        (answer,) = await asked(proxied, second)
        assert answer.reused >= proxied.prefix.n_tokens - SLACK


@pytest.mark.parametrize("kind", ["hybrid", "swa"])
async def test_what_is_moved_out_of_a_copy_s_way_is_not_lost(
    start_llama: StartLlama, tmp_path: Path, kind: Kind
) -> None:
    """Its client sends answers back changed: anchors are loaded rather than its copy, unless they stand behind it."""
    first, second = (turns(body, 4, AT_LENGTH) for body in sessions("/a", "/b"))
    async with running(start_llama(kind, "-np", "1", "--slot-save-path", str(tmp_path))) as proxied:
        await asked(proxied, *first[:3], TITLE, first[3])
        assert "resume" == proxied.sources[-1]
        before = proxied.heard.prefilled
        answer, early = await asked(proxied, second[0], edited(first[0]))
        rest = answer.prompt_tokens - proxied.prefix.n_tokens
        assert not forgets(proxied) or rest + A_RESUME >= answer.prefilled + proxied.heard.prefilled - before - SLACK
        assert not forgets(proxied) or early.reused >= proxied.prefix.n_tokens


@flags
@kinds
async def test_an_early_message_is_edited(
    start_llama: StartLlama, kind: Kind, tools_last: bool, flags: tuple[str, ...]
) -> None:
    """All of the first turn's prompt is reused; directly it is a batch less, but for short turns of a window."""
    first = turns(sessions("/a")[0], 4)
    server = start_llama(kind, *flags, tools_last=tools_last)
    *_, directly = await ask_directly(server, *first, edited(first[0]))
    server.restart()
    async with running(server) as proxied:
        begun, *_, answer = await asked(proxied, *first, edited(first[0]))
        assert not forgets(proxied) or begun.reused + begun.prefilled - SLACK <= answer.reused
    assert directly.reused <= answer.reused + A_RESUME
    assert [] == proxied.heard.troubles


@flags
@kinds
async def test_new_sessions_take_no_conversation_out_of_host_memory(
    start_llama: StartLlama, kind: Kind, tools_last: bool, flags: tuple[str, ...]
) -> None:
    """A title's request displaces it; the session after that begins with its anchor and leaves it where it is."""
    first, second = (turns(body, 3, AT_LENGTH) for body in sessions("/a", "/b"))
    server = start_llama(kind, *flags, tools_last=tools_last)
    async with running(server) as proxied:
        _, before, *_, further = await asked(proxied, *first[:2], TITLE, second[0], first[2])
        assert not forgets(proxied) or before.prefilled + A_RESUME >= further.prefilled


@flags
async def test_none_is_left_where_the_model_rolls_back(start_llama: StartLlama, flags: tuple[str, ...]) -> None:
    """It finds its beginning in whatever is there."""
    async with running(start_llama("dense", *flags)) as proxied:
        await asked(proxied, *sessions("/a", "/b"))
    assert [] == proxied.heard.anchors


async def test_none_is_left_where_there_are_files(start_llama: StartLlama, tmp_path: Path) -> None:
    """A restore gives as much, and a head more."""
    server = start_llama("hybrid", "--slot-save-path", str(tmp_path))
    async with running(server, persist=True, slot_dir=tmp_path, dir=tmp_path / "index") as proxied:
        await asked(proxied, *sessions("/a", "/b"))
    assert [] == proxied.heard.anchors


@pytest.mark.parametrize("tokens_s", [200, 10_000], ids=["slow", "fast"])
async def test_a_long_first_message_is_not_anchored(start_llama: StartLlama, tokens_s: int) -> None:
    """Where its prompt takes long, its client would miss its headers; else it is anchored."""
    short, long = sessions("/a", "/b", user="word " * 300)
    async with running(start_llama("swa", "-np", "1")) as proxied:
        await asked(proxied, short)
        proxied.heard.anchors.clear()
        proxied.proxy.engine.model.prompt_ms_per_token = 1000 / tokens_s
        await asked(proxied, long)
    assert (tokens_s > 200) == any(told.cache_n + told.prompt_n > 3000 for told in proxied.heard.anchors)


async def test_a_window_that_reaches_less_far_is_learned_from(
    start_llama: StartLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a session begins anew in what was thought to be near enough; the next one begins with the anchor."""
    monkeypatch.setattr(anchoring, "SMALLEST_REACH", 5000)
    first, second, third = sessions("/a", "/b", "/c")
    long = [next_turn(body, "done", "word " * 1500) for body in (first, second)]
    async with running(start_llama("swa", "-np", "1")) as proxied:
        *_, fooled = await asked(proxied, first, long[0], second)
        is_lost = fooled.reused < proxied.prefix.n_tokens - SLACK  # a build that keeps its checkpoints has one there
        assert is_lost == (0 < (proxied.proxy.engine.model.able.window_reach or 0) < 5000)
        await asked(proxied, long[1])
        before = proxied.heard.prefilled
        (answer,) = await asked(proxied, third)
        rest = answer.reused + answer.prefilled - proxied.prefix.n_tokens
        assert rest + 2 * SLACK >= answer.prefilled + proxied.heard.prefilled - before


async def test_what_an_anchor_prefilled_is_not_said_to_be_saved(start_llama: StartLlama) -> None:
    """The request reuses nearly all of its prompt; of that, the prefix alone was there before."""
    first, second = sessions("/a", "/b")
    async with running(start_llama("swa", "-np", "1")) as proxied:
        *_, answer = await asked(proxied, first, next_turn(first, "done", "word " * 1500), second)
        n_prefix, ticket = proxied.prefix.n_tokens, proxied.last
    assert 30 < ticket.n_anchored < answer.reused - n_prefix + 2 * SLACK
    assert n_prefix - SLACK <= saved_tokens(ticket) <= n_prefix + SLACK


async def test_one_that_is_gone_shows_that_there_is_no_room(
    start_llama: StartLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is to be taken out of a conversation's way, and is not there: no more are left, and no other is asked for."""
    first, *later = turns(sessions("/a")[0], 3)
    async with running(start_llama("swa", "-np", "1")) as proxied:

        async def copies_nothing(*told: Any) -> None: ...

        with monkeypatch.context() as without:
            without.setattr(LlamaClient, "copy", copies_nothing)
            await asked(proxied, first)
        await asked(proxied, later[0], TITLE)
        proxied.heard.anchors.clear()
        await asked(proxied, later[1])
        # A build that keeps its checkpoints has the same beginning in the conversation itself.
        is_there = proxied.heard.anchors[0].cache_n >= proxied.prefix.n_tokens - SLACK
        assert proxied.proxy.engine.model.able.has_room is False
    assert 1 + is_there == len(proxied.heard.anchors)


@kinds
async def test_one_that_a_new_session_does_not_find_shows_it_too(
    start_llama: StartLlama, kind: Kind, tools_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is prefilled again, as the request would have done, and none is left behind it."""
    first, second = sessions("/a", "/b")
    async with running(start_llama(kind, "-np", "1", tools_last=tools_last)) as proxied:

        async def copies_nothing(*told: Any) -> None: ...

        with monkeypatch.context() as without:
            without.setattr(LlamaClient, "copy", copies_nothing)
            await asked(proxied, *turns(first, 2, AT_LENGTH))
        proxied.heard.anchors.clear()
        await asked(proxied, TITLE, second)
        model = proxied.proxy.engine.model
        if not forgets(proxied):
            return
        # A build that keeps its checkpoints has the same beginning in the conversation itself.
        is_there = proxied.heard.anchors[0].cache_n >= proxied.prefix.n_tokens - SLACK
        assert (model.able.has_room is False) != is_there
        assert any(talk.is_anchor for talk in model.ledger.copies.values()) == is_there
    assert is_there or len(proxied.heard.anchors) == 1


async def test_where_it_is_not_said_which_slot_it_was_none_is_emptied(
    start_llama: StartLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-1 would be the last slot to the server; a conversation could be in it."""
    first, *later = turns(sessions("/a")[0], 3)
    async with running(start_llama("swa", "-np", "1")) as proxied:
        await asked(proxied, first, later[0], TITLE)
        real, emptied = LlamaClient.prefill, list[int]()

        async def silent(client: LlamaClient, *told: Any, **more: Any) -> Any:
            return replace(await real(client, *told, **more), slot=-1)

        async def noted(client: LlamaClient, slot: int, *told: Any) -> None:
            emptied.append(slot)

        monkeypatch.setattr(LlamaClient, "prefill", silent)
        monkeypatch.setattr(LlamaClient, "displace", noted)
        monkeypatch.setattr(LlamaClient, "erase", noted)
        answer = await proxied.ask(later[1])
    assert 200 == answer.status
    assert -1 not in emptied


async def test_a_client_that_leaves_meanwhile_leaves_nothing_false(
    start_llama: StartLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot is not believed to hold anything; later sessions and its own retry are answered as ever."""
    first, second = sessions("/a", "/b")
    server = start_llama("swa", "-np", "1")
    async with running(server) as proxied:
        real, begun = LlamaClient.prefill, asyncio.Event()

        async def slow(client: LlamaClient, tokens: Any, *others: Any, **named: Any) -> Any:
            if proxied.heard.warm_ups:
                begun.set()
                await asyncio.sleep(60)
            return await real(client, tokens, *others, **named)

        monkeypatch.setattr(LlamaClient, "prefill", slow)
        leaving = asyncio.create_task(proxied.ask(first))
        await begun.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        monkeypatch.setattr(LlamaClient, "prefill", real)
        answers = await asked(proxied, second, first)
        n_prefix = proxied.prefix.n_tokens
    assert [200, 200] == [answer.status for answer in answers]
    assert [True, True] == [answer.reused >= n_prefix - SLACK for answer in answers]
    assert [] == [reason for reason in proxied.heard.troubles if reason.startswith("claim:")]


async def test_the_server_dies_under_it(start_llama: StartLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request goes on, to whatever the server then says; the next one is prepared on the new process."""
    first, second = sessions("/a", "/b")
    server = start_llama("swa", "-np", "1")
    async with running(server) as proxied:
        real = LlamaClient.prefill

        async def deadly(client: LlamaClient, tokens: Any, *others: Any, **named: Any) -> Any:
            if proxied.heard.warm_ups and not server_has_died:
                server_has_died.append(True)
                await asyncio.to_thread(server.restart)
                raise ControlFailed("gone", is_broken=True)
            return await real(client, tokens, *others, **named)

        server_has_died: list[bool] = []
        monkeypatch.setattr(LlamaClient, "prefill", deadly)
        answers = await asked(proxied, first, second)
    assert server_has_died
    assert [200, 200] == [answer.status for answer in answers]
