"""`pi-prefix-cache ls`, `show`, `rm`, `prune`: the checkpoints, looked at and deleted.

Through the proxy that runs, else on the files. Keys may be shortened as long as only one begins so.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from proxy import logs
from proxy.checkpoints.inspection import WHOLE
from proxy.checkpoints.key import FileKind, parse_name
from proxy.checkpoints.listing import UNFINISHED, Listed
from proxy.commands import arguments
from proxy.commands.arguments import Given, write_json
from proxy.commands.keeper import keeper
from proxy.commands.shown import age, console, plain, size, table, tokens
from proxy.errors import PrefixCacheError

SETTINGS = (*arguments.LISTENER, *arguments.FILES)
SHOWN_KEYS = 4
REFUSALS = {
    "persistence_off": "checkpoints are off (PERSIST)",
    "directory_of_another_proxy": "another proxy holds DIR; ask that one (ADMIN_HOST, ADMIN_PORT), or end it",
    "unknown": "it is gone",
    "in_use": "the server is reading or writing it",
    "only_forgotten": "forgotten; its file can't be seen or deleted from here (SLOT_DIR)",
    "slot_dir_unset": "SLOT_DIR is not set: there is no telling where the files are",
    "slot_dir_unreadable": "SLOT_DIR can't be read",
    "index_not_trusted": "the index was damaged: nothing is deleted on its word; the next start is clean",
}


class NoSuchKeyError(PrefixCacheError):
    """A key that names no checkpoint, or several."""


def ls(argv: Sequence[str]) -> int:
    """List what there is; returns the exit code."""
    given = _given(argv, "ls", "List checkpoints, the most recently used first.")
    kept = keeper(given.settings)
    found = kept.listed()
    if given.as_json:
        write_json([asdict(one) for one in found])
    elif not found:
        sys.stdout.write(f"no checkpoints ({kept.where})\n")
    else:
        _print_list(found, kept.where)
    return 0


def show(argv: Sequence[str]) -> int:
    """Tell all about one; returns the exit code, 1 where its file is not what was saved."""
    given = _given(argv, "show", "Show one checkpoint, and prove that its file is what was saved.", _one_key)
    kept = keeper(given.settings)
    every = kept.listed()
    key = matched(given.own.key, every)
    found = [one for one in every if one.key == key]
    proof = kept.proof(key) if any(one.is_known for one in found) else ""
    if given.as_json:
        write_json({"checkpoints": [asdict(one) for one in found], "proof": proof})
    else:
        for one in found:
            _print_one(one, proof if one.is_known else "")
    return 0 if proof in ("", WHOLE) else 1


def rm(argv: Sequence[str]) -> int:
    """Delete some or all; returns the exit code."""
    given = _given(argv, "rm", "Delete checkpoints; a prefix that is asked for again is built again.", _keys)
    if bool(given.own.keys) == given.own.all:
        raise NoSuchKeyError("rm needs keys, or --all (and not both)")
    kept = keeper(given.settings)
    every = kept.listed()
    wanted = given.own.keys or [one.key for one in every if one.disk != UNFINISHED]
    keys = list(dict.fromkeys(matched(text, every) for text in wanted))
    refused = {key: kept.delete(key) for key in keys}
    if given.as_json:
        write_json([{"key": key, "error": error} for key, error in refused.items()])
    else:
        for key, error in refused.items():
            sys.stdout.write(f"{key} {_why_not(error) if error else 'deleted'}\n")
        if not keys:
            sys.stdout.write(f"no checkpoints ({kept.where})\n")
    return 1 if any(refused.values()) else 0


def prune(argv: Sequence[str]) -> int:
    """Delete what the limits say; returns the exit code."""
    words = "Delete what TTL_DAYS, KEEP_RECENT and MAX_GB say, now, and what broken saves left."
    given = _given(argv, "prune", words, _dry_run)
    cleaned = keeper(given.settings).prune(is_dry_run=given.own.dry_run)
    if given.as_json:
        write_json({**asdict(cleaned), "dry_run": given.own.dry_run})
        return 1 if cleaned.refusal else 0
    if cleaned.refusal:
        sys.stdout.write(f"nothing is deleted: {_why_not(cleaned.refusal)}\n")
        return 1
    for name in cleaned.files:
        sys.stdout.write(f"{name}  {_kind(name)}\n")
    verb = "would be deleted" if given.own.dry_run else "deleted"
    sys.stdout.write(f"{len(cleaned.files)} file(s), {size(cleaned.size_bytes)}, {verb}\n")
    return 0


def matched(text: str, every: Sequence[Listed]) -> str:
    """The one key that begins so; a file's name will do, too."""
    own = parse_name(text)
    begin = own.key if own is not None else text.strip().lower()
    keys = sorted({one.key for one in every if begin and one.key.startswith(begin)})
    if len(keys) == 1:
        return keys[0]
    if not keys:
        raise NoSuchKeyError(f"no checkpoint's key begins with {plain(text)[:64]!r}; `pi-prefix-cache ls` lists them")
    some = ", ".join(keys[:SHOWN_KEYS]) + (", …" if len(keys) > SHOWN_KEYS else "")
    raise NoSuchKeyError(f"{begin!r} is the beginning of {len(keys)} keys: {some}")


