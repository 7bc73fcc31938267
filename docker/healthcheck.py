"""Is the proxy in this container alive?  Exit status 0 or 1.

Asks the admin listener, which says so itself; where there is none, a connection to the main port must do: the main port
has not one path of its own, and `/health` there is the server's. Whether llama-server is up is not the question, or a
proxy that waits for it would be restarted for ever.

Reads the environment, as the image sets the proxy up by it. Needs nothing but Python itself: it runs every 30 s.
"""

import http.client
import os
import socket
import sys
from contextlib import suppress

TIMEOUT_S = 2.0
ANY = {"", "0.0.0.0", "::"}  # noqa: S104  (compared, not bound)
OK = 200


def setting(name: str, default: str) -> str:
    """One setting of the proxy; an empty one stays empty."""
    return os.environ.get(f"PI_PREFIX_CACHE_{name}", default).strip()


def reachable(host: str) -> str:
    """An address at which a listener on `host` can be reached from here."""
    return "127.0.0.1" if host in ANY else host


def admin_says() -> bool | None:
    """What the admin listener answers; None where nobody listens: it is off, or could not start."""
    if not (port := setting("ADMIN_PORT", "8082")):
        return None
    admin = http.client.HTTPConnection(reachable(setting("ADMIN_HOST", "127.0.0.1")), int(port), timeout=TIMEOUT_S)
    with suppress(ConnectionRefusedError):
        admin.request("GET", "/healthz")
        return admin.getresponse().status == OK
    return None


def takes_connections() -> bool:
    """Whether clients can connect."""
    where = reachable(setting("HOST", "127.0.0.1")), int(setting("PORT", "") or "8081")
    with socket.create_connection(where, TIMEOUT_S):
        return True


def is_alive() -> bool:
    """Whether the proxy answers, or at least takes connections."""
    try:
        said = admin_says()
        return takes_connections() if said is None else said
    except (OSError, http.client.HTTPException, ValueError):
        return False


if __name__ == "__main__":
    sys.exit(0 if is_alive() else 1)
