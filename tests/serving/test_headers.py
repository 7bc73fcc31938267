"""The decisions about headers and framing, without a wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import RequestRefused
from proxy.serving.headers import Framing, answer_framing, answer_head, origin_form, outgoing

NAMES = st.sampled_from(
    [b"Host", b"Connection", b"TE", b"X-A", b"x-a", b"Upgrade", b"Content-Type", b"Keep-Alive", b"Accept"]
)
RAW = st.lists(st.tuples(NAMES, st.sampled_from([b"1", b"x-a", b"close, X-A", b"", b"accept"])), max_size=12)
ONE_HOP = {b"connection", b"te", b"upgrade", b"keep-alive"}


@given(raw=RAW)
def test_what_goes_upstream_is_the_rest_of_what_came(raw: list[tuple[bytes, bytes]]) -> None:
    """Order, spelling and repetitions of everything that is not one connection's own; exactly one `Host`."""
    named = {item.strip().lower() for name, value in raw if name == b"Connection" for item in value.split(b",")}
    rest = [
        (name.decode(), value.decode())
        for name, value in raw
        if name.lower() not in ONE_HOP | named and name != b"Host"
    ]
    headers = outgoing(raw, "up:1").headers
    assert rest == [pair for pair in headers if pair[0] != "Host"]
    assert ["up:1"] == [value for name, value in headers if name == "Host"]


@given(raw=RAW)
def test_an_answer_head_has_no_header_twice_that_tells_the_end(raw: list[tuple[bytes, bytes]]) -> None:
    """However often the upstream says how long its answer is, the client is told once."""
    told = [*raw, (b"Content-Length", b"3"), (b"content-length", b"3")]
    head = answer_head(200, "OK", told, Framing.LENGTH, keep_alive=True)
    assert 1 == head.lower().count(b"content-length")
    assert b"\r\n\r\n" == head[-4:]


def test_a_folded_value_stays_one_header() -> None:
    """A line break inside a value must not begin another header."""
    head = answer_head(200, "OK", [(b"X-A", b"1\r\nX-B: 2")], Framing.NONE, keep_alive=True)
    assert b"HTTP/1.1 200 OK\r\nX-A: 1 X-B: 2\r\n\r\n" == head


def test_bytes_that_are_no_utf_8_are_left_out_of_a_request() -> None:
    """The client library writes headers as UTF-8; anything else it cannot carry."""
    headers = outgoing([(b"Host", b"x"), (b"X-A", b"caf\xe9"), (b"X-B", "café".encode())], "up").headers
    assert (("X-A", "caf"), ("X-B", "café")) == headers[1:]


@pytest.mark.parametrize("name", [b"Authorization", b"x-api-KEY", b"Cookie", b"Content-Type", b"Content-Encoding"])
def test_who_asks_and_how_is_carried_whole_or_refused(name: bytes) -> None:
    """With a byte left out a wrong key could become a right one, or a body be read otherwise."""
    with pytest.raises(RequestRefused, match=name.decode().lower()):
        outgoing([(b"Host", b"x"), (name, b"Bearer \xffkey")], "up")
    headers = outgoing([(b"Host", b"x"), (name, "Bearer ÿkey".encode())], "up").headers
    assert ((name.decode(), "Bearer ÿkey"),) == headers[1:]


@pytest.mark.parametrize(
    ("method", "status", "raw", "old", "expected"),
    [
        ("GET", 200, [(b"content-length", b"3")], False, Framing.LENGTH),
        ("GET", 200, [(b"Transfer-Encoding", b"Chunked")], False, Framing.CHUNKED),
        ("GET", 200, [(b"Transfer-Encoding", b"gzip, chunked")], False, Framing.CHUNKED),
        ("GET", 200, [(b"Transfer-Encoding", b"chunked")], True, Framing.UNTIL_CLOSE),
        ("GET", 200, [(b"Transfer-Encoding", b"gzip")], False, Framing.UNTIL_CLOSE),
        ("GET", 200, [], False, Framing.UNTIL_CLOSE),
        ("HEAD", 200, [(b"content-length", b"3")], False, Framing.NONE),
        ("GET", 204, [], False, Framing.NONE),
        ("GET", 304, [(b"content-length", b"3")], False, Framing.NONE),
    ],
)
def test_how_the_end_of_an_answer_is_told(
    method: str, status: int, raw: list[tuple[bytes, bytes]], old: bool, expected: Framing
) -> None:
    """As the upstream did, where the client can read that."""
    assert expected is answer_framing(method, status, raw, http_1_0=old)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/a/../b?c", "/a/../b?c"),
        ("//a", "//a"),
        ("http://h:1/a?b#c", "/a?b#c"),
        ("http://h", "/"),
        ("http://h?x", "/?x"),
        ("*", None),
        ("h:443", None),
    ],
)
def test_the_path_of_a_request_target(target: str, expected: str | None) -> None:
    """Byte for byte from the first slash of the path; nothing where there is none."""
    assert expected == origin_form(target)
