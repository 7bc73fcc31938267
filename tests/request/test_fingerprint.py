"""The fingerprint: what it ignores and what it must not."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.request import fingerprint as fingerprint_module
from proxy.request.fingerprint import ModelIdentity, client_version, fingerprint, shown

from .bodies import STABLE, TOOLS, chat, cwd_section, prefix_of, request_of

SEEN = ModelIdentity("m", "1000:17", '{"n":1}', "/m.gguf", "[]", "srv")
UNSEEN = replace(SEEN, file="")


def of(body: Any, identity: ModelIdentity = SEEN, client: str = "pi/1.6.0") -> str:
    request = request_of(body)
    return fingerprint(request, prefix_of(request), identity, client)


def reordered(value: Any, order: Any) -> Any:
    """The same JSON with its object keys in another order; arrays stay as they are."""
    if isinstance(value, list):
        return [reordered(item, order) for item in value]
    if isinstance(value, dict):
        return {key: reordered(value[key], order) for key in order(list(value))}
    return value


FULL = chat(
    chat_template_kwargs={"enable_thinking": True, "preserve_thinking": False},
    reasoning_effort="high",
    stream=True,
    max_completion_tokens=100,
)


@given(st.randoms(use_true_random=False), st.booleans())
def test_key_order_and_whitespace_do_not_matter(random: Any, indent: bool) -> None:
    """Another order of keys, at any depth, and other whitespace give the same fingerprint."""
    shuffled = reordered(FULL, lambda keys: random.sample(keys, len(keys)))
    assert of(FULL) == of(orjson.dumps(shuffled, option=orjson.OPT_INDENT_2 if indent else 0))


@given(st.text(max_size=20), st.text(max_size=20), st.lists(st.text(max_size=5), max_size=3))
def test_folder_user_and_later_turns_do_not_matter(folder: str, user: str, more: list[str]) -> None:
    """What a session is about leaves the fingerprint alone."""
    turns = [{"role": "user", "content": text} for text in (user, *more)]
    assert of(chat()) == of(chat(STABLE + cwd_section(folder), *turns, seed=len(more)))


def test_the_date_does_not_matter() -> None:
    """Two days, one fingerprint."""
    assert of(chat(STABLE + "\nCurrent date: 2026-01-01")) == of(chat(STABLE + "\nCurrent date: 2026-01-02"))


@pytest.mark.parametrize(
    "other",
    [
        {"tools": []},
        {"tools": [*TOOLS, *TOOLS]},
        {"tools": [TOOLS[0] | {"type": "other"}]},
        {"tool_choice": "none"},
        {"chat_template_kwargs": {"enable_thinking": False, "preserve_thinking": False}},
        {"reasoning_effort": "low"},
        {"response_format": {"type": "json_object"}},
        {"thinking_budget_tokens": 5},
    ],
)
def test_what_changes_the_rendering_changes_it(other: dict[str, Any]) -> None:
    """Tools, template arguments, reasoning effort and their like matter."""
    assert of(FULL) != of(FULL | other)


def test_the_order_of_tools_matters() -> None:
    """An array is an array."""
    two = [TOOLS[0], TOOLS[0] | {"type": "other"}]
    assert of(chat(tools=two)) != of(chat(tools=two[::-1]))


@given(st.text(min_size=1, max_size=10).filter(str.strip))
def test_the_stable_text_matters(more: str) -> None:
    """Any visible change of the stable text changes the fingerprint."""
    assert of(chat()) != of(chat(more + STABLE + cwd_section("/a")))


@pytest.mark.parametrize("field", ["model_id", "file", "lora", "server_id"])
def test_identity_matters(field: str) -> None:
    """Another model, file, adapter or server is another fingerprint."""
    assert of(FULL) != of(FULL, replace(SEEN, **{field: "other"}))


@pytest.mark.parametrize("field", ["meta", "model_path"])
def test_what_the_server_says_stands_in_for_a_file_out_of_sight(field: str) -> None:
    """The server's own description counts where the file can't be seen, and only there."""
    assert of(FULL, UNSEEN) != of(FULL, replace(UNSEEN, **{field: "other"}))
    assert of(FULL, SEEN) == of(FULL, replace(SEEN, **{field: "other"}))


def test_client_and_format_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client version, or another way of ours to hash, is another fingerprint."""
    now = of(FULL)
    assert now != of(FULL, client="pi/1.6.1")
    monkeypatch.setattr(fingerprint_module, "FORMAT", "other")
    assert now != of(FULL)


def test_bytes_without_a_utf8_form_do_not_raise() -> None:
    """Paths and headers may carry what UTF-8 can't."""
    assert 64 == len(of(FULL, replace(UNSEEN, model_path="/m\udcff"), "c\udcfe"))


def test_shown_is_sixteen_digits() -> None:
    """People see the beginning."""
    assert of(FULL)[:16] == shown(of(FULL))


@pytest.mark.parametrize(
    ("header", "product"),
    [
        ("pi/1.6.0 (linux; node/v22.19.0; x64)", "pi/1.6.0"),
        ("OpenAI/JS 6.26.0", "OpenAI/JS"),
        ("pi", "pi"),
        ("pi/1.6.0(linux)", "pi/1.6.0"),
        ("(linux)", "unknown"),
        ("", "unknown"),
        (None, "unknown"),
        ("caf\udce9/1", "unknown"),
        ("a\nb", "a"),
        ("x" * 1000, "unknown"),
    ],
)
def test_client_version(header: str | None, product: str) -> None:
    """The first product token, short and printable, or `unknown`."""
    assert product == client_version(header)
