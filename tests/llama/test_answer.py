"""Reading figures from answers: the same from any chunking, bounded, and never raising."""

import gzip
import http.client
import tracemalloc
import zlib
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.llama import answer as answer_module
from proxy.llama.answer import AnswerReader, Figures
from tests.conftest import StartLlama

SSE, JSON = "text/event-stream", "application/json; charset=utf-8"
TIMINGS = {"cache_n": 18, "prompt_n": 1, "prompt_ms": 0.5, "predicted_n": 2, "predicted_ms": 3, "other": []}
USAGE = {"prompt_tokens": 19, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 18}}
FROM_TIMINGS = Figures(1, 18, 2, 0.5, 3.0, "timings")
FROM_USAGE = Figures(1, 18, 2, None, None, "usage")


def event(**fields: Any) -> bytes:
    return b"data: " + orjson.dumps({"choices": [], **fields}) + b"\n\n"


def token(text: str, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}}], **fields)


DONE = b"data: [DONE]\n\n"
STREAM = token("a") + token("b") + event(usage=USAGE, timings=TIMINGS) + DONE


def read(chunks: Iterable[bytes], content_type: str = SSE, encoding: str = "") -> tuple[Figures | None, bool]:
    reader = AnswerReader(content_type, encoding)
    for chunk in chunks:
        reader.feed(chunk)
    figures = reader.finish()
    return figures, reader.error


def figures_of(answer: bytes, content_type: str = SSE, encoding: str = "") -> Figures | None:
    return read([answer], content_type, encoding)[0]


def bytewise(data: bytes) -> list[bytes]:
    return cut(data, 1)


def cut(data: bytes, step: int) -> list[bytes]:
    return [data[i : i + step] for i in range(0, len(data), step)]


# --- streams


@pytest.mark.parametrize(
    "stream",
    [
        STREAM,
        STREAM.removesuffix(DONE).rstrip(),
        STREAM.replace(b"\n", b"\r\n"),
        STREAM.replace(b"\n", b"\r"),
        STREAM.replace(b"data: ", b"data:"),
        b": keep-alive\n\n" + STREAM.replace(b"data: [", b": \n\nevent: x\nid: 7\ndata: ["),
        STREAM.replace(b',"timings":', b',\ndata: "timings"\ndata: :\ndata:  '),
        b"\n\n\n" + STREAM + b"\n\n\n",
        token("a", timings=TIMINGS | {"cache_n": 4}) + token("b", timings=TIMINGS) + DONE,
        event(timings=TIMINGS) + event(usage=USAGE | {"prompt_tokens": 7}),
        event(usage=USAGE) + event(timings={k: v for k, v in TIMINGS.items() if k != "cache_n"}),
    ],
)
def test_timings_of_a_stream(stream: bytes) -> None:
    """The last timings count, whatever the layout, and however the stream is cut."""
    assert (FROM_TIMINGS, False) == read([stream]) == read(bytewise(stream))


def test_usage_stands_in_for_timings() -> None:
    """A server without timings tells the same through its usage."""
    assert FROM_USAGE == figures_of(token("a") + event(usage=USAGE) + DONE)


def test_usage_without_details_leaves_reuse_unknown() -> None:
    """The whole prompt is counted, the reused part is not made up."""
    assert Figures(19, None, 2, None, None, "usage") == figures_of(event(usage=USAGE | {"prompt_tokens_details": None}))


def test_prompt_tokens_are_prefilled_and_reused_together() -> None:
    """What usage calls prompt tokens is the sum."""
    assert (19, 19) == (FROM_TIMINGS.prompt_tokens, FROM_USAGE.prompt_tokens)
    assert Figures(None, None, None, None, None, "slots").prompt_tokens is None


@pytest.mark.parametrize("told", ['"timings"', 'x","timings":{"prompt_n":9},"a":"', "timings", "data: timings\n\n"])
def test_an_answer_that_talks_about_timings_is_not_misread(told: str) -> None:
    """Words of the model are no figures, wherever they look like some."""
    assert FROM_TIMINGS == figures_of(event(timings=TIMINGS) + token(told) + token(told, timings=told))


