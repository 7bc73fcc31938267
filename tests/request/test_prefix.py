"""The stable prefix: one install gives one text, whatever the folder, the day and the Pi version."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.request.prefix import MARKERS, NoPrefix, StablePrefix, joined_text, stable_prefix, with_tail

from .bodies import STABLE, chat, prefix_of, request_of

SKILLS = "The following skills provide specialized instructions for specific tasks.\nUse the read tool.\n"


def tail_of(version: str, folder: str, day: str, *, project: bool, skills: bool) -> str:
    """What a Pi of that age writes after the stable part."""
    heading = {
        "0.74": f"\n\n# Project Context\n\nProject-specific instructions:\n\n## {folder}/AGENTS.md\n\nUse tabs.\n\n",
    }.get(version, f"\n\n<project_context>\n\n{folder}/AGENTS.md: use tabs\n</project_context>\n")
    listed = f"\n\n<skills>\n{SKILLS}</skills>" if version == "1.6" else f"\n\n{SKILLS}"
    date = f"\nCurrent date: {day}" if version in ("0.74", "0.81") else ""
    last = f"\n\n<cwd>\n{folder}\n</cwd>" if version == "1.6" else f"{date}\nCurrent working directory: {folder}"
    return heading * project + listed * skills + last


@pytest.mark.parametrize("version", ["0.74", "0.81", "0.85", "1.6"])
def test_one_install_has_one_prefix(version: str) -> None:
    """Two folders, two days, with and without project files and skills: the same stable text."""
    texts = {
        prefix_of(request_of(chat(STABLE + tail_of(version, folder, day, project=project, skills=skills)))).text
        for folder, day, project, skills in product(
            ("/a", "/b/c"), ("2026-01-01", "2026-01-02"), (True, False), (True, False)
        )
    }
    assert {STABLE} == texts


@pytest.mark.parametrize("marker", MARKERS)
def test_the_earliest_marker_counts(marker: str) -> None:
    """Of several openings the first one ends the prefix, and is named."""
    text = STABLE + marker + "rest" + "".join(MARKERS)
    assert StablePrefix(STABLE, "system", marker, 0) == prefix_of(request_of(chat(text)))


@pytest.mark.parametrize(
    "words",
    [
        "the current working directory: here",
        "Current working directory: at the very start",
        "a <cwd> tag, a <skills> tag, a <project_context>\ntag",
        "in # Project Context\n\nyes",
        "\n<cwd>\nwith one line break only",
        "the Current date: today",
    ],
)
def test_the_words_of_a_marker_are_no_marker(words: str) -> None:
    """Without their line breaks the same words are ordinary text."""
    assert NoPrefix("no_boundary") == stable_prefix(request_of(chat(words)))


def test_the_users_own_addendum_is_stable() -> None:
    """A section that is the same in every folder belongs to the prefix."""
    stable = STABLE + "\n\n<addendum>\nBe brief.\n</addendum>"
    assert stable == prefix_of(request_of(chat(stable + "\n\n<cwd>\n/a\n</cwd>"))).text


def test_trailing_whitespace_is_stripped() -> None:
    """Space before the boundary is not part of the prefix."""
    assert STABLE == prefix_of(request_of(chat(STABLE + " \t\n\n\n\n<cwd>\n/a"))).text


def test_a_developer_message_that_is_not_the_first_is_found() -> None:
    """The first message of either role counts, wherever it stands."""
    messages = [{"role": "user", "content": "u"}, {"role": "developer", "content": "s\nCurrent date: x"}]
    expected = StablePrefix("s", "developer", "\nCurrent date: ", 1)
    assert expected == prefix_of(request_of({"messages": messages}))


def test_more_markers_can_be_given() -> None:
    """A marker from the settings works like a known one; an empty one is ignored."""
    request = request_of(chat("mine [[VARIABLE]] theirs" + "\n\n<cwd>\n"))
    assert StablePrefix("mine", "system", "[[VARIABLE]]", 0) == stable_prefix(request, ("", "[[VARIABLE]]"))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "user", "content": "u\nCurrent date: "}], "no_system_message"),
        ([{"role": "system", "content": None}], "non_text_part"),
        ([{"role": "system"}], "non_text_part"),
        ([{"role": "system", "content": ["s\nCurrent date: "]}], "non_text_part"),
        ([{"role": "system", "content": [{"type": "image_url", "image_url": {}}]}], "non_text_part"),
        ([{"role": "system", "content": [{"type": "text"}]}], "non_text_part"),
        ([{"role": "system", "content": ""}], "no_boundary"),
        ([{"role": "system", "content": []}], "no_boundary"),
        ([{"role": "system", "content": " \n\n<cwd>\n/a"}], "empty_prefix"),
        ([{"role": ["system"], "content": "s\nCurrent date: "}], "no_system_message"),
    ],
)
def test_no_prefix_says_why(messages: list[dict[str, Any]], reason: str) -> None:
    """Each way of having no stable prefix has its reason."""
    assert NoPrefix(reason) == stable_prefix(request_of({"messages": messages}))


def text_parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in texts]


@pytest.mark.parametrize(
    "content",
    [
        text_parts("one\ntwo\n\n<cwd>\n/a"),
        text_parts("one", "two\n\n<cwd>\n/a"),
        text_parts("", "one", "two", "Current date: x"),
    ],
)
def test_parts_are_joined_by_line_breaks(content: list[dict[str, Any]]) -> None:
    """One part or several: the prefix is the one of the joined text, as the server joins it."""
    assert "one\ntwo" == prefix_of(request_of(chat(content))).text


@given(st.lists(st.text("ab \n", max_size=4), max_size=4), st.data())
def test_another_tail_keeps_text_and_shape(texts: list[str], data: st.DataObject) -> None:
    """A rebuilt content is the same up to the cut, ends with the tail, and stays a list of parts."""
    content = text_parts(*texts)
    whole = joined_text(content)
    assert whole is not None
    stable = whole[: data.draw(st.integers(0, len(whole)))].rstrip()
    rebuilt = with_tail(content, len(stable), "TAIL")
    assert isinstance(rebuilt, list)
    if stable:
        assert stable + "TAIL" == joined_text(rebuilt)
        assert all(part["cache_control"] == {"type": "ephemeral"} for part in rebuilt)
    assert stable + "TAIL" == with_tail(whole, len(stable), "TAIL")
