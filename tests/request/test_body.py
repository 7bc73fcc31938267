"""Reading a chat-completions body: what is read, and that nothing makes it raise."""

import gzip
import tracemalloc
import zlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.request import body as body_module
from proxy.request.body import ChatRequest, Unreadable, read_chat
from proxy.request.conversation import inputs_key, links
from proxy.request.fingerprint import ModelIdentity, fingerprint
from proxy.request.prefix import StablePrefix, stable_prefix
from proxy.request.rendering import inputs_digest, rendering_key, variants

from .bodies import TOOLS, chat, request_of

USER = b'{"messages":[{"role":"user","content":"u"}]'
NOBODY = ModelIdentity("", "", "", "", "", "")


def say_everything(request: ChatRequest) -> None:
    """All that is ever asked of a request."""
    links(request, inputs_key(inputs_digest(request), request.model))
    prefix = stable_prefix(request)
    if isinstance(prefix, StablePrefix):
        fingerprint(request, prefix, NOBODY, "unknown")
        rendering_key(inputs_digest(request), prefix)
        variants(request, prefix)


def test_what_a_body_says_is_read() -> None:
    """Model, messages, streaming and the number of choices come out of the body; key order is kept."""
    request = request_of({"stream": True, "n": 3, **chat()})
    assert ("m", True, 3, 2) == (request.model, request.stream, request.choices, len(request.messages))
    assert ["stream", "n", "model", "messages", "tools"] == list(request.fields)


def test_a_bare_body_has_the_servers_defaults() -> None:
    """Without a word on it: no model, one choice, no stream, the prompt cache on, no slot and no adapter of its own."""
    bare = request_of(USER + b"}")
    assert ("", 1, False, True) == (bare.model, bare.choices, bare.stream, bare.cache_prompt)
    assert (False, False, False) == (bare.own_slot, bare.own_lora, bare.has_tools)


def test_what_a_policy_needs_is_told() -> None:
    """An explicit `cache_prompt: false`, a slot, adapters and tools are seen."""
    request = request_of(chat(cache_prompt=False, id_slot=0, lora=[], tools=TOOLS))
    assert (False, True, True, True) == (request.cache_prompt, request.own_slot, request.own_lora, request.has_tools)


@pytest.mark.parametrize(
    ("n", "choices"), [(2.0, 2), (0, 1), (-4, 1), (True, 1), ("3", 1), (None, 1), ([], 1), (1e300, int(1e300))]
)
def test_odd_numbers_of_choices(n: object, choices: int) -> None:
    """A number of choices is read as the server reads it, at least 1."""
    assert choices == request_of(chat(n=n)).choices


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not_json"),
        (b"\xff\xfe", "not_json"),
        (USER[:-1] + b"\xff]}", "not_json"),
        (USER.replace(b'"u"', b'"\\ud800"') + b"}", "not_json"),
        (USER + b',"top_p":NaN}', "not_json"),
        (USER + b"} trailing", "not_json"),
        (b"[" * 10_000 + b"]" * 10_000, "not_json"),
        (USER + b',"a":' + b"[" * 300 + b"]" * 300 + b"}", "too_deep"),
        (USER + b',"tools":' + b"[" * 252 + b"]" * 252 + b"}", "too_deep"),
        (b"[]", "not_an_object"),
        (b'"messages"', "not_an_object"),
        (b"{}", "no_messages"),
        (b'{"messages":{}}', "no_messages"),
        (b'{"messages":[]}', "no_messages"),
        (b'{"messages":[1]}', "odd_message"),
    ],
)
def test_a_body_that_cannot_be_read_says_why(body: bytes, reason: str) -> None:
    """Each kind of unreadable body has its reason, and none raises."""
    assert Unreadable(reason) == read_chat(body)


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbf" + USER + b"}",
        USER + b',"seed":123456789012345678901234567890,"min":-9223372036854775809,"max":18446744073709551615}',
        USER + b',"model":"a","model":"b","tools":[],"tools":[{"a":1,"a":2}]}',
        USER + b',"tools":' + b"[" * 240 + b"]" * 240 + b"}",
        b' \r\n{"messages":[{"role":"system","content":"\\u0000s\\ud83d\\ude00\\nCurrent date: "},{}],"top_k":-0.0}\n',
        orjson.dumps(chat(reasoning_effort=[1], chat_template_kwargs=None, model=7, stream="yes")),
    ],
)
def test_odd_but_readable_bodies(body: bytes) -> None:
    """What is read can also be hashed, fingerprinted and rendered."""
    say_everything(request_of(body))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