@pytest.mark.parametrize(
    "timings",
    [None, [], {}, {"prompt_n": -1}, {"prompt_n": True}, {"prompt_n": 1.5}, {"prompt_n": "1"}, {"prompt_n": 2**60}],
)
def test_nonsense_is_no_timings(timings: object) -> None:
    """Only a count of prefilled tokens makes timings; the usage is taken instead."""
    assert FROM_USAGE == figures_of(event(usage=USAGE, timings=timings))


def test_odd_members_are_left_out() -> None:
    """One wrong number does not cost the others."""
    odd = TIMINGS | {"cache_n": "x", "prompt_ms": -1, "predicted_ms": True, "predicted_n": []}
    assert Figures(1, None, None, None, None, "timings") == figures_of(event(timings=odd))


def test_a_long_stream_is_read_to_its_end() -> None:
    """Megabytes of tokens before the figures change nothing, and are not kept."""
    tokens = [token("word " * 20)] * 30_000
    tracemalloc.start()
    try:
        assert (FROM_TIMINGS, False) == read([*tokens, event(timings=TIMINGS), DONE])
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_figures_early_in_a_long_stream_are_kept() -> None:
    """A thing found is not forgotten by what follows."""
    assert (FROM_TIMINGS, False) == read([event(timings=TIMINGS), *[token("word " * 20)] * 3_000, DONE])


@pytest.mark.parametrize("step", [1, 7, 1000, 10**6])
def test_an_event_that_is_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Its figures don't count, those before and after it do, whatever the chunking."""
    monkeypatch.setattr(answer_module, "MAX_EVENT_BYTES", 2000)
    monkeypatch.setattr(answer_module, "SCAN_EVERY_BYTES", 500)
    wrong = TIMINGS | {"prompt_n": 99}
    one_line = token("x" * 3000, timings=wrong, usage=USAGE)
    lines = b"data: " + b"x" * 3000 + b"\nevent: error\n" + event(timings=wrong)
    for long in (one_line, lines):
        for stream in (
            long + event(timings=TIMINGS),
            event(timings=TIMINGS) + long,
            long + token("a", timings=TIMINGS),
        ):
            assert (FROM_TIMINGS, False) == read(cut(stream, step))
        assert (None, False) == read(cut(long, step))


@pytest.mark.parametrize("step", [1, 7, 10**6])
@pytest.mark.parametrize(("spare", "expected"), [(0, FROM_TIMINGS), (-1, None)])
def test_the_longest_event_is_read(
    monkeypatch: pytest.MonkeyPatch, step: int, spare: int, expected: Figures | None
) -> None:
    """The limit is that of the event's own bytes, not of the line breaks around it."""
    monkeypatch.setattr(answer_module, "SCAN_EVERY_BYTES", 0)
    monkeypatch.setattr(answer_module, "MAX_EVENT_BYTES", len(event(timings=TIMINGS).strip()) + spare)
    assert (expected, False) == read(cut(b"\n\n\n" + event(timings=TIMINGS) + b"\n", step))


# --- any chunking


piece = st.sampled_from(
    [
        token("a"),
        token('"timings"'),
        token("timings"),
        event(timings=TIMINGS),
        event(timings=TIMINGS | {"prompt_n": 7}),
        event(timings="no"),
        event(usage=USAGE),
        event(error={"message": "m"}),
        token("x" * 90, timings=TIMINGS | {"prompt_n": 99}),
        b'data: {"a":1,\ndata: "timings":{\ndata: "prompt_n":5}}\n\n',
        b"error: {}\n\n",
        b"event: error\n",
        b"data: {\n",
        b": comment\n",
        b"\r",
        b"\n",
        b"\n\n",
        DONE,
    ]
)


