"""The exact prefix: on real servers, with vocabularies that merge across the boundary."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from proxy.demo.sessions import session
from proxy.llama.client import ControlFailed, LlamaClient
from proxy.llama.renderer import Rendered, exact_head, exact_prefix
from proxy.request.body import ChatRequest
from proxy.request.prefix import StablePrefix
from tests.conftest import StartLlama
from tests.llama.calling import NO_KEY, calling
from tests.llama.test_client import says
from tests.request.bodies import prefix_of, request_of
from tests.wire import Message, Peer, recording

TAILS: tuple[Mapping[str, Any], ...] = (
    {"folder": "/home/a/project"},
    {"folder": "/b", "user": "why?"},
    {"folder": "\n\n\n>", "user": "\n"},
    {"folder": "/c", "project_context": "use tabs. never spaces.", "user": "{}"},
    {"folder": "/d", "project_context": "\n\n<skills>\n</docs>", "user": "1"},
    {"folder": "", "project_context": "", "user": "\u00e9"},
)


def understood(body: Mapping[str, Any]) -> tuple[ChatRequest, StablePrefix]:
    request = request_of(dict(body))
    return request, prefix_of(request)


async def rendered(client: LlamaClient, body: Mapping[str, Any]) -> Rendered:
    return await exact_prefix(client, *understood(body), NO_KEY)


async def prompt_of(client: LlamaClient, body: Mapping[str, Any]) -> list[int]:
    return await client.tokenize(await client.render(orjson.dumps(body), NO_KEY), NO_KEY)


@pytest.mark.parametrize("tools_last", [False, True], ids=["tools first", "tools last"])
async def test_a_head_is_what_every_session_of_a_folder_begins_with(start_llama: StartLlama, tools_last: bool) -> None:
    """Whoever has the first word, and not a token less."""
    server = start_llama("dense", tools_last=tools_last)
    body = session("/a", prefix_tokens=600)
    said = [{"role": role, "content": text} for role in ("user", "tool", "assistant") for text in ("why?", "{}", "\n")]
    async with calling(server.port) as client:
        head = list(await exact_head(client, *understood(body), NO_KEY))
        users = list(await exact_head(client, *understood(body), NO_KEY, of_users=True))
        prompts = [await prompt_of(client, {**body, "messages": [body["messages"][0], one]}) for one in said]
    assert all(prompt[: len(head)] == head for prompt in prompts)
    assert len({prompt[len(head)] for prompt in prompts}) > 1
    assert len(head) < len(users)
    assert all(
        (prompt[: len(users)] == users) == (one["role"] == "user") for prompt, one in zip(prompts, said, strict=True)
    )


async def test_a_template_may_refuse_a_first_word_that_is_not_a_user_s() -> None:
    """Then a head is what requests begin with where the user has it."""

    async def script(peer: Peer, request: Message) -> None:
        asked = orjson.loads(request.body)
        last = asked.get("messages", [{}])[-1]
        if "content" in asked:
            told, status = orjson.dumps({"tokens": [*asked["content"].encode()]}), 200
        else:
            told, status = orjson.dumps({"prompt": f"all: {last['content']}"}), 200 if last["role"] == "user" else 500
        await says(told, status)(peer, request)

    async with recording(script) as upstream, calling(upstream.port) as client:
        head = await exact_head(client, *understood(session("/a")), NO_KEY)
    assert b"all: " == bytes(head)


@pytest.mark.parametrize("tools_last", [False, True], ids=["tools first", "tools last"])
@pytest.mark.parametrize("merge_trap", [False, True], ids=["plain", "merging"])
@pytest.mark.parametrize("pi", ["1.6", "0.74"])
async def test_the_exact_prefix_is_what_every_session_begins_with(
    start_llama: StartLlama, tools_last: bool, merge_trap: bool, pi: Any
) -> None:
    """A strict prefix of each one's tokens, found from any of them, whatever follows the boundary."""
    server = start_llama("dense", tools_last=tools_last, merge_trap=merge_trap)
    bodies = [session(pi=pi, prefix_tokens=600, **tail) for tail in TAILS]
    async with calling(server.port) as client:
        found = [await rendered(client, body) for body in bodies]
        prompts = [await prompt_of(client, body) for body in bodies]
    assert 1 == len({prefix.tokens for prefix in found})
    tokens = list(found[0].tokens)
    assert len(tokens) > 500
    for prefix, prompt in zip(found, prompts, strict=True):
        assert len(prompt) == prefix.n_real
        assert len(tokens) < len(prompt)
        assert tokens == prompt[: len(tokens)]


