"""What a request's own bytes say to the engine."""

import gzip
from typing import Any

import orjson
import pytest
from multidict import CIMultiDict

from proxy.request.prefix import StablePrefix
from proxy.serving.visit import Visit, understand
from proxy.settings import Settings
from tests.request.bodies import STABLE, chat


def visit(body: Any, headers: dict[str, str] | None = None, **set_to: Any) -> Visit:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return understand(raw, CIMultiDict(headers or {}), Settings(**set_to))


def test_an_agents_request_may_be_prepared() -> None:
    """It has a prefix, a chain of messages with their sizes, and something to remember its rendering under."""
    told = visit(chat())
    assert isinstance(told.prefix, StablePrefix)
    assert (True, "", "m", STABLE) == (told.may_prepare, told.reason, told.model, told.prefix.text)
    assert (2, 2, 64, False) == (len(told.chain), len(told.sizes), len(told.rendering), told.has_past)


@pytest.mark.parametrize(
    ("headers", "query", "may_load"),
    [
        ({}, "", True),
        ({}, "autoload=false", False),
        ({"Content-Encoding": "identity"}, "", False),
        ({"x-conversation-id": "7"}, "", False),
    ],
)
def test_a_router_loads_the_model_of_a_request_without_ways_of_its_own(
    headers: dict[str, str], query: str, *, may_load: bool
) -> None:
    """Of the others it loads none, or goes on with it when its client has left."""
    assert may_load is understand(orjson.dumps(chat()), CIMultiDict(headers), Settings(), query).may_load


def test_a_later_turn_continues_the_first() -> None:
    first = chat()
    later = {**first, "messages": [*first["messages"], {"role": "assistant", "content": "Hm."}, {"role": "user"}]}
    assert visit(first).chain == visit(later).chain[:2]
    assert visit(later).has_past


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not_json"),
        (b"\xff", "not_json"),
        (b"[]", "not_an_object"),
        (b"{}", "no_messages"),
        (b'{"messages":[1]}', "odd_message"),
    ],
)
def test_what_can_not_be_read_is_left_alone(body: bytes, reason: str) -> None:
    """There is a visit whatever the bytes are, and nothing in it is believed."""
    told = visit(body)
    assert (reason, False, "", "", ()) == (told.reason, told.may_prepare, told.model, told.rendering, told.chain)
    assert not told.has_past


@pytest.mark.parametrize(
    ("system", "reason"),
    [
        ("short title prompt", "no_boundary"),
        ("", "no_boundary"),
        ("\n\n<cwd>\n/a", "empty_prefix"),
        (None, "non_text_part"),
    ],
)
def test_without_a_stable_prefix_the_reason_is_told_and_the_slots_still_matter(system: Any, reason: str) -> None:
    """A side request may still cost another its state: it is planned for."""
    told = visit(chat(system))
    assert (reason, True, None, "") == (told.reason, told.may_prepare, told.prefix, told.rendering)
    assert told.chain


@pytest.mark.parametrize(
    ("fields", "settings", "reason"),
    [
        ({"id_slot": 0}, {}, "own_slot"),
        ({"id_slot": None}, {}, "own_slot"),
        ({"lora": []}, {}, "own_lora"),
        ({"cache_prompt": False}, {}, "cache_prompt_off"),
        ({"cache_prompt": 0}, {}, ""),
        ({}, {"observe_only": True}, "observe_only"),
        ({}, {"models": ["other"]}, "model_not_listed"),
        ({}, {"models": ["other", "m"]}, ""),
        ({"id_slot": 0}, {"observe_only": True}, "observe_only"),
    ],
)
def test_who_is_barred_and_why(fields: dict[str, Any], settings: dict[str, Any], reason: str) -> None:
    """Such a request has its prefix told in the log and nothing prepared."""
    told = visit(chat(**fields), **settings)
    assert (reason, not reason) == (told.reason, told.may_prepare)
    assert told.prefix is not None


def test_a_bar_is_told_before_a_missing_prefix() -> None:
    assert "own_slot" == visit(chat("no boundary", id_slot=1)).reason


def test_extra_markers_are_the_users() -> None:
    body = chat("Rules.\n## Mine\nfolder")
    assert "no_boundary" == visit(body).reason
    assert "" == visit(body, markers=["\n## Mine\n"]).reason


@pytest.mark.parametrize("name", ["authorization", "AUTHORIZATION", "x-api-key", "X-Api-Key"])
def test_the_clients_own_credentials_are_taken_as_they_came(name: str) -> None:
    """However the name is written, and not a byte of the value changed."""
    told = visit(chat(), {name: "bearer  sk-1 "})
    assert {name.lower(): "bearer  sk-1 "} == {key.lower(): value for key, value in told.auth.items()}


def test_nothing_else_of_the_clients_headers_is_used_for_our_calls() -> None:
    assert {} == visit(chat(), {"Cookie": "a=b", "Proxy-Authorization": "x", "User-Agent": "pi/1"}).auth


def test_who_asks_is_the_first_word_of_its_name() -> None:
    assert "pi/1.6.0" == visit(chat(), {"User-Agent": "pi/1.6.0 (linux)"}).client
    assert "unknown" == visit(b"").client


def test_a_compressed_body_is_read_too() -> None:
    assert visit(gzip.compress(orjson.dumps(chat())), {"Content-Encoding": "gzip"}).may_prepare