@given(st.lists(piece, max_size=12).map(b"".join), st.booleans(), st.lists(st.integers(0, 2000), max_size=6))
def test_any_chunking_reads_the_same(stream: bytes, crlf: bool, cuts: list[int]) -> None:
    """Whole, cut anywhere or byte by byte, with scans at every turn: the same figures."""
    stream = stream.replace(b"\n", b"\r\n") if crlf else stream
    expected = read([stream])
    places = [0, *sorted(cuts), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(places)]
    assert expected == read(chunks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer_module, "SCAN_EVERY_BYTES", 0)
        patch.setattr(answer_module, "MAX_EVENT_BYTES", 250)
        expected = read([stream])
        assert expected == read(chunks) == read(bytewise(stream))


@given(
    st.lists(st.binary(max_size=30)),
    st.sampled_from([SSE, JSON, "", "text/html"]),
    st.sampled_from(["", "gzip", "deflate", "br"]),
)
def test_no_bytes_raise(chunks: list[bytes], content_type: str, encoding: str) -> None:
    """Whatever passes, reading it does not raise."""
    read(chunks, content_type, encoding)


# --- documents


DOCUMENT = orjson.dumps({"choices": [], "usage": USAGE, "timings": TIMINGS})


@pytest.mark.parametrize("content_type", [JSON, "application/json", "", "application/problem+json"])
def test_timings_of_a_document(content_type: str) -> None:
    """An answer in one piece tells its timings."""
    assert (FROM_TIMINGS, False) == read([DOCUMENT], content_type) == read(bytewise(DOCUMENT), content_type)


@pytest.mark.parametrize("document", [b"", b"[]", b"{", b"{}", DOCUMENT[:-1], b"\xff", b'{"timings":' + b"[" * 3000])
def test_a_document_without_figures(document: bytes) -> None:
    """No figures are made up."""
    assert figures_of(document, JSON) is None


