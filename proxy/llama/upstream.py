"""Where the server is, and how a client's request target is spelled there.  Pure.

An OpenAI base URL ends in `/v1`, while llama-server's own paths (`/slots`, `/props`) stand beside it.  So a trailing
`/v1` is cut off what the user gave, the rest is the prefix, and everything is `prefix + path`, byte for byte.
"""

import ipaddress
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from yarl import URL

from proxy.errors import BadBaseUrl

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Upstream:
    """The server's address; `host` is without brackets, `prefix` is empty or begins with a slash and ends without."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def parse(cls, base_url: str) -> Self:
        """Read `h`, `h/v1`, `https://h:8443/llm/v1/` and the like; raises BadBaseUrl."""
        text = base_url.strip()
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            scheme, host, port = parts.scheme.lower(), parts.hostname, parts.port
        except ValueError as error:
            raise BadBaseUrl(f"the base URL is not a URL: {error}") from error
        if scheme not in DEFAULT_PORTS:
            raise BadBaseUrl(f"the base URL must begin with http:// or https://, not {scheme}://")
        if not host or any(c.isspace() for c in text):
            raise BadBaseUrl("the base URL names no host")
        if parts.username is not None or parts.query or parts.fragment:
            raise BadBaseUrl("the base URL takes no user, password, query or fragment: only host, port and path")
        return cls(scheme, host, port or DEFAULT_PORTS[scheme], _prefix(parts.path))

    @property
    def authority(self) -> str:
        """The value of the `Host` header: brackets around IPv6, no default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def address(self) -> str:
        """The server as a person would type it, for messages."""
        return f"{self.scheme}://{self.authority}{self.prefix}"

    def target(self, raw_path: str) -> str:
        """The URL for a raw path and query, as the client spelled them."""
        return f"{self.scheme}://{self.authority}{self.prefix}{raw_path}"

    def control(self, path: str) -> str:
        """The URL for a call of our own, such as `/slots`."""
        return self.target(path)

    def url(self, raw_path: str) -> URL:
        """`target` as aiohttp takes it; the query stays inside the path, so that yarl does not drop an empty one."""
        return URL.build(scheme=self.scheme, authority=self.authority, path=f"{self.prefix}{raw_path}", encoded=True)


def _prefix(path: str) -> str:
    path = path.rstrip("/")
    return path.removesuffix("/v1") if path.endswith("/v1") else path


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine."""
    if host.lower().rstrip(".") in {"localhost", "ip6-localhost"}:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_self(upstream: Upstream, listen_host: str, listen_port: int) -> bool:
    """Whether the upstream is surely our own address; this machine's other names are found when connecting."""
    if upstream.port != listen_port:
        return False
    wildcard = listen_host in {"", "0.0.0.0", "::", "*"}  # noqa: S104  (compared, not bound)
    if upstream.host.lower() == listen_host.lower() or upstream.host in {"0.0.0.0", "::"}:  # noqa: S104
        return True
    return is_loopback(upstream.host) and (wildcard or is_loopback(listen_host))
