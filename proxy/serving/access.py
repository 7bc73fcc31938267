"""Who may ask the admin listener: decisions over a request's Host, Origin and token. Pure.

1. A name that is not ours in `Host` is refused: a page of a stranger could have its own name point to this machine.
2. A foreign `Origin` is refused: a page of a stranger asks from the user's browser.
3. With a token set, it is asked for: as `Authorization: Bearer`, or as a cookie that is given out for `/?token=…`.
   The cookie holds a derived value, since cookies of one host go to all its ports.

Health needs none of it, metrics only the token: a scraper and a container's health check come under whatever name.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from proxy.llama.upstream import is_loopback

OPEN = frozenset({"/healthz", "/readyz"})
ANY_HOST = OPEN | {"/metrics"}
COOKIE = "pi_prefix_cache_admin"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Refused:
    """Why somebody may not."""

    status: HTTPStatus
    words: str


def start_refusal(host: str, token: str) -> str | None:
    """Why the listener must not start; None where it may."""
    if token or is_loopback(host):
        return None
    return (
        f"ADMIN_HOST={host or 'all addresses'} can be reached from other machines: "
        "set ADMIN_TOKEN, or leave ADMIN_HOST at 127.0.0.1"
    )


def cookie_value(token: str) -> str:
    """What the page's cookie holds."""
    return hmac.new(token.encode(), b"admin page", hashlib.sha256).hexdigest()


def is_token(given: str, token: str) -> bool:
    """Compared in a time that tells nothing."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode("utf-8", "surrogateescape"))


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one listener."""

    names: frozenset[str]
    """Under which it may be asked for, lower case, without port."""
    token: str = ""

    @classmethod
    def of(cls, host: str, allowed: Iterable[str], token: str) -> "Access":
        """The rules for an address to listen on."""
        given = {_name(one) for one in (*allowed, host)}
        return cls(frozenset(LOOPBACK_NAMES | given - {"", "0.0.0.0", "::"}), token)  # noqa: S104  (compared, not bound)

    def refuses(self, path: str, headers: Mapping[str, str], cookies: Mapping[str, str]) -> Refused | None:
        """Why this request is not answered."""
        if path not in ANY_HOST and _name(headers.get("Host", "")) not in self.names:
            return Refused(HTTPStatus.FORBIDDEN, "this name is not in ADMIN_ALLOWED_HOSTS")
        if path not in ANY_HOST and not _is_own(headers):
            return Refused(HTTPStatus.FORBIDDEN, "another site may not ask here")
        if path not in OPEN and not self._has_token(headers, cookies):
            return Refused(HTTPStatus.UNAUTHORIZED, "ADMIN_TOKEN is asked for: as a Bearer token, or open /?token=…")
        return None

    def _has_token(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> bool:
        if not self.token:
            return True
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and is_token(given.strip(), self.token):
            return True
        return is_token(cookies.get(COOKIE, ""), cookie_value(self.token))


def _is_own(headers: Mapping[str, str]) -> bool:
    """Whether a browser, if it is one, asks from a page of ours."""
    origin = headers.get("Origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("Host", "").lower()


def _name(host: str) -> str:
    """A Host header without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]