@pytest.mark.parametrize("step", [1, 333, 10**6])
def test_of_a_long_document_the_tail_is_read(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Beyond the limit only the end is kept, and the figures are there."""
    monkeypatch.setattr(answer_module, "MAX_DOCUMENT_BYTES", 5000)
    monkeypatch.setattr(answer_module, "TAIL_BYTES", 1000)
    told = {"usage": USAGE, "id": "x", "timings": TIMINGS, "q": '"timings"', "timings2": "timings"}
    long = orjson.dumps({"choices": "\u00e9" * 9000, "timings": {"prompt_n": 99}, "content": "timings"} | told)
    assert (FROM_TIMINGS, False) == read((long[i : i + step] for i in range(0, len(long), step)), JSON)


def test_a_long_document_takes_bounded_memory() -> None:
    """A hundred megabytes pass, some are kept."""
    tracemalloc.start()
    try:
        read((b"x" * 100_000 for _ in range(1000)), JSON)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("content_type", ["text/html", "image/png", "text/plain"])
def test_other_answers_are_not_read(content_type: str) -> None:
    """What is neither events nor JSON has no figures."""
    assert figures_of(DOCUMENT, content_type) is None


# --- packed answers


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS = [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", bare_deflate)]


@pytest.mark.parametrize(("encoding", "pack"), PACKERS)
@pytest.mark.parametrize(("plain", "content_type"), [(STREAM, SSE), (DOCUMENT, JSON)])
def test_packed_answers_are_read(encoding: str, pack: Any, plain: bytes, content_type: str) -> None:
    """gzip and both kinds of deflate, whole and byte by byte."""
    packed = pack(plain)
    assert (FROM_TIMINGS, False) == read([packed], content_type, encoding)
    assert (FROM_TIMINGS, False) == read(bytewise(packed), content_type, encoding)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, br"])
def test_an_unknown_encoding_is_not_read(encoding: str) -> None:
    """What can't be unpacked has no figures, even if it looks plain."""
    assert figures_of(STREAM, SSE, encoding) is None


@pytest.mark.parametrize("split", [1, 40, 10**6])
def test_a_damaged_packed_answer_has_no_figures(split: int) -> None:
    """A broken checksum spoils all, whatever the chunking."""
    packed = bytearray(gzip.compress(STREAM))
    packed[-6] ^= 1
    assert (None, False) == read((bytes(packed[i : i + split]) for i in range(0, len(packed), split)), SSE, "gzip")


def test_what_follows_a_packed_answer_is_ignored() -> None:
    """Bytes after the end are not kept and spoil nothing."""
    packed = gzip.compress(STREAM)
    tracemalloc.start()
    try:
        assert (FROM_TIMINGS, False) == read([packed + b"junk", *[b"junk" * 1000] * 2000], SSE, "gzip")
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_packed_answer_is_unpacked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a piece of input still has to give is fetched, however little is taken at a time."""
    monkeypatch.setattr(answer_module, "_INFLATE_STEP", 7)
    packer = zlib.compressobj(wbits=31)
    unfinished = packer.compress(token("a" * 5000) + event(timings=TIMINGS)) + packer.flush(zlib.Z_SYNC_FLUSH)
    assert (FROM_TIMINGS, False) == read([unfinished], SSE, "gzip")


def test_a_packed_answer_that_grows_without_bound_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb costs neither memory nor its whole unpacking."""
    monkeypatch.setattr(answer_module, "MAX_INFLATED_BYTES", 2_000_000)
    bomb = gzip.compress(STREAM + bytes(50_000_000), 1)
    tracemalloc.start()
    try:
        assert (None, False) == read([bomb], SSE, "gzip")
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


# --- errors


@pytest.mark.parametrize(
    ("answer", "content_type"),
    [
        (b'{"error":{"code":400,"message":"m"}}', JSON),
        (token("a") + event(error={"code": 500}), SSE),
        (token("a") + b'event: error\ndata: {"type":"error"}\n\n', SSE),
        (b'error: {"code":500}\n\n', SSE),
    ],
)
def test_errors_are_seen(answer: bytes, content_type: str) -> None:
    """In a body, in an event's data and as an event of that name."""
    assert (None, True) == read([answer], content_type) == read(bytewise(answer), content_type)


@pytest.mark.parametrize("answer", [token("error: x\n\nerror: y"), token('"error"'), token("error"), event(error=None)])
def test_words_about_errors_are_no_error(answer: bytes) -> None:
    """A model may write about errors."""
    assert (None, False) == read([answer])


# --- the real server


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"stream": True}),
        ("/v1/chat/completions", {"stream": True, "stream_options": {"include_usage": True}}),
        ("/v1/chat/completions", {"stream": True, "timings_per_token": True}),
        ("/v1/chat/completions", {}),
        ("/completion", {"stream": True}),
        ("/completion", {}),
    ],
)
def test_a_real_servers_figures(start_llama: StartLlama, path: str, asked: dict[str, Any]) -> None:
    """First all is prefilled, then all but the last token is reused, in every shape of answer."""
    server = start_llama()
    body = {"messages": [{"role": "user", "content": "hello"}], "prompt": "hello there", "max_tokens": 3, **asked}
    first, second = (figures_from(server.port, path, body | {"n_predict": 3}) for _ in range(2))
    assert (0, "timings") == (first.cache_n, first.source)
    assert (1, (first.prompt_n or 0) - 1) == (second.prompt_n, second.cache_n)
    assert 3 == second.predicted_n
    assert first.prompt_tokens == second.prompt_tokens


def figures_from(port: int, path: str, body: dict[str, Any]) -> Figures:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, orjson.dumps(body))
        response = connection.getresponse()
        reader = AnswerReader(response.headers["Content-Type"], response.headers.get("Content-Encoding", ""))
        while chunk := response.read1():
            reader.feed(chunk)
    finally:
        connection.close()
    figures = reader.finish()
    assert figures is not None
    return figures
