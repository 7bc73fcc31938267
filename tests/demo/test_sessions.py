"""The agent-shaped bodies: the same every time, stable where an agent's are, different where an agent's differ."""

from typing import Any, get_args

import orjson
import pytest

from proxy.demo.sessions import TOOLS, Pi, next_turn, session, stable_text
from proxy.request.body import ChatRequest, read_chat
from proxy.request.prefix import StablePrefix, stable_prefix
from tests.conftest import StartLlama
from tests.demo.asking import tokens

PIS: tuple[Pi, ...] = get_args(Pi)


def system(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"])


@pytest.mark.parametrize("pi", PIS)
def test_same_arguments_give_the_same_body(pi: Pi) -> None:
    """A session is a function of its arguments."""
    assert session("/a", pi=pi, project_context="x") == session("/a", pi=pi, project_context="x")


@pytest.mark.parametrize("pi", PIS)
@pytest.mark.parametrize("project_context", [None, "use tabs"])
def test_stable_text_is_what_the_proxy_finds(pi: Pi, project_context: str | None) -> None:
    """Whatever folder, day and project: the proxy reads the same stable prefix, all of it and no more."""
    body = session("/home/me/b", pi=pi, project_context=project_context, date="2027-01-01")
    request = read_chat(orjson.dumps(body))
    assert isinstance(request, ChatRequest)
    prefix = stable_prefix(request)
    assert isinstance(prefix, StablePrefix)
    assert stable_text(pi) == prefix.text


@pytest.mark.parametrize("pi", PIS)
def test_folders_and_projects_differ(pi: Pi) -> None:
    """What belongs to the folder stands in the system text."""
    bodies = [session("/a", pi=pi), session("/b", pi=pi), session("/a", pi=pi, project_context="use tabs")]
    assert 3 == len({system(body) for body in bodies})


def test_other_seed_is_another_install() -> None:
    """Two seeds have other stable texts of about the same length."""
    assert stable_text(seed=1) != stable_text(seed=2)


@pytest.mark.parametrize("pi", PIS)
@pytest.mark.parametrize("wanted", [500, 2000, 6000])
def test_stable_text_costs_about_what_was_asked(start_llama: StartLlama, pi: Pi, wanted: int) -> None:
    """`prefix_tokens` is what a tiny model makes of it, within a tenth."""
    assert wanted == pytest.approx(len(tokens(start_llama(), stable_text(pi, wanted))), rel=0.1)


def test_next_turn_resends_everything_and_appends() -> None:
    """A later turn begins with the earlier messages, unchanged, and leaves the earlier body as it was."""
    first = session("/a")
    second = next_turn(first, "the answer", "and now?")
    assert first == session("/a")
    assert first["messages"] == second["messages"][:2]
    assert ["assistant", "user"] == [message["role"] for message in second["messages"][2:]]
    assert {**first, "messages": None} == {**second, "messages": None}


def test_body_has_what_an_agent_sends() -> None:
    """Streamed with usage, a bounded answer, the user's words in parts, the four tools in their order."""
    body = session("/a", user="hello", max_tokens=5)
    assert {"include_usage": True} == body["stream_options"]
    assert (True, 5) == (body["stream"], body["max_completion_tokens"])
    assert [{"type": "text", "text": "hello"}] == body["messages"][1]["content"]
    assert ["read", "bash", "edit", "write"] == [tool["function"]["name"] for tool in TOOLS]
