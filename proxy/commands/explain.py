"""`pi-prefix-cache explain`: why the last request found no prefix, by the parts of it that have changed.

The running proxy tells; it keeps hashes of parts and no text, so neither does this show any.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from proxy.commands import arguments
from proxy.commands.admin_client import running_proxy
from proxy.commands.arguments import write_json
from proxy.commands.shown import age, console, plain, table

SEE = "`docs/reasons.md` has a row for each reason."


def explain(argv: Sequence[str]) -> int:
    """Explain a miss; returns the exit code."""
    words = "Tell why the last request found no prefix: which part of it changed against the nearest one known."
    given = arguments.read(argv, "explain", words, more=_flags)
    arguments.tell_warnings(given)
    wanted = "" if given.own.request is None else f"?request={given.own.request}"
    answer = running_proxy(given.settings).ask(f"/explain{wanted}")
    if given.as_json:
        write_json(answer.json)
    elif answer.status != HTTPStatus.OK:
        sys.stdout.write(f"{answer.error}\n")
    else:
        _print(answer.json)
    return 0 if answer.status == HTTPStatus.OK else 1


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "request", nargs="?", type=int, metavar="NUMBER", help="of a request, as `status` shows it (default: the last)"
    )


def _print(told: Mapping[str, Any]) -> None:
    now = time.time()
    name = f", fingerprint {told['fingerprint']}" if told["fingerprint"] else ""
    ago = age(now - told["ended_at"])
    out = [f"request {told['request']}{name}, {ago} ago: source={told['source']} reason={told['reason']}"]
    out.append(verdict(told))
    if told["changes"]:
        out[-1] += f" {told['nearest']}, seen {age(now - told['nearest_seen_at'])} ago:"
    sys.stdout.write("".join(f"{plain(line)}\n" for line in out))
    if told["changes"]:
        rows = [(f"  {one['place']}", one["name"], one["what"], _lines(one["lines"])) for one in told["changes"]]
        console().print(table(("  where", "what", "", ""), rows))
    if told["left_out"]:
        sys.stdout.write(f"  and {told['left_out']} more\n")


def verdict(told: Mapping[str, Any]) -> str:
    """What it comes to, in one sentence."""
    if not told["has_prefix"]:
        return f"It has no stable prefix that could be compared. {SEE}"
    if told["is_known"]:
        return f"An earlier request had the same fingerprint, so the request has not changed. {SEE}"
    if not told["nearest"]:
        return "It is the first with a prefix since the proxy started: there is nothing to compare it with."
    if not told["changes"]:
        return "It differs from none that is known in any part that is compared."
    return "It has changed against the nearest fingerprint known,"


def _lines(text: str) -> str:
    return f"line {text}" if text and "-" not in text else f"lines {text}" if text else ""
