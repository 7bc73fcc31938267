"""Asking the proxy that runs: over its admin listener, where the settings say that it is.

Owns who is there: our proxy, nobody, or a stranger on that port. Synchronous; nothing of a proxy's runs here.
"""

import http.client
import os
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson

from proxy.errors import PrefixCacheError
from proxy.settings import Settings

QUICK_S = 10.0
ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (asked, not bound)


class NobodyThereError(PrefixCacheError):
    """No proxy answers where the settings say that one does."""


class StrangerError(PrefixCacheError):
    """Something answers there that is no proxy of ours, or that doesn't let us in."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the listener."""

    status: int
    json: Any

    @property
    def error(self) -> str:
        """Why something was not done."""
        return str(self.json.get("error", "")) if isinstance(self.json, dict) else ""


@dataclass(frozen=True, slots=True)
class AdminClient:
    """One proxy's admin listener."""

    host: str
    port: int
    token: str

    @classmethod
    def of(cls, settings: Settings) -> "AdminClient | None":
        """Where the settings say that it listens; None where they say that it doesn't, or can't say where."""
        if not settings.admin_port:
            return None
        host = ANYWHERE.get(settings.admin_host, settings.admin_host)
        return cls(host, settings.admin_port, settings.admin_token.get_secret_value())

    @property
    def address(self) -> str:
        """Where it is, as a person writes it."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def ask(self, path: str, method: str = "GET", timeout_s: float = QUICK_S) -> Answer:
        """Ask; raises where nobody answers, or nobody of ours."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            status, body = answer.status, answer.read()
        except TimeoutError as error:
            raise StrangerError(f"{self.address} does not answer within {timeout_s:g} s") from error
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise NobodyThereError(f"no proxy runs at {self.address} (ADMIN_HOST, ADMIN_PORT)") from error
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            words = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
            raise StrangerError(f"{self.address} can't be asked ({words}); see ADMIN_HOST and ADMIN_PORT") from error
        finally:
            connection.close()
        return self._understood(status, body)

    def _understood(self, status: int, body: bytes) -> Answer:
        try:
            told = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise StrangerError(f"what answers at {self.address} is no pi-prefix-cache; see ADMIN_PORT") from error
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            why = told.get("error", "") if isinstance(told, dict) else ""
            raise StrangerError(f"the proxy at {self.address} refuses: {why}")
        return Answer(status, told)

    def status(self) -> dict[str, Any]:
        """All that `/status` tells."""
        answer = self.ask("/status")
        told = answer.json
        if answer.status != HTTPStatus.OK or not isinstance(told, dict) or not _has(told, ("version", "proxy", "disk")):
            raise StrangerError(f"what answers at {self.address} is no pi-prefix-cache; see ADMIN_PORT")
        return told


def _has(told: dict[str, Any], names: Sequence[str]) -> bool:
    return all(name in told for name in names)


def running_proxy(settings: Settings) -> AdminClient:
    """The proxy that runs; raises where there is none."""
    client = AdminClient.of(settings)
    if client is None:
        raise NobodyThereError("ADMIN_PORT is empty or 0: there is no telling where the running proxy can be asked")
    client.status()
    return client