part = st.fixed_dictionaries({"type": st.just("text"), "text": st.sampled_from(["", "a", "b\nCurrent date: ", "  "])})
content = json_values | st.text(max_size=5).map(lambda s: s + "x\n\n<cwd>\n") | st.lists(part, max_size=4)
message = json_values | st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user"]), "content": content}
)


@given(
    st.fixed_dictionaries(
        {"messages": st.lists(message, max_size=4) | json_values},
        optional=dict.fromkeys(("model", "n", "tools", "stream", "chat_template_kwargs", "cache_prompt"), json_values),
    )
)
def test_any_json_is_read_or_refused(fields: dict[str, Any]) -> None:
    """No JSON body makes any of our questions raise."""
    read = read_chat(orjson.dumps(fields))
    if isinstance(read, ChatRequest):
        say_everything(read)


@given(st.binary(max_size=200), st.sampled_from(["", "gzip", "deflate", "br", "gzip, gzip"]))
def test_any_bytes_are_read_or_refused(data: bytes, encoding: str) -> None:
    """No bytes make reading raise, in whatever encoding they claim to be."""
    assert isinstance(read_chat(data, encoding), ChatRequest | Unreadable)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP", "deflate", "bare", "identity"])
def test_a_packed_body_is_read(encoding: str) -> None:
    """gzip and both kinds of deflate are read from a private copy."""
    plain = USER + b"}"
    bare = zlib.compressobj(wbits=-15)
    packed = {
        "deflate": zlib.compress(plain),
        "bare": bare.compress(plain) + bare.flush(),
        "identity": plain,
    }.get(encoding, gzip.compress(plain))
    assert isinstance(read_chat(packed, "deflate" if encoding == "bare" else encoding), ChatRequest)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "gzip"])
def test_an_encoding_that_cannot_be_undone_is_said(encoding: str) -> None:
    """Unknown encodings, several at once and wrong claims are refused, not guessed."""
    assert Unreadable("odd_encoding") == read_chat(USER + b"}", encoding)


def test_a_packed_body_cut_short_is_refused() -> None:
    """Half a gzip stream is no body, however much of it unpacks."""
    assert Unreadable("odd_encoding") == read_chat(gzip.compress(USER + b"}")[:-6], "gzip")


def test_a_bomb_does_not_expand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that would grow beyond the limit is given up at the limit."""
    monkeypatch.setattr(body_module, "MAX_UNPACKED_BYTES", 1_000_000)
    bomb = gzip.compress(bytes(100_000_000), 1)
    tracemalloc.start()
    try:
        assert Unreadable("too_large") == read_chat(bomb, "gzip")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_multipart_body_is_left_alone() -> None:
    """What the server takes apart as a form is not read as JSON."""
    assert Unreadable("not_json") == read_chat(USER + b"}", content_type="multipart/form-data; boundary=x")


def test_the_content_type_does_not_matter_otherwise() -> None:
    """The server looks at the bytes, so do we."""
    assert isinstance(read_chat(USER + b"}", content_type="text/plain"), ChatRequest)


def test_a_body_longer_than_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is forwarded unread: parsing it would hold up everybody else's answers."""
    monkeypatch.setattr(body_module, "MAX_UNPACKED_BYTES", 1000)
    body = orjson.dumps({"messages": [{"role": "user", "content": "x" * 1000}]})
    assert Unreadable("too_large") == read_chat(body)
