"""Our own calls, to a real llama-server and to one that does everything wrong."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson
import pytest

from proxy.demo.processes import free_port
from proxy.llama.client import NO_OUTPUT, ControlFailed, LlamaClient
from proxy.llama.replies import SlotFile
from proxy.slots.ledger import Look
from tests.conftest import StartLlama
from tests.llama.calling import NO_KEY, calling
from tests.wire import Message, Peer, Script, recording

TOKENS = list(range(300, 400))
OTHERS = list(range(500, 540))
CHAT = orjson.dumps({"messages": [{"role": "user", "content": "hello"}]})
CHAT_WARM_UP = orjson.dumps(
    {"messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 1, "cache_prompt": True}
)

Call = Callable[[LlamaClient, dict[str, str]], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "props": lambda client, auth: client.props(auth),
    "models": lambda client, auth: client.models(auth),
    "lora_adapters": lambda client, auth: client.lora_adapters(auth),
    "slots": lambda client, auth: client.slots(auth),
    "render": lambda client, auth: client.render(CHAT, auth),
    "tokenize": lambda client, auth: client.tokenize("hello", auth),
    "prefill": lambda client, auth: client.prefill(TOKENS, auth, 5.0),
    "prefill_chat": lambda client, auth: client.prefill_chat(CHAT_WARM_UP, auth, 5.0),
    "copy": lambda client, auth: client.copy(0, auth, 5.0),
    "displace": lambda client, auth: client.displace(0, 300, auth, 5.0),
    "erase": lambda client, auth: client.erase(0, auth, 5.0),
    "save": lambda client, auth: client.save(0, "pi-prefix-0.bin", auth, 5.0),
    "restore": lambda client, auth: client.restore(0, "pi-prefix-0.bin", auth, 5.0),
    "probabilities": lambda client, auth: client.probabilities(TOKENS, auth, 5.0),
}
SLOT_ACTIONS = ("erase", "save", "restore")


async def failure(call: Awaitable[Any]) -> ControlFailed:
    """The failure of a call that must fail, in the one way that there is."""
    with pytest.raises(ControlFailed) as caught:
        await call
    return caught.value


async def looks(client: LlamaClient) -> dict[int, Look]:
    return {look.slot: look for look in await client.slots(NO_KEY)}


# --- a real server -------------------------------------------------------------------------------------------------


async def test_each_call_is_understood_by_a_real_server(start_llama: StartLlama, tmp_path: Path) -> None:
    """None fails; the order leaves a slot to save and a file to restore."""
    server = start_llama("dense", "--slot-save-path", str(tmp_path))
    async with calling(server.port) as client:
        for call in CALLS.values():
            await call(client, NO_KEY)


async def test_a_prefilled_slot_holds_exactly_the_tokens(start_llama: StartLlama) -> None:
    """The answer names the slot and what was reused; progress is told on the way."""
    server, progress = start_llama("hybrid"), list[int]()
    async with calling(server.port) as client:
        first = await client.prefill(TOKENS, NO_KEY, 5.0, progress.append)
        held = (await looks(client))[first.slot]
        second = await client.prefill([*TOKENS, 300], NO_KEY, 5.0)
    assert (100, 0) == (first.prompt_n, first.cache_n)
    assert (100, False, True) == (held.n_tokens, held.is_busy, held.task is not None)
    assert (first.slot, 1, 100) == (second.slot, second.prompt_n, second.cache_n)
    assert first.prompt_ms > 0
    assert 100 == progress[-1]


@pytest.mark.parametrize("flags", [(), ("-np", "1")], ids=["default", "one slot"])
async def test_a_copied_conversation_survives_its_slot_and_a_copy_changes_nothing(
    start_llama: StartLlama, flags: tuple[str, ...]
) -> None:
    """The slot keeps its tokens; once it is displaced, host memory still has them."""
    server = start_llama("hybrid", *flags)
    async with calling(server.port) as client:
        slot = (await client.prefill(TOKENS, NO_KEY, 5.0)).slot
        await client.copy(slot, NO_KEY, 5.0)
        assert 100 == (await looks(client))[slot].n_tokens
        await client.displace(slot, 700, NO_KEY, 5.0)
        assert 1 == (await looks(client))[slot].n_tokens
        assert 100 == (await client.prefill([*TOKENS, 300], NO_KEY, 5.0)).cache_n


async def test_a_state_is_saved_erased_and_restored(start_llama: StartLlama, tmp_path: Path) -> None:
    server = start_llama("dense", "--slot-save-path", str(tmp_path))
    async with calling(server.port) as client:
        slot = (await client.prefill(TOKENS, NO_KEY, 5.0)).slot
        saved = await client.save(slot, "pi-prefix-1.bin", NO_KEY, 5.0)
        await client.erase(slot, NO_KEY, 5.0)
        assert 0 == (await looks(client))[slot].n_tokens
        restored = await client.restore(slot, "pi-prefix-1.bin", NO_KEY, 5.0)
        missing = await failure(client.restore(slot, "pi-prefix-2.bin", NO_KEY, 5.0))
    assert saved == restored == SlotFile(100, (tmp_path / "pi-prefix-1.bin").stat().st_size)
    assert 400 == missing.code


async def test_the_likeliest_next_tokens_are_told(start_llama: StartLlama) -> None:
    """The same for the same tokens, others for others: enough to tell a wrong state."""
    server = start_llama("dense")
    async with calling(server.port) as client:
        _, first = await client.probabilities(TOKENS, NO_KEY, 5.0)
        again, second = await client.probabilities(TOKENS, NO_KEY, 5.0)
        _, other = await client.probabilities(OTHERS, NO_KEY, 5.0)
    assert 5 == len(first)
    assert first == pytest.approx(second, abs=1e-2)
    assert 99 == again.cache_n
    assert first != pytest.approx(other, abs=1e-2)


async def test_a_rendering_has_the_servers_own_token_count(start_llama: StartLlama) -> None:
    server = start_llama("dense")
    async with calling(server.port) as client:
        tokens = await client.tokenize(await client.render(CHAT, NO_KEY), NO_KEY)
        warmed = await client.prefill_chat(CHAT_WARM_UP, NO_KEY, 5.0)
    assert len(tokens) == warmed.prompt_n + warmed.cache_n


async def test_a_server_with_a_key_refuses_who_does_not_have_it(start_llama: StartLlama, tmp_path: Path) -> None:
    """Whatever is asked: 401, and nothing done. The client's own header, either of the two, is enough."""
    server = start_llama("dense", "--api-key", "right", "--slot-save-path", str(tmp_path))
    public = {"models"}  # some builds answer it to everybody
    async with calling(server.port) as client:
        for name, call in CALLS.items():
            if name not in public:
                for auth in ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": "wrong"}):
                    assert 401 == (await failure(call(client, auth))).code, name
            await call(client, {"Authorization": "Bearer right"} if name != "props" else {"X-Api-Key": "right"})


