"""Where the server is, from what people write into BASE_URL."""

import pytest

from proxy.errors import BadBaseUrl
from proxy.llama.upstream import Upstream, is_self


@pytest.mark.parametrize("scheme", ["", "http://", "HTTP://", " http://"])
@pytest.mark.parametrize(
    ("tail", "prefix"),
    [("", ""), ("/", ""), ("/v1", ""), ("/v1/", ""), ("/llm", "/llm"), ("/llm/v1/", "/llm"), ("/v1x", "/v1x")],
)
def test_every_way_of_writing_a_base_url(scheme: str, tail: str, prefix: str) -> None:
    """With or without scheme, `/v1` and a slash at the end: the same chat path and the same `/slots`."""
    upstream = Upstream.parse(f"{scheme}box:8080{tail}")
    assert f"http://box:8080{prefix}/v1/chat/completions" == upstream.target("/v1/chat/completions")
    assert f"http://box:8080{prefix}/chat/completions?a" == upstream.target("/chat/completions?a")
    assert f"http://box:8080{prefix}/slots" == upstream.control("/slots")
    assert f"http://box:8080{prefix}" == upstream.address


@pytest.mark.parametrize(
    ("base_url", "authority", "port"),
    [
        ("h", "h", 80),
        ("https://h/v1", "h", 443),
        ("https://h:8443", "h:8443", 8443),
        ("http://h:443", "h:443", 443),
        ("http://[::1]:8080/v1", "[::1]:8080", 8080),
        ("localhost:8080", "localhost:8080", 8080),
    ],
)
def test_host_and_port(base_url: str, authority: str, port: int) -> None:
    """The port of the scheme where none is given, and none in `Host` then."""
    upstream = Upstream.parse(base_url)
    assert (authority, port) == (upstream.authority, upstream.port)


@pytest.mark.parametrize(
    "base_url", ["", "http://", "ftp://h", "h:port", "http://u:p@h", "h?a=b", "h#x", "two words", "[::1"]
)
def test_what_is_no_base_url(base_url: str) -> None:
    """It is refused with a reason, at the start."""
    with pytest.raises(BadBaseUrl):
        Upstream.parse(base_url)


@pytest.mark.parametrize("raw", ["/a?", "/a?b#c", "/%zz/../x|", "//"])
def test_the_url_for_the_client_library_keeps_every_character(raw: str) -> None:
    """What it puts into the request line is prefix and target, byte for byte."""
    assert f"/llm{raw}" == Upstream.parse("http://[::1]:1/llm").url(raw).raw_path_qs


@pytest.mark.parametrize(
    ("base_url", "host", "port", "expected"),
    [
        ("localhost:8081", "127.0.0.1", 8081, True),
        ("127.0.0.1:8081", "0.0.0.0", 8081, True),
        ("[::1]:8081", "::", 8081, True),
        ("box:8081", "BOX", 8081, True),
        ("0.0.0.0:8081", "127.0.0.1", 8081, True),
        ("localhost:8080", "127.0.0.1", 8081, False),
        ("box:8081", "127.0.0.1", 8081, False),
        ("127.0.0.1:8081", "192.168.0.2", 8081, False),
    ],
)
def test_an_upstream_that_is_this_proxy(base_url: str, host: str, port: int, expected: bool) -> None:
    """Same port, and the same machine by loopback or name."""
    assert expected is is_self(Upstream.parse(base_url), host, port)
