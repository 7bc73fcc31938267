"""Tells systemd how we are: ready, alive, stopping. Does nothing where no systemd listens (`NOTIFY_SOCKET` is unset).

One datagram of `NAME=value` lines each time. Never waits and never fails: a service manager that can't hear us mustn't
cost anybody an answer.
"""

import asyncio
import os
import socket
from contextlib import suppress

MICROSECONDS = 1_000_000


def tell(*lines: str) -> None:
    """Send one message, such as `READY=1`."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return
    # A leading @ stands for the zero byte with which an abstract address begins.
    address = f"\0{where[1:]}" if where.startswith("@") else where
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.setblocking(False)
        line.sendto("\n".join(lines).encode(), address)


def watchdog_s() -> float | None:
    """Seconds after which silence counts as hanging; None where nobody watches this process."""
    interval = os.environ.get("WATCHDOG_USEC", "")
    is_ours = os.environ.get("WATCHDOG_PID") in {None, "", str(os.getpid())}
    return int(interval) / MICROSECONDS if is_ours and interval.isdecimal() and int(interval) else None


async def stay_alive() -> None:
    """Say that we live, twice in each interval; from the event loop, so that one that hangs falls silent."""
    if (within_s := watchdog_s()) is None:
        return
    while True:
        tell("WATCHDOG=1")
        await asyncio.sleep(within_s / 2)
