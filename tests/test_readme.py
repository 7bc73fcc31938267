"""README: what it says of settings, commands, sources and reasons is what the code has.

`python -m tests.test_readme` writes the settings table anew.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

import proxy
from proxy.__main__ import USAGE, main
from proxy.llama.upstream import Upstream
from proxy.settings import PREFIX, Settings, example_env, flag, load
from proxy.slots.plan import Source

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
REASONS = ROOT / "docs" / "reasons.md"
DOCUMENTS = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"

SAYS_WHY = {"nothing", "unprepared", "Plan", "PlanBroken", "Unreadable", "NoPrefix"}
"""What is called with a reason that ends up in a request's line."""
LISTS_WHY = {"_barred"}
"""What returns one."""
OUR_OWN = {"asked_for", "server_idle", "server_started"}
"""Reasons of work that no request asked for: in no request's line."""
HOSTS = {"127.0.0.1", "github.com", "host.docker.internal", "keepachangelog.com", "opencode.ai", "semver.org"}


def text() -> str:
    return README.read_text(encoding="utf-8")


def code() -> set[str]:
    """Everything that the README sets in backquotes, blocks apart."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text(), flags=re.DOTALL)))


def section(title: str) -> str:
    """The text under a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text(), re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {title!r}"
    return found[1]


def settings_table() -> str:
    lines = ["| variable, after `PI_PREFIX_CACHE_` | default | what it does |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        value = field.default
        value = value.get_secret_value() if isinstance(value, SecretStr) else value
        value = int(value) if isinstance(value, bool) else value
        shown = "" if value in (None, (), "") else f"`{value}`"
        lines.append(f"| `{name.upper()}` | {shown} | {field.description} |")
    return "\n".join(lines) + "\n"


def reasons(source: str) -> Iterator[str]:
    """Every reason that a module can give for what becomes of a request."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(ast.Name(name) | ast.Attribute(attr=name)) if name in SAYS_WHY:
                yield from words(node)
            case ast.FunctionDef(name) if name in LISTS_WHY:
                yield from words(node)


def words(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        match part:
            case ast.Constant(str(value)) if re.fullmatch(r"[a-z]+(_[a-z]+)+", value):
                yield value


def every_reason() -> set[str]:
    sources = (path.read_text(encoding="utf-8") for path in Path(proxy.__file__).parent.rglob("*.py"))
    return set(itertools.chain.from_iterable(map(reasons, sources))) - OUR_OWN


def test_the_settings_table_is_what_the_class_says() -> None:
    """`python -m tests.test_readme` has been run since the last change of a setting."""
    assert settings_table() == text().partition(BEGIN)[2].partition(END)[0]


def test_class_example_file_table_and_help_name_the_same_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """All four, in the same order."""
    with pytest.raises(SystemExit):
        load(["--help"])
    flags = re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    names = list(Settings.model_fields)
    assert [flag(name) for name in names] == flags
    assert names == [name.lower() for name in re.findall(rf"^#{PREFIX}(\w+)=", example_env(), re.MULTILINE)]
    assert names == [name.lower() for name in re.findall(r"^\| `(\w+)` \|", section("Settings"), re.MULTILINE)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_setting_that_is_named_exists(name: str) -> None:
    """A misspelt one would be warned about at start only."""
    known = {name.upper() for name in Settings.model_fields}
    document = (ROOT / name).read_text(encoding="utf-8")
    assert set() == set(re.findall(rf"{PREFIX}([A-Z_]+[A-Z])", document)) - known


@pytest.mark.parametrize("source", Source)
def test_every_source_is_explained(source: Source) -> None:
    """A row of its own in the table of sources."""
    assert f"\n| `{source}` |" in section("Reading the log")


def test_every_reason_is_explained() -> None:
    """Each has one row of its own; none is explained that can't be given any more."""
    explained = re.findall(r"^\| `([a-z]+(?:_[a-z]+)+)`", REASONS.read_text(encoding="utf-8"), re.MULTILINE)
    assert every_reason() == set(explained)
    assert sorted(set(explained)) == sorted(explained)
    assert "](docs/reasons.md)" in section("Reading the log")


def test_reasons_are_found_where_they_are_given() -> None:
    """The planner's are among them, in each way of giving one."""
    shown = (
        'return nothing("a_b" if x else "c_d")\nPlan(Source.HIT, "e_f")\ndef _barred():\n    return "g_h"\nlog("i_j")'
    )
    assert {"a_b", "c_d", "e_f", "g_h"} == set(reasons(shown.replace("return nothing", "nothing")))
    assert {"may_be_hot", "no_prefix", "no_checkpoint", "slot_holds_prefix", "not_json"} <= every_reason()


def test_the_commands_that_it_names_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Each that the program knows, and no other."""
    commands = set(re.findall(r"^  (\w+) {2,}", USAGE, re.MULTILINE))
    assert commands == set(re.findall(r"^\| `pi-prefix-cache (\w+)", section("Commands"), re.MULTILINE))
    assert 0 == main(["--help"])
    assert USAGE == capsys.readouterr().out


def test_the_targets_of_make_that_it_names_are_there() -> None:
    """`make demo` and the like."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    documents = [text(), (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")]
    named = {target for document in documents for target in re.findall(r"\bmake ([a-z][a-z-]+)\b`?", document)}
    assert {"demo", "test"} <= named
    assert set() == {name for name in named if f"`make {name}" in "".join(documents)} - targets


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_within_lead_somewhere(name: str) -> None:
    """Headings and files, seen from where the document lies."""
    document = ROOT / name
    for target in re.findall(r"\]\(([^)]+)\)", document.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = document.parent / path if path else document
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def anchors(document: Path) -> set[str]:
    """What a document's headings can be linked by."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_address_that_nobody_needs(name: str) -> None:
    """No registry's host, no path of the machine that it was written on."""
    document = (ROOT / name).read_text(encoding="utf-8")
    assert set() == {Upstream.parse(url).host for url in re.findall(r"https?://[\w.:-]+", document)} - HOSTS
    assert [] == re.findall(r"(?<![\w.~])/(?:tmp|work|root|home)/\S+", document)


def test_the_changelog_begins_with_what_is_unreleased() -> None:
    """There is always a place for the next change."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "[Unreleased]" == re.findall(r"^## (.+)$", changes, re.MULTILINE)[0]


if __name__ == "__main__":
    before, _, rest = text().partition(BEGIN)
    README.write_text(before + BEGIN + settings_table() + END + rest.partition(END)[2], encoding="utf-8")