@pytest.mark.parametrize(
    ("flags", "refused"), [(("--no-slots",), ("slots",)), ((), SLOT_ACTIONS)], ids=["--no-slots", "no --slot-save-path"]
)
async def test_what_a_server_does_not_allow_is_501(
    start_llama: StartLlama, flags: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    """So that it is learned once."""
    server = start_llama("dense", *flags)
    async with calling(server.port) as client:
        for name in refused:
            assert HTTPStatus.NOT_IMPLEMENTED == (await failure(CALLS[name](client, NO_KEY))).code


async def test_a_prefill_that_is_given_up_ends_on_the_server(start_llama: StartLlama) -> None:
    """It is streamed with progress: the server notices within a batch, and what it did stays in the slot."""
    server = start_llama("dense", "-np", "1", "-b", "64", "-ub", "64", ctx=131072)
    begun = asyncio.Event()
    many = [300 + number % 700 for number in range(100_000)]
    async with calling(server.port) as client:
        work = asyncio.create_task(client.prefill(many, NO_KEY, 60.0, lambda _: begun.set()))
        await begun.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        done = await client.prefill(OTHERS, NO_KEY, 5.0)  # it has one slot: this waits until that is free
    assert 40 == done.prompt_n


# --- a server that does everything wrong -----------------------------------------------------------------------------


def says(body: bytes, status: int = 200, kind: bytes = b"application/json", more: bytes = b"") -> Script:
    async def script(peer: Peer, request: Message) -> None:
        head = b"HTTP/1.1 %d X\r\nContent-Type: %b\r\n%bContent-Length: %d\r\n\r\n" % (status, kind, more, len(body))
        await peer.send(head + body)

    return script


async def hangs_up(peer: Peer, request: Message) -> None:
    peer.close()


async def resets(peer: Peer, request: Message) -> None:
    peer.reset()


async def stops_short(peer: Peer, request: Message) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{")
    peer.close()


async def talks_nonsense(peer: Peer, request: Message) -> None:
    await peer.send(b"NOT HTTP AT ALL\r\n\r\n")
    peer.close()


async def breaks_its_chunks(peer: Peer, request: Message) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n")
    peer.close()


DEEP = b"[" * 3000 + b"]" * 3000
WRONG: dict[str, Script] = {
    "hangs up": hangs_up,
    "resets": resets,
    "stops short": stops_short,
    "nonsense": talks_nonsense,
    "broken chunks": breaks_its_chunks,
    "empty": says(b""),
    "not JSON": says(b"<html>"),
    "half JSON": says(b'{"prompt": "'),
    "not UTF-8": says(b'{"prompt": "\xff"}'),
    "too deep": says(DEEP),
    "null": says(b"null"),
    "a number": says(b"5"),
    "a string": says(b'"x"'),
    "true": says(b"true"),
    "500": says(b'{"error": {}}', 500),
    "503": says(b'{"error": {"message": "Loading model"}}', 503),
    "404": says(b"", 404),
    "204": says(b"", 204),
    "307": says(b"", 307, more=b"Location: /elsewhere\r\n"),
    "not gzip": says(b"{}", more=b"Content-Encoding: gzip\r\n"),
    "a stream without figures": says(b'data: {"content": ""}\n\ndata: [DONE]\n\n', kind=b"text/event-stream"),
    "a stream of odd figures": says(
        b'data: {"timings": 3}\n\ndata: nonsense\n\ndata: 5\n\n', kind=b"text/event-stream"
    ),
    "a stream that errs": says(b'error: {"code": 500}\n\n', kind=b"text/event-stream"),
    "a line without end": says(b"data: " + b"x" * 5_000_000, kind=b"text/event-stream"),
}
LENIENT = {
    ("lora_adapters", "404"),
    ("lora_adapters", "null"),
    *(("lora_adapters", it) for it in ("a number", "a string", "true")),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_whatever_a_server_does_wrong_a_call_fails_in_one_way(wrong: str) -> None:
    """ControlFailed, never another exception: the request goes on without. (No LoRA paths: then there are none.)"""
    async with recording(WRONG[wrong]) as upstream, calling(upstream.port, control_s=5.0) as client:
        for name, call in CALLS.items():
            if (name, wrong) in LENIENT:
                assert [] == await call(client, NO_KEY)
            else:
                assert await failure(call(client, NO_KEY)), name


ODD: dict[str, list[Any]] = {
    "render": [{}, {"prompt": None}, {"prompt": 5}],
    "tokenize": [{}, {"tokens": None}, {"tokens": ["a"]}, {"tokens": [True]}, {"tokens": [-1]}, {"tokens": [2**31]}],
    "probabilities": [
        {},
        {"timings": {}},
        {"timings": {}, "completion_probabilities": []},
        {"timings": {}, "completion_probabilities": [{"top_logprobs": [{"id": "a"}]}]},
        {"timings": {}, "completion_probabilities": [{"top_logprobs": 5}]},
        {"timings": {}, "completion_probabilities": {"a": 1}},
    ],
}


@pytest.mark.parametrize("name", ODD)
async def test_an_answer_without_what_was_asked_for_is_a_failure(name: str) -> None:
    for answer in ODD[name]:
        async with recording(says(orjson.dumps(answer))) as upstream, calling(upstream.port) as client:
            assert 0 == (await failure(CALLS[name](client, NO_KEY))).code, answer


async def test_a_server_that_is_not_there_is_a_failure() -> None:
    """Not a broken one: nothing arrived there."""
    async with calling(free_port()) as client:
        for call in CALLS.values():
            told = await failure(call(client, NO_KEY))
            assert (0, False, True) == (told.code, told.is_broken, told.is_unreachable)
            assert str(told).endswith("can't be reached (connection refused)")


async def test_a_server_that_takes_the_request_and_drops_the_connection_may_have_died_of_it() -> None:
    """A restore does that to some; one that answers, or that was never reached, has not."""
    for script, is_broken in ((hangs_up, True), (resets, True), (stops_short, True), (says(b"", 500), False)):
        async with recording(script) as upstream, calling(upstream.port) as client:
            told = await failure(client.restore(0, "x", NO_KEY, 5.0))
            assert is_broken is told.is_broken, script


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error": {"message": "Unable to restore slot"}}', "Unable to restore slot"),
        (orjson.dumps({"error": {"message": "a\x1b[1m" + "b" * 999}}), "a[1m" + "b" * 195),
        (b'{"error": {"message": 5}}', ""),
        (b'{"error": "x"}', ""),
        (b"[]", ""),
        (b"<html>", ""),
    ],
)
async def test_the_servers_own_words_come_with_a_refusal(body: bytes, expected: str) -> None:
    """As far as they are text, on one line and short; they are not part of what the failure says itself."""
    async with recording(says(body, 400)) as upstream, calling(upstream.port) as client:
        told = await failure(client.restore(0, "x", NO_KEY, 5.0))
    assert (400, expected, "/slots/0?action=restore: HTTP 400") == (told.code, told.told, str(told))


async def test_a_server_that_never_answers_is_waited_for_no_longer_than_was_said() -> None:
    """Before its headers, or in the middle of a stream."""

    async def silent(peer: Peer, request: Message) -> None:
        await peer.gone()

    async def begins(peer: Peer, request: Message) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\n")
        await peer.gone()

    for script in (silent, begins):
        async with recording(script) as upstream, calling(upstream.port, control_s=0.05) as client:
            calls = [client.prefill(TOKENS, NO_KEY, 0.05), client.copy(0, NO_KEY, 0.05), client.props(NO_KEY, 0.05)]
            async with asyncio.timeout(3.0):
                for call in [*calls, client.models(NO_KEY), client.render(CHAT, NO_KEY)]:
                    told = await failure(call)
                    assert (0, False, True) == (told.code, told.is_broken, "Timeout" in str(told))


@pytest.mark.parametrize(
    "value", ["a\nb", "a\r\nX-Other: b", "a\0", "a\udcff"], ids=["two lines", "a header", "a null", "no text"]
)
async def test_credentials_that_can_not_be_sent_are_a_failure(value: str) -> None:
    """What a client sent us may be more than a client library sends on; nothing of it reaches the server."""
    async with recording(says(b"{}")) as upstream, calling(upstream.port) as client:
        for name, call in CALLS.items():
            assert 0 == (await failure(call(client, {"Authorization": value}))).code, name
        assert [] == upstream.requests


async def test_no_key_is_carried_to_where_a_server_points() -> None:
    """A redirect is a failure; following it would show the client's key to another server."""
    async with recording(says(b"{}")) as other:
        away = says(b"", 307, more=b"Location: http://127.0.0.1:%d/props\r\n" % other.port)
        async with recording(away) as upstream, calling(upstream.port) as client:
            assert 307 == (await failure(client.props({"X-Api-Key": "secret"}))).code
            assert 307 == (await failure(client.prefill(TOKENS, {"X-Api-Key": "secret"}, 5.0))).code
        assert [] == other.requests


SLOTS: list[tuple[Any, list[Look]]] = [
    ([], []),
    ([{"id": 0, "is_processing": False}], [Look(0, None, 0, False)]),
    (
        [{"id": 1, "id_task": 7, "is_processing": True, "n_prompt_tokens": 50}],
        [Look(1, 7, 50, True)],
    ),
    ([{"id": 0, "id_task": -1, "is_processing": False}], [Look(0, None, 0, False)]),
    ([{"id": 0, "id_task": 4, "n_past": 9}], [Look(0, 4, 0, False, tells_length=False)]),
    ([{"id": 0, "id_task": "x", "n_prompt_tokens": -5, "is_processing": 1}], [Look(0, None, 0, False)]),
    ([5, None, {}, {"id": None}, {"id": True}, {"id": -1}], []),
]


@pytest.mark.parametrize(("answer", "expected"), SLOTS)
async def test_slots_of_any_build_are_read(answer: Any, expected: list[Look]) -> None:
    """Missing fields are no KeyError, an entry without a number is no slot 0, a missing length is no empty slot."""
    async with recording(says(orjson.dumps(answer))) as upstream, calling(upstream.port) as client:
        assert expected == await client.slots(NO_KEY)


async def test_an_answer_that_names_no_slot_has_no_slot() -> None:
    """-1, which no belief is entered for."""
    event = b'data: {"timings": {"prompt_n": 3, "cache_n": true, "prompt_ms": null}}\n\n'
    async with recording(says(event)) as upstream, calling(upstream.port) as client:
        told = await client.prefill(TOKENS, NO_KEY, 5.0)
    assert (-1, 3, 0, 0.0) == (told.slot, told.prompt_n, told.cache_n, told.prompt_ms)


# --- what is sent --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["as asked", "the empty one last"])
async def test_behind_an_empty_prompt_the_figures_are_those_of_the_other(order: tuple[int, int]) -> None:
    """Whichever of the two the server ends first."""
    ends = {
        0: b'data: {"index":0,"id_slot":3,"timings":{"prompt_n":0,"cache_n":0}}\n\n',
        1: b'data: {"index":1,"id_slot":2,"timings":{"prompt_n":1,"cache_n":100}}\n\n',
    }
    script = says(b"".join(ends[place] for place in order), kind=b"text/event-stream")
    async with recording(script) as upstream, calling(upstream.port) as client:
        told = await client.prefill(TOKENS, NO_KEY, 5.0, is_behind_empty=True)
    assert (2, 1, 100) == (told.slot, told.prompt_n, told.cache_n)


async def sent(call: Call, *, model: str = "", auth: dict[str, str] | None = None) -> Message:
    async with recording(says(b"{}")) as upstream, calling(upstream.port, model=model) as client:
        with suppress(ControlFailed):
            await call(client, auth or NO_KEY)
        return upstream.requests[0]


@pytest.mark.parametrize("name", ["prefill", "probabilities"])
async def test_a_warm_up_names_no_slot(name: str) -> None:
    """Aimed at a slot that has just become busy it would corrupt what runs there; so the server chooses."""
    body = orjson.loads((await sent(CALLS[name])).body)
    assert "id_slot" not in body
    assert (TOKENS, 0, True) == (body["prompt"], body["n_predict"], body["cache_prompt"])
    # Else the one token that is sampled can be half a character, and some builds make that a 500.
    assert NO_OUTPUT == body["grammar"]


@pytest.mark.parametrize(("name", "prompt"), [("copy", [[]]), ("displace", [300])])
async def test_only_harmless_prompts_are_aimed_at_a_slot(name: str, prompt: list[Any]) -> None:
    body = orjson.loads((await sent(CALLS[name])).body)
    assert (0, prompt) == (body["id_slot"], body["prompt"])


async def test_a_router_is_told_the_model_and_loads_none_for_us() -> None:
    """In the query of a GET, where `autoload=false` keeps it from evicting the one in use; in the body of a POST."""
    path, _, query = (await sent(CALLS["slots"], model="a/b c&d+e#")).target.decode().partition("?")
    assert ("/slots", {"model": ["a/b c&d+e#"], "autoload": ["false"]}) == (path, parse_qs(query))
    for name in ("prefill", "copy", "erase", "save", "probabilities"):
        assert "m" == orjson.loads((await sent(CALLS[name], model="m")).body)["model"], name


@pytest.mark.parametrize("name", CALLS)
async def test_the_clients_credentials_go_with_every_call_and_nothing_of_the_environment(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    request = await sent(CALLS[name], auth={"Authorization": "Bearer k", "X-Api-Key": "k"})
    assert ([b"Bearer k"], [b"k"]) == (request.values(b"authorization"), request.values(b"x-api-key"))