def _given(argv: Sequence[str], name: str, words: str, more: arguments.More | None = None) -> Given:
    given = arguments.read(argv, name, words, settings=SETTINGS, more=more)
    arguments.tell_warnings(given)
    logs.configure("console", "error")
    return given


def _one_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", help="of the checkpoint, or its beginning")


def _keys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("keys", nargs="*", metavar="key", help="of a checkpoint, or its beginning")
    parser.add_argument("--all", action="store_true", help="every one that ls lists, those put aside included")


def _dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be deleted")


def _why_not(refusal: str) -> str:
    return f"not deleted: {REFUSALS.get(refusal, refusal)}"


def _kind(name: str) -> str:
    own = parse_name(name)
    kinds = {FileKind.FINAL: "checkpoint", FileKind.BAD: "put aside", FileKind.TEMPORARY: "left by a broken save"}
    return kinds[own.kind] if own is not None else ""


def _print_list(found: Sequence[Listed], where: str) -> None:
    now = time.time()
    columns = ("key", "model", "tokens", "size", "made", "used", "uses", "verdict", "on disk")
    rows = [
        (
            one.key,
            one.model,
            tokens(one.tokens) if one.is_known else "",
            size(one.size_bytes),
            age(now - one.created_at),
            age(now - one.last_used_at),
            one.uses if one.is_known else "",
            one.verdict,
            one.disk,
        )
        for one in found
    ]
    console().print(table(columns, rows, right=("tokens", "size", "made", "used", "uses"), yields=("model", "verdict")))
    sys.stdout.write(f"{len(found)} in all, {size(sum(one.size_bytes for one in found))} ({where})\n")


def _print_one(one: Listed, proof: str) -> None:
    now = time.time()
    told = {
        "key": one.key,
        "on disk": one.disk,
        "proof": proof,
        "size": f"{size(one.size_bytes)} ({one.size_bytes:,} bytes)",
        "made": f"{_when(one.created_at)}, {age(now - one.created_at)} ago",
    }
    if one.is_known:
        told |= {
            "used": f"{_when(one.last_used_at)}, {one.uses} times",
            "model": one.model,
            "tokens": tokens(one.tokens),
            "last verified": f"{one.verdict or 'not yet'}{f', {one.strikes} failures since' if one.strikes else ''}",
            "saved by": f"build {one.build or 'unknown'}, format {one.format_version or 'unknown'}",
            "fingerprints": " ".join(one.fingerprints),
        }
    rows = [(name, value) for name, value in told.items() if value]
    width = max(len(name) for name, _ in rows)
    sys.stdout.write("".join(f"{name:<{width}}  {plain(value)}\n" for name, value in rows))


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
