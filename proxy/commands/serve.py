"""`pi-prefix-cache serve`: run the proxy until it is told to stop.

The first SIGTERM or SIGINT stops accepting and lets running answers end within `DRAIN_TIMEOUT`; the second ends at
once.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence

from proxy import logs
from proxy.errors import PrefixCacheError, UpstreamIsSelf
from proxy.llama.upstream import Upstream, is_self
from proxy.serving.app import Proxy
from proxy.settings import Settings, load

log = logs.get_logger()
AT_ONCE = 130


def serve(argv: Sequence[str]) -> int:
    """Run; returns the exit code."""
    settings, warnings = load(argv)
    logs.configure(settings.log_format, settings.log_level)
    for warning in warnings:
        log.warning("setting", line=warning)
    if is_self(Upstream.parse(settings.base_url), settings.host, settings.port):
        raise UpstreamIsSelf(
            f"BASE_URL {settings.base_url} is where this proxy listens itself; give llama-server's address"
        )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(settings))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415  (not on every platform)
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(settings: Settings) -> int:
    proxy = Proxy(settings)
    try:
        await proxy.start()
    except OSError as error:
        raise PrefixCacheError(
            f"can't listen on {settings.host}:{settings.port}: {error.strerror}; choose another --port"
        ) from error
    where = f"{settings.host}:{proxy.port}"
    log.info(
        "listening",
        line=f"listening on http://{where}/v1, upstream {proxy.upstream.address}",
        host=settings.host,
        port=proxy.port,
    )
    await _told_to_stop()
    log.info("stopping", line=f"stopping: running answers have {settings.drain_timeout:g} s")
    await proxy.close(settings.drain_timeout)
    log.info("stopped")
    return 0


async def _told_to_stop() -> None:
    """Wait for the first signal; the second one ends the process."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def hear() -> None:
        if told.is_set():
            sys.stderr.flush()
            os._exit(AT_ONCE)
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear)
    await told.wait()
