"""Conversations: when one request continues another."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from proxy.request.conversation import (
    continues,
    has_assistant_turns,
    inputs_key,
    links,
    opening,
    shared_messages,
)
from proxy.request.rendering import inputs_digest

from .bodies import TOOLS, chat, request_of


def chain_of(body: Any) -> tuple[bytes, ...]:
    request = request_of(body)
    return links(request, inputs_key(inputs_digest(request), request.model))[0]


def talk(words: list[str]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": word} for word in words]}


few_words = st.lists(st.sampled_from("ab"), min_size=1, max_size=5)


@given(few_words, few_words)
def test_a_proper_prefix_of_messages_is_continued(later: list[str], earlier: list[str]) -> None:
    """B continues A exactly when A's messages are the beginning of B's and B has more."""
    expected = len(later) > len(earlier) and later[: len(earlier)] == earlier
    assert expected == continues(chain_of(talk(later)), chain_of(talk(earlier)))


@given(few_words, few_words)
def test_shared_messages_counts_the_same_beginning(a: list[str], b: list[str]) -> None:
    """The number of leading messages that are equal."""
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert expected == shared_messages(chain_of(talk(a)), chain_of(talk(b)))


def test_an_opening_outlives_another_system_text() -> None:
    """It ends with the first answer: later turns have it, other questions or answers have another."""

    def named(*said: str, system: str = "you") -> bytes:
        roles = ["system", "user", "assistant", "user"]
        messages = [{"role": role, "content": text} for role, text in zip(roles, (system, *said), strict=False)]
        return opening(request_of({"messages": messages}))

    assert named("a", "b") == named("a", "b", system="me") == named("a", "b", "c")
    assert 4 == len({named("a"), named("a", "b"), named("a", "c"), named("b", "b")})


def test_nothing_continues_nothing() -> None:
    """An empty chain is no conversation to continue."""
    assert not continues(chain_of(talk(["a"])), ())


def test_whitespace_between_tokens_does_not_matter() -> None:
    """Another layout of the same JSON is the same conversation."""
    assert chain_of(chat()) == chain_of(orjson.dumps(chat(), option=orjson.OPT_INDENT_2))


def test_what_is_not_rendered_does_not_matter() -> None:
    """Sampling settings may change from turn to turn."""
    assert chain_of(chat()) == chain_of(chat(temperature=1, stream=True))


def test_other_tools_or_another_model_are_another_conversation() -> None:
    """The chain starts from rendering inputs and model; the order of keys in a tool counts, it makes other tokens."""
    turned = [dict(reversed(TOOLS[0].items()))]
    chains = [chat(), chat(tools=[]), chat(model="other"), chat(tools=turned), chat(reasoning_effort="low")]
    assert 5 == len({chain_of(body)[0] for body in chains})


def test_hashes_are_sixteen_bytes_one_a_message() -> None:
    """One 16-byte hash for each message."""
    assert [16, 16] == [len(link) for link in chain_of(chat())]


def test_sizes_are_those_of_the_json() -> None:
    """Each message's bytes, in order."""
    assert (29, 32) == links(request_of(talk(["a", "\u00e9bc"]) | {}), b"")[1]


def test_assistant_turns_are_seen() -> None:
    """A request with an answer in it is in mid-conversation."""
    assert not has_assistant_turns(request_of(chat()))
    assert has_assistant_turns(request_of(chat("s", {"role": "assistant", "content": "yes"})))
