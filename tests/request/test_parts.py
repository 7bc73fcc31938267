"""What has changed between two requests is named by section, tool and field, and never by its text."""

import copy
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.demo.sessions import Body, session
from proxy.request import parts as module
from proxy.request.body import ChatRequest, read_chat
from proxy.request.parts import Change, Parts, changes, likeness, parts
from proxy.request.prefix import NoPrefix, stable_prefix

SALT = b"salt"
BODY = session("/a", prefix_tokens=400)


def taken(body: Body, **others: str) -> Parts:
    request = read_chat(orjson.dumps(body))
    assert isinstance(request, ChatRequest)
    prefix = stable_prefix(request)
    assert not isinstance(prefix, NoPrefix)
    return parts(request, prefix, others, SALT)


def edited(edit: Callable[[Any], object], body: Body = BODY) -> Body:
    """A copy after an edit in place."""
    changed = copy.deepcopy(body)
    edit(changed)
    return changed


def told(edit: Callable[[Any], object], **others: str) -> list[Change]:
    return changes(taken(BODY), taken(edited(edit), **others))


def system(old: str, new: str) -> Callable[[Any], None]:
    def edit(body: Any) -> None:
        text = body["messages"][0]["content"]
        assert old in text
        body["messages"][0]["content"] = text.replace(old, new, 1)

    return edit


def function(body: Any, number: int) -> Any:
    return body["tools"][number]["function"]


def test_what_does_not_matter_is_no_change() -> None:
    """Another folder, another question, another limit of tokens."""
    other = {**session("/b", prefix_tokens=400, user="why?", max_tokens=99), "stream": False}
    assert [] == changes(taken(BODY), taken(other))


def test_a_line_of_a_section_is_named_by_section_and_number() -> None:
    """Counted from the section's opening, in the later request."""
    assert [Change("system text", "<tools>", "changed", "3 of 6")] == told(system("- bash: run", "- bash: walk"))


def test_lines_that_come_in_between_shift_nothing() -> None:
    """Only what was added is named, not all that follows."""
    found = told(system("</tools>", "one more\nand another\n</tools>"))
    assert [Change("system text", "<tools>", "added", "6-7 of 8")] == found


def test_a_line_that_has_gone_is_named_where_it_was() -> None:
    """By the earlier request's numbers."""
    line = next(line for line in BODY["messages"][0]["content"].splitlines() if line.startswith("- bash:"))
    assert [Change("system text", "<tools>", "removed", "3 of 6")] == told(system(line + "\n", ""))


def test_a_change_over_two_sections_names_both() -> None:
    """And what stands between them."""
    found = told(system("</tools>\n\n<rules>\n", "</tools>\n<rules>\n.\n"))
    assert {"<rules>"} <= {change.name for change in found}
    assert {"system text"} == {change.place for change in found}


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            lambda body: function(body, 1).update(description="other"),
            Change("tool bash", "description", "changed"),
        ),
        (
            lambda body: function(body, 1)["parameters"]["properties"]["timeout"].update(description="other"),
            Change("tool bash", "parameters.timeout.description", "changed"),
        ),
        (
            lambda body: function(body, 0)["parameters"]["properties"]["offset"].update(minimum=1),
            Change("tool read", "parameters.offset.minimum", "added"),
        ),
        (lambda body: function(body, 3).pop("strict"), Change("tool write", "strict", "removed")),
        (lambda body: body["tools"].pop(2), Change("tools", "edit", "removed")),
        (lambda body: body["tools"].reverse(), Change("tools", "their order", "moved")),
        (
            lambda body: body["tools"].append({"type": "function", "function": {"name": "grep"}}),
            Change("tools", "grep", "added"),
        ),
        (
            lambda body: body.update(chat_template_kwargs={"enable_thinking": False}),
            Change("request", "chat_template_kwargs.enable_thinking", "added"),
        ),
        (lambda body: body.update(reasoning_effort="low"), Change("request", "reasoning_effort", "added")),
        (
            lambda body: body["messages"][0].update(role="developer"),
            Change("request", "role of the system message", "changed"),
        ),
    ],
)
def test_each_part_is_named(edit: Callable[[Any], object], expected: Change) -> None:
    """One change, one line."""
    assert [expected] == told(edit)


def test_the_order_of_a_tools_fields_counts() -> None:
    """They are rendered in the order in which they come."""

    def turn(body: Any) -> None:
        body["tools"][1]["function"] = dict(reversed(function(body, 1).items()))

    assert [Change("tool bash", "the order of its fields", "moved")] == told(turn)


