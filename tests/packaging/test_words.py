"""What `serve` says at its start: where the fault lies and what to change, and nothing that isn't so."""

import errno
import socket
from typing import Any

import pytest

from proxy.commands.serve import cannot_listen, container_hint, intent, nothing_useful, refuse_self
from proxy.errors import UpstreamIsSelf
from proxy.llama.client import ControlFailed
from proxy.llama.upstream import Upstream
from proxy.settings import Settings


def _settings(**given: Any) -> Settings:
    return Settings(_env_file=None, **given)  # type: ignore[call-arg]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_loopback_upstream_in_a_container_is_hinted_at(host: str) -> None:
    """`localhost` in a container is the container: the refusal and the first look both say what to write instead."""
    base_url = f"http://{host}:8081/v1"
    hint = container_hint(Upstream.parse(base_url), is_container=True)
    assert "service" in hint
    assert hint in nothing_useful(base_url, ControlFailed("connect"), hint)
    with pytest.raises(UpstreamIsSelf) as refused:
        refuse_self(_settings(base_url=base_url, host="0.0.0.0"), hint)
    assert hint in str(refused.value)


@pytest.mark.parametrize(("host", "is_container"), [("llama-server", True), ("192.0.2.7", True), ("localhost", False)])
def test_other_upstreams_need_no_hint(host: str, is_container: bool) -> None:
    """Nobody is told about containers who isn't in one, or who names another machine."""
    assert "" == container_hint(Upstream.parse(f"http://{host}:8080/v1"), is_container)


def test_server_on_another_port_is_not_us() -> None:
    """The usual set-up, both on one machine, starts; so does one without a status page."""
    refuse_self(_settings())
    refuse_self(_settings(base_url="http://127.0.0.1:8082/v1", admin_port=None))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ControlFailed("connect"), "502"),
        (ControlFailed("props", is_timeout=True), "CONTROL_TIMEOUT"),
        (ControlFailed("props", 503), "loading"),
        (ControlFailed("props", 401), "API_KEY"),
        (ControlFailed("props", 404), "is it llama-server?"),
    ],
)
def test_each_kind_of_silence_is_told_apart(error: ControlFailed, expected: str) -> None:
    """Down, slow, loading, locked and something else call for different things."""
    words = nothing_useful("http://127.0.0.1:8080", error)
    assert expected in words
    assert "http://127.0.0.1:8080" in words


@pytest.mark.parametrize(
    ("given", "expected", "unsaid"),
    [
        ({"observe_only": True, "persist": True}, "nothing is prepared", "saved in"),
        ({}, "any slot, and not saved", "only"),
        ({"slot": 2}, "slot 2 only", "any"),
        ({"models": ("gemma", "qwen")}, "for gemma, qwen", "observing"),
        ({"persist": True, "slot_dir": "/slots"}, "saved in /slots", "PERSIST"),
        ({"persist": True}, "not seen from here", "None"),
    ],
)
def test_what_it_will_do_follows_the_settings(given: dict[str, Any], expected: str, unsaid: str) -> None:
    """One line that names what was chosen."""
    words = intent(_settings(**given))
    assert expected in words
    assert unsaid not in words


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EADDRINUSE, "in use"), "choose another --port"),
        (OSError(errno.EADDRNOTAVAIL, "not available"), "choose another --host"),
        (socket.gaierror(-2, "not known"), "choose another --host"),
        (OSError(errno.EACCES, "denied"), "below 1024"),
        (OSError("something"), "something"),
    ],
)
def test_each_reason_not_to_listen_is_told_apart(error: OSError, expected: str) -> None:
    """The address, and the flag to change."""
    words = cannot_listen(error, "192.0.2.1", 80)
    assert "192.0.2.1:80" in words
    assert expected in words
