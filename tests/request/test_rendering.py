"""Rendering inputs and the variants that show what all sessions begin with."""

import http.client
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.demo.servers import LlamaServer
from proxy.request.prefix import MARKERS
from proxy.request.rendering import (
    RENDERING_FIELDS,
    common_prefix,
    inputs_digest,
    rendering_inputs,
    rendering_key,
    variants,
)
from tests.conftest import StartLlama

from .bodies import STABLE, TOOLS, chat, cwd_section, prefix_of, request_of

REAL = chat(reasoning_effort="low", chat_template_kwargs={"b": 1, "a": 2}, stream=True, max_tokens=5)


def key_of(body: Any) -> str:
    request = request_of(body)
    return rendering_key(inputs_digest(request), prefix_of(request))


def variants_of(body: Any) -> list[dict[str, Any]]:
    request = request_of(body)
    return [orjson.loads(variant) for variant in variants(request, prefix_of(request))]


def test_only_what_is_rendered_is_an_input() -> None:
    """Tools and template arguments are inputs, in the order of the body; sampling and transport are not."""
    assert ["tools", "reasoning_effort", "chat_template_kwargs"] == list(rendering_inputs(request_of(REAL)))


@pytest.mark.parametrize("field", RENDERING_FIELDS)
def test_every_input_changes_the_key(field: str) -> None:
    """No rendering field is forgotten in the key."""
    assert key_of(REAL) != key_of(REAL | {field: "other"})


def test_the_order_of_keys_changes_the_key() -> None:
    """Template arguments and tools in another key order are other tokens."""
    assert key_of(REAL) != key_of(REAL | {"chat_template_kwargs": {"a": 2, "b": 1}})


def test_role_and_stable_text_change_the_key_and_the_tail_does_not() -> None:
    """The key is about the stable part."""
    developer = REAL | {"messages": [REAL["messages"][0] | {"role": "developer"}]}
    assert key_of(REAL) != key_of(developer)
    assert key_of(REAL) != key_of(chat("other" + cwd_section("/a")) | rendering_inputs(request_of(REAL)))
    assert key_of(REAL) == key_of(REAL | chat(STABLE + "\nCurrent date: x", {"role": "user", "content": "y"}))


def test_the_first_variant_is_the_real_request() -> None:
    """All messages and inputs of the request, and nothing else of it."""
    real = variants_of(REAL)[0]
    assert REAL["messages"] == real["messages"]
    assert {"model", "messages", "tools", "reasoning_effort", "chat_template_kwargs"} == set(real)


def test_other_variants_differ_right_after_the_stable_text() -> None:
    """Same inputs, role and stable text; at least four tails and users that begin differently."""
    real, *others = variants_of(chat([{"type": "text", "text": STABLE + cwd_section("/a"), "x": 1}]))
    assert len(others) >= 4
    assert all(rest | {"messages": 0} == real | {"messages": 0} for rest in others)
    systems = [variant["messages"][0]["content"] for variant in others]
    assert all(parts[0]["text"].startswith(STABLE) and parts[0]["x"] == 1 for parts in systems)
    tails = {parts[0]["text"][len(STABLE) :][:4] for parts in systems}
    assert len(others) == len(tails)
    assert tails > {marker[:4] for marker in MARKERS}
    assert len(others) == len({variant["messages"][1]["content"][0] for variant in others})


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=4))
def test_common_prefix_is_the_longest_that_all_begin_with(lists: list[list[int]]) -> None:
    """Every list begins with it, and not all with one token more."""
    same = common_prefix(lists)
    assert all(tokens[: len(same)] == same for tokens in lists)
    longer = {tuple(tokens[: len(same) + 1]) for tokens in lists}
    assert not lists or len(longer) > 1 or longer == {tuple(same)}


def ask(server: LlamaServer, path: str, body: bytes) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("POST", path, body)
        return orjson.loads(connection.getresponse().read())
    finally:
        connection.close()


def rendered(server: LlamaServer, body: bytes) -> str:
    return str(ask(server, "/apply-template", body)["prompt"])


def tokens_of(server: LlamaServer, body: bytes) -> list[int]:
    told = {"content": rendered(server, body), "add_special": True, "parse_special": True}
    return list(ask(server, "/tokenize", orjson.dumps(told))["tokens"])


@pytest.mark.parametrize("tools_last", [False, True])
def test_a_real_server_renders_all_variants_up_to_the_stable_text(start_llama: StartLlama, tools_last: bool) -> None:
    """The common tokens of the variants end at the stable text, give or take a merged token, and begin any session."""
    server = start_llama(tools_last=tools_last)
    request = request_of(
        chat([{"type": "text", "text": "Be careful."}, {"type": "text", "text": STABLE + "\n\n<cwd>\n/a"}])
    )
    exact = common_prefix([tokens_of(server, body) for body in variants(request, prefix_of(request))])
    text = ask(server, "/detokenize", orjson.dumps({"tokens": exact}))["content"]
    until = rendered(server, variants(request, prefix_of(request))[0]).index("\n\n<cwd>")
    assert until - 12 <= len(text) <= until + 1
    elsewhere = chat("Be careful.\n" + STABLE + "\nCurrent working directory: /b", {"role": "user", "content": "!"})
    assert exact == tokens_of(server, orjson.dumps(elsewhere))[: len(exact)]


@pytest.mark.parametrize("texts", [["a"], ["a", "b"], ["", "a", "", "b"]])
def test_parts_are_joined_as_the_real_server_joins_them(start_llama: StartLlama, texts: list[str]) -> None:
    """Text parts are rendered exactly as the string that we take them for."""
    server = start_llama()
    parts = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in texts]
    joined = chat("\n".join(["a", "", "b"][: len(texts) - 1] if texts[0] == "" else texts), tools=TOOLS)
    assert rendered(server, orjson.dumps(joined)) == rendered(server, orjson.dumps(chat(parts, tools=TOOLS)))
