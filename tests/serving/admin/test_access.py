"""Who may ask the admin listener."""

import pytest

from proxy.serving.access import COOKIE, Access, cookie_value, start_refusal

OPEN = Access.of("127.0.0.1", ("cache.lan",), "")
GUARDED = Access.of("0.0.0.0", ("cache.lan",), "s3cret")


def status(access: Access, path: str = "/status", cookie: str = "", **headers: str) -> int:
    given = {"Host": "127.0.0.1:8082", **headers}
    refused = access.refuses(path, given, {COOKIE: cookie} if cookie else {})
    return int(refused.status) if refused else 0


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8082", "localhost:8082", "LOCALHOST", "[::1]:8082", "cache.lan", "cache.lan:80"]
)
def test_own_names_are_answered(host: str) -> None:
    """Loopback's names and the allowed ones, with any port."""
    assert 0 == status(OPEN, Host=host)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "cache.lan.evil.example:8082", "0.0.0.0"]
)
def test_a_strangers_name_is_refused(host: str) -> None:
    """A page whose name was made to point here gets nothing."""
    assert 403 == status(OPEN, Host=host)


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
def test_scrapers_and_health_checks_come_under_any_name(path: str) -> None:
    """A container's service name need not be listed."""
    assert 0 == status(OPEN, path, Host="proxy:8082")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8082"])
def test_a_foreign_origin_is_refused(origin: str) -> None:
    """Another site, a sandboxed frame, another port and another name of this machine are all foreign."""
    assert 403 == status(OPEN, "/warm", Origin=origin)


def test_its_own_origin_is_answered() -> None:
    """The page may use what it shows."""
    assert 0 == status(OPEN, "/warm", Origin="http://127.0.0.1:8082")


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", "Basic s3cret", "Bearer s3cret2", "Bearer s3cre\udce9"]
)
def test_a_wrong_token_is_refused(given: str) -> None:
    """Everything but exactly the token, whatever bytes it has."""
    assert 401 == status(GUARDED, Authorization=given)


def test_the_right_token_is_answered() -> None:
    """As a bearer token, the scheme's case apart."""
    assert 0 == status(GUARDED, Authorization="bearer s3cret")


def test_metrics_want_the_token_too() -> None:
    """What is counted is nobody else's business; health alone is open."""
    assert [401, 0, 0] == [status(GUARDED, path) for path in ("/metrics", "/healthz", "/readyz")]


def test_the_cookie_is_not_the_token() -> None:
    """It opens the door, but whoever reads it (every port of this host is sent it) has not got the token."""
    assert 0 == status(GUARDED, cookie=cookie_value("s3cret"))
    assert 401 == status(GUARDED, cookie="s3cret")
    assert "s3cret" not in cookie_value("s3cret")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_it_starts_on_loopback_without_a_token(host: str) -> None:
    """Only this machine can ask."""
    assert start_refusal(host, "") is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "", "cache.lan"])
def test_it_starts_elsewhere_only_with_a_token(host: str) -> None:
    """The refusal names both ways out."""
    refusal = start_refusal(host, "")
    assert refusal is not None
    assert "ADMIN_TOKEN" in refusal
    assert "ADMIN_HOST" in refusal
    assert start_refusal(host, "s3cret") is None
