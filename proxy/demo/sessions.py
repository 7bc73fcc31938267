"""Chat bodies shaped like those of a coding agent, without an agent: what Pi sends, in its two ways.

Owns: the texts, all made up here from the tiny models' words, so that twenty kilobytes are several thousand tokens.
Pure and deterministic: the same arguments give the same body. Counterpart: `models`, which can answer them.

Pi 1.6 writes its system text as sections and ends it with the working directory's; Pi 0.74 ends it with plain lines
for date and working directory. What comes before the project's own text is the same for every folder and day.
"""

import random
from collections.abc import Mapping
from typing import Any, Literal

from proxy.demo.vocabulary import WORDS

Pi = Literal["1.6", "0.74"]
Body = dict[str, Any]

USER_AGENTS: dict[Pi, str] = {"1.6": "pi/1.6.0 (linux; node/v22.19.0; x64)", "0.74": "OpenAI/JS 6.26.0"}

FIXED_TOKENS = 290  # what the stable text costs besides the generated rules
SENTENCE_WORDS = 14
SENTENCE_TOKENS = SENTENCE_WORDS + 3  # with dash, full stop and line break

PREAMBLE = (
    "you are a coding agent. you help the user to read files, run commands and change code until the task is done."
)
TOOL_LINES = """\
- read: show the content of a file, whole or a range of lines
- bash: run a command in the shell and return its output
- edit: replace an exact piece of text in a file
- write: create a file, or put new content in place of the old"""
DOCS = """\
the documentation of this agent is for questions about the agent itself, its extensions, skills and prompt templates:
- first file: /opt/agent/lib/package/README.md
- documentation: /opt/agent/lib/package/docs
- examples: /opt/agent/lib/package/examples (extensions, custom tools)
- a path as docs/extensions.md is found under documentation, not in the current working directory
- read each of these files to the end before you change anything, and then the files that it names"""


def session(
    folder: str,
    *,
    pi: Pi = "1.6",
    project_context: str | None = None,
    prefix_tokens: int = 2000,
    user: str = "find the test that fails and say why",
    model: str = "tiny",
    date: str = "2026-11-29",
    seed: int = 1,
    max_tokens: int = 16,
) -> Body:
    """The first request of a session in `folder`.

    `prefix_tokens` is about what the stable system text costs a tiny model, from some 300 up; the tools come on top.
    Another `seed` stands for another install: other rules, so another stable text.
    """
    stable = stable_text(pi, prefix_tokens, seed)
    variable = _sections(folder, project_context) if pi == "1.6" else _lines(folder, project_context, date)
    return {
        "model": model,
        "messages": [{"role": "system", "content": stable + variable}, _said_by_user(user)],
        "stream": True,
        "stream_options": {"include_usage": True},
        "store": False,
        "max_completion_tokens": max_tokens,
        "tools": TOOLS,
    }


def next_turn(body: Mapping[str, Any], answer_text: str, user: str) -> Body:
    """The request after the answer to `body`: everything so far unchanged, then the answer and what the user says."""
    answer = {"role": "assistant", "content": answer_text}
    return {**body, "messages": [*body["messages"], answer, _said_by_user(user)]}


def stable_text(pi: Pi = "1.6", prefix_tokens: int = 2000, seed: int = 1) -> str:
    """What all sessions of one install begin with."""
    rules = _rules(prefix_tokens, seed)
    if pi == "1.6":
        sections = {"tools": TOOL_LINES, "rules": rules, "docs": DOCS}
        return PREAMBLE + "".join(f"\n\n<{name}>\n{text}\n</{name}>" for name, text in sections.items())
    return f"{PREAMBLE}\n\nAvailable tools:\n{TOOL_LINES}\n\nGuidelines:\n{rules}\n\nPi documentation: {DOCS}"


def _sections(folder: str, project_context: str | None) -> str:
    project = ""
    if project_context is not None:
        instructions = f'<project_instructions path="{folder}/AGENTS.md">\n{project_context}\n</project_instructions>'
        project = f"\n\n<project_context>\nthe instructions of this project:\n\n{instructions}\n</project_context>"
    return f"{project}\n\n<cwd>\n{folder}\n</cwd>"


def _lines(folder: str, project_context: str | None, date: str) -> str:
    project = ""
    if project_context is not None:
        heading = f"\n\n# Project Context\n\nthe instructions of this project:\n\n## {folder}/AGENTS.md"
        project = f"{heading}\n\n{project_context}\n\n"
    return f"{project}\nCurrent date: {date}\nCurrent working directory: {folder}"


def _rules(prefix_tokens: int, seed: int) -> str:
    choose = random.Random(seed)
    sentences = max(1, round((prefix_tokens - FIXED_TOKENS) / SENTENCE_TOKENS))
    return "\n".join(f"- {' '.join(choose.choices(WORDS, k=SENTENCE_WORDS))}." for _ in range(sentences))


def _said_by_user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _tool(name: str, description: str, properties: dict[str, Any], *required: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    function = {"name": name, "description": description, "parameters": parameters, "strict": False}
    return {"type": "function", "function": function}


def _argument(kind: str, description: str) -> dict[str, Any]:
    return {"type": kind, "description": description}


TOOLS = [
    _tool(
        "read",
        "show the content of a text file. long files are truncated: use offset and limit to read on.",
        {
            "path": _argument("string", "path of the file, absolute or from the current working directory"),
            "offset": _argument("number", "the first line to show, counted from 1"),
            "limit": _argument("number", "how many lines to show at most"),
        },
        "path",
    ),
    _tool(
        "bash",
        "run a command in the current working directory and return its output, truncated to the last lines.",
        {
            "command": _argument("string", "the command to run"),
            "timeout": _argument("number", "after how many seconds to stop it; without it there is no limit"),
        },
        "command",
    ),
    _tool(
        "edit",
        "replace exact pieces of text in one file. each old text must be found once, and no two may overlap.",
        {
            "path": _argument("string", "path of the file"),
            "edits": {
                "type": "array",
                "description": "the changes, each of them found in the file as it is now",
                "items": {
                    "type": "object",
                    "properties": {
                        "oldText": _argument("string", "the exact text to replace"),
                        "newText": _argument("string", "what to put in its place"),
                    },
                    "required": ["oldText", "newText"],
                    "additionalProperties": False,
                },
            },
        },
        "path",
        "edits",
    ),
    _tool(
        "write",
        "write a file. an existing one is replaced, a missing directory is created.",
        {
            "path": _argument("string", "path of the file"),
            "content": _argument("string", "the whole new content"),
        },
        "path",
        "content",
    ),
]
