"""Real requests, broken at random: byte by byte, value by value, and into each other. Pure; a seed gives the same."""

import random
from collections.abc import Callable, Iterator

import orjson

from proxy.demo.sessions import next_turn, session

NUMBERS = [b"-1", b"1e999", b"18446744073709551616", b"0.1", b"NaN"]
TEXTS = [b'""', b'"\\ud800"', b'"\xff"', b"\x00", b"\xef\xbb\xbf", b"//", b"'", b"\\", b'"role":"system"']
NESTED = [b"[" * 400 + b"]" * 400, b'{"a":' * 100 + b"1" + b"}" * 100]
ODD = [b"null", b"true", b"[]", b"{}", *NUMBERS, *TEXTS, *NESTED]
NAMES = ["stream", "n", "n_cmpl", "tools", "messages", "id_slot", "cache_prompt", "lora", "model", "content", "role"]
NAMES += ["chat_template_kwargs", "max_tokens", "tool_choice", "response_format"]
FIELDS = [b'"%b":' % name.encode() for name in NAMES]
WORDS = b'{}[],:"'
MOST_BYTES = 20_000


def corpus() -> list[bytes]:
    """What agents send: first requests, later turns, side requests."""
    first = session("/a", prefix_tokens=300)
    second = next_turn(first, "done", "go on")
    other = {**session("/b", prefix_tokens=300, pi="0.74"), "stream": False}
    title = {"model": "tiny", "messages": [{"role": "user", "content": "a title for this"}], "max_tokens": 8}
    parts = {
        **first,
        "messages": [{"role": "developer", "content": [{"type": "text", "text": "a\n\n<cwd>\n/\n</cwd>"}]}],
    }
    return [orjson.dumps(body) for body in (first, second, next_turn(second, "yes", "on"), other, title, parts)]


def bodies(seed: int, count: int) -> Iterator[bytes]:
    """So many broken requests."""
    dice, whole = random.Random(seed), corpus()
    for _ in range(count):
        body = dice.choice(whole)
        for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
            body = dice.choice(WAYS)(dice, body, whole)[:MOST_BYTES]
        yield body


def _place(dice: random.Random, body: bytes) -> int:
    """Anywhere, or where the structure is."""
    anywhere = dice.randrange(len(body) + 1)
    if dice.random() < 0.5:
        return anywhere
    found = body.find(bytes([dice.choice(WORDS)]), anywhere)
    return anywhere if found < 0 else found


def _range(dice: random.Random, body: bytes) -> tuple[int, int]:
    start = _place(dice, body)
    return start, min(len(body), start + dice.choice((1, 1, 2, 8, 64, 1024)))


def flip(dice: random.Random, body: bytes, _: list[bytes]) -> bytes:
    at = _place(dice, body)
    return body[:at] + bytes([dice.randrange(256)]) + body[at + 1 :]


def drop(dice: random.Random, body: bytes, _: list[bytes]) -> bytes:
    start, end = _range(dice, body)
    return body[:start] + body[end:]


def repeat(dice: random.Random, body: bytes, _: list[bytes]) -> bytes:
    start, end = _range(dice, body)
    return body[:end] + body[start:end] * dice.choice((1, 1, 2, 50)) + body[end:]


def insert(dice: random.Random, body: bytes, _: list[bytes]) -> bytes:
    at = _place(dice, body)
    return body[:at] + dice.choice(ODD) + body[at:]


def cut(dice: random.Random, body: bytes, _: list[bytes]) -> bytes:
    return body[: _place(dice, body)]


def splice(dice: random.Random, body: bytes, whole: list[bytes]) -> bytes:
    other = dice.choice(whole)
    return body[: _place(dice, body)] + other[_place(dice, other) :]


def odd_value(dice: random.Random, body: bytes, _: list[bytes]) -> bytes:
    """A field with a value that nobody expects, beside or instead of the one that is there."""
    field, value = dice.choice(FIELDS), dice.choice(ODD)
    at = body.find(field)
    if at < 0 or dice.random() < 0.3:
        return b"{" + field + value + b"," + body[1:]
    return body[: at + len(field)] + value + b',"x":' + body[at + len(field) :]


WAYS: list[Callable[[random.Random, bytes, list[bytes]], bytes]] = [
    flip, drop, repeat, insert, cut, splice, odd_value, odd_value,
]  # fmt: skip