def test_what_else_is_in_the_fingerprint_is_named_by_its_own_name() -> None:
    """Client and model."""
    found = changes(taken(BODY, client="pi/1.6.0"), taken(BODY, client="pi/1.6.1"))
    assert [Change("request", "client", "changed")] == found


@pytest.mark.parametrize("name", ["canary sentence", "", 7, None, "x" * 65, "\x1b[31m"])
def test_what_is_no_identifier_is_named_by_its_number(name: object) -> None:
    """A tool's or a field's name may be anybody's text."""
    odd = edited(lambda body: function(body, 1).update(name=name))
    odder = edited(lambda body: function(body, 1).update(description=".", **{"canary field": 1}), odd)
    found = changes(taken(odd), taken(odder))
    assert {"tool number 2"} == {change.place for change in found}
    assert ["description", "field 5"] == [change.name for change in found]


def test_two_tools_of_one_name_are_told_apart() -> None:
    """The second one by its number."""
    doubled = edited(lambda body: body["tools"].append(copy.deepcopy(body["tools"][0])))
    changed = edited(lambda body: function(body, 4).update(description="."), doubled)
    assert [Change("tool read (number 5)", "description", "changed")] == changes(taken(doubled), taken(changed))


def test_the_most_alike_is_the_nearest() -> None:
    """A changed line is nearer than another install."""
    near = taken(edited(system("- bash: run", "- bash: walk")))
    far = taken(session("/a", prefix_tokens=400, seed=5))
    assert likeness(far, taken(BODY)) < likeness(near, taken(BODY)) < likeness(taken(BODY), taken(BODY))


@given(
    where=st.integers(0, len(BODY["messages"][0]["content"].partition("\n\n<cwd>")[0]) - 1),
    text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
)
def test_whatever_changes_the_stable_text_is_a_change(where: int, text: str) -> None:
    """Wherever it is put, and whatever it is; what is told of it holds no word of it."""
    content = BODY["messages"][0]["content"]
    body = edited(lambda body: body["messages"][0].update(content=f"{content[:where]}{text}{content[where:]}"))
    earlier, later = taken(BODY), taken(body)
    assert (earlier != later) == bool(changes(earlier, later))
    assert {"system text"} >= {change.place for change in changes(earlier, later)}


def test_what_is_kept_has_no_text_in_it() -> None:
    """Only hashes, under a salt: the same text hashes to something else in another proxy."""
    kept = repr(taken(BODY)).replace("bash", "")
    for word in ("coding agent", "run the command", "documentation", "current working directory"):
        assert word not in kept
    request = read_chat(orjson.dumps(BODY))
    assert isinstance(request, ChatRequest)
    prefix = stable_prefix(request)
    assert not isinstance(prefix, NoPrefix)
    assert parts(request, prefix, {}, b"other").lines != taken(BODY).lines


def test_no_request_is_too_large_to_be_taken_apart() -> None:
    """What is beyond the limits is one piece, and a change in it is seen."""
    lines = "\n".join(map(str, range(module.MAX_LINES + 50)))
    large = edited(system("</rules>", f"{lines}\n</rules>"))
    tools = [{"type": "function", "function": {"name": f"t{i}"}} for i in range(module.MAX_TOOLS + 5)]
    wide = {"function": {"name": "wide", **{f"f{i}": i for i in range(module.MAX_FIELDS + 5)}}}
    deep: Any = 0
    for _ in range(40):
        deep = {"a": deep}
    large["tools"] = [wide, {"function": {"name": "deep", "parameters": deep}}, *tools]
    earlier = taken(large)
    assert earlier.n_lines == module.MAX_LINES + 1
    assert len(earlier.tools) == module.MAX_TOOLS + 1
    later = taken(edited(lambda body: body["tools"].pop(), large))
    assert [Change("tool those after", "all of it", "changed")] == changes(earlier, later)
    wider = taken(edited(lambda body: function(body, 0).update(f66=0), large))
    assert [Change("tool wide", "further fields", "changed")] == changes(earlier, wider)


@pytest.mark.parametrize("tools", [None, [], "text", 1, [None, 1, "x", {}, {"function": 1}]])
def test_odd_tools_are_no_error(tools: object) -> None:
    """They are the server's to refuse."""
    odd = edited(lambda body: body.update(tools=tools))
    assert changes(taken(BODY), taken(odd))
    assert [] == changes(taken(odd), taken(odd))