@pytest.mark.parametrize("tools_last", [False, True], ids=["tools first", "tools last"])
async def test_no_more_than_a_few_tokens_are_given_away(start_llama: StartLlama, tools_last: bool) -> None:
    """It reaches up to the boundary, but for the token that merges across it."""
    server = start_llama("dense", tools_last=tools_last, merge_trap=True)
    body = session("/a", prefix_tokens=600)
    _, stable = understood(body)
    async with calling(server.port) as client:
        tokens = (await rendered(client, body)).tokens
        text = await client.render(orjson.dumps(body), NO_KEY)
        up_to_boundary = await client.tokenize(text[: text.index(stable.text) + len(stable.text)], NO_KEY)
    assert 0 <= len(up_to_boundary) - len(tokens) <= 2


async def test_the_trap_is_one(start_llama: StartLlama) -> None:
    """With the merging vocabulary a cut by characters is no prefix of what a session's prompt is made of."""
    server = start_llama("dense", merge_trap=True)
    body = session("/a", prefix_tokens=600)
    _, stable = understood(body)
    async with calling(server.port) as client:
        text = await client.render(orjson.dumps(body), NO_KEY)
        cut = await client.tokenize(text[: text.index(stable.text) + len(stable.text)], NO_KEY)
        prompt = await prompt_of(client, body)
    assert cut != prompt[: len(cut)]


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
async def test_a_session_in_another_folder_reuses_all_of_it(start_llama: StartLlama, kind: Any) -> None:
    """On a hybrid model one token too many would cost everything."""
    server = start_llama(kind, merge_trap=True)
    first, second = session("/a", prefix_tokens=600), session("/b/c", prefix_tokens=600, project_context="x")
    async with calling(server.port) as client:
        prefix = (await rendered(client, first)).tokens
        await client.prefill(prefix, NO_KEY, 10.0)
        told = await client.prefill_chat(orjson.dumps(second), NO_KEY, 10.0)
    assert len(prefix) == told.cache_n


async def test_a_request_of_half_a_megabyte_is_not_rendered_itself(start_llama: StartLlama) -> None:
    """Its prefix is found all the same; only how many tokens it has is not known then."""
    server = start_llama("dense")
    bodies = [session("/a", prefix_tokens=400, user="look at the file " * count) for count in (1, 30_000)]
    async with calling(server.port) as client:
        short, long = [await rendered(client, body) for body in bodies]
    assert short.tokens == long.tokens
    assert 0 < short.n_real
    assert 0 == long.n_real


async def test_other_tools_are_another_prefix(start_llama: StartLlama) -> None:
    """And the same ones in another order."""
    server = start_llama("dense")
    body = session("/a", prefix_tokens=400)
    turned = {**body, "tools": body["tools"][::-1]}
    async with calling(server.port) as client:
        found = [(await rendered(client, each)).tokens for each in (body, turned, {**body, "tools": []})]
    assert 3 == len(set(found))


async def test_a_server_that_can_not_render_says_so() -> None:
    """Then there is a fallback."""
    async with recording(says(b"{}", 500)) as upstream, calling(upstream.port) as client:
        with pytest.raises(ControlFailed, match="500"):
            await rendered(client, session("/a", prefix_tokens=400))


async def test_the_clients_own_credentials_are_used_for_every_question() -> None:
    """What is asked on its behalf is asked in its name."""

    async def script(peer: Peer, request: Message) -> None:
        answer = b'{"prompt": "x"}' if b"template" in request.target else b'{"tokens": [1]}'
        await says(answer)(peer, request)

    async with recording(script) as upstream, calling(upstream.port) as client:
        await exact_prefix(client, *understood(session("/a", prefix_tokens=400)), {"X-Api-Key": "k"})
    assert {b"/apply-template", b"/tokenize"} == {request.target for request in upstream.requests}
    assert {(b"k",)} == {tuple(request.values(b"x-api-key")) for request in upstream.requests}
