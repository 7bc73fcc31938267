"""`pi-prefix-cache serve`: run the proxy until it is told to stop.

Starts whether or not llama-server is there, and says in one line each where it listens, what it will do and what it
found. The first SIGTERM or SIGINT stops accepting and lets running answers end within `DRAIN_TIMEOUT`; the second ends
at once. With `--model` the llama-server is one of its own (`managed`).
"""

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path

from proxy import logs
from proxy.commands import managed
from proxy.errors import PrefixCacheError, UpstreamIsSelf
from proxy.llama.client import ControlFailed
from proxy.llama.identity import process
from proxy.llama.upstream import Upstream, is_loopback, is_self
from proxy.serving import notify
from proxy.serving.app import Proxy
from proxy.settings import Settings, load

log = logs.get_logger()
AT_ONCE = 130
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


def serve(argv: Sequence[str]) -> int:
    """Run; returns the exit code."""
    own, flags = managed.without_dashes(argv)
    settings, warnings = load(own)
    logs.configure(settings.log_format, settings.log_level)
    for warning in warnings:
        log.warning("setting", line=warning)
    settings, server = managed.planned(settings, flags)
    hint = container_hint(Upstream.parse(settings.base_url), any(Path(mark).exists() for mark in CONTAINER_MARKS))
    refuse_self(settings, hint)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(settings, hint, server))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415  (not on every platform)
    except ImportError:
        return None
    return uvloop.new_event_loop


def refuse_self(settings: Settings, hint: str = "") -> None:
    """Raise UpstreamIsSelf where we would forward to an address of our own."""
    upstream = Upstream.parse(settings.base_url)
    if is_self(upstream, settings.host, settings.port):
        ours = "this proxy listens itself"
    elif settings.admin_port and is_self(upstream, settings.admin_host, settings.admin_port):
        ours = "the status page of this proxy is"
    else:
        return
    raise UpstreamIsSelf(f"BASE_URL {settings.base_url} is where {ours}; give llama-server's address{hint}")


async def _run(settings: Settings, hint: str, server: managed.Managed | None) -> int:
    told = _told_to_stop()
    proxy = Proxy(settings)
    try:
        await proxy.start()
    except OSError as error:
        await proxy.close()
        raise PrefixCacheError(cannot_listen(error, settings.host, settings.port)) from error
    meanwhile = [asyncio.create_task(notify.stay_alive())]
    async with AsyncExitStack() as ending:  # from the last line to the first, whatever fails on the way
        ending.callback(log.info, "stopped")
        if server is not None:
            ending.push_async_callback(server.stop)
        ending.callback(lambda: [task.cancel() for task in meanwhile])
        ending.push_async_callback(proxy.close, settings.drain_timeout)
        _say_what_it_will_do(proxy, settings)
        if server is not None:
            server.start()
        else:
            meanwhile.append(asyncio.create_task(_say_what_is_there(proxy, hint)))
        notify.tell("READY=1", f"STATUS={_where(proxy, settings)}")
        await told.wait()
        notify.tell("STOPPING=1", "STATUS=running answers may end")
        log.info("stopping", line=f"stopping: running answers have {settings.drain_timeout:g} s")
    return 0


def _where(proxy: Proxy, settings: Settings) -> str:
    return f"listening on http://{settings.host}:{proxy.port}/v1, upstream {proxy.upstream.address}"


def _say_what_it_will_do(proxy: Proxy, settings: Settings) -> None:
    log.info("listening", line=_where(proxy, settings), host=settings.host, port=proxy.port)
    if proxy.admin.port:
        page = f"status page and metrics on http://{settings.admin_host}:{proxy.admin.port}/"
        log.info("admin", line=page, host=settings.admin_host, port=proxy.admin.port)
    log.info("intent", line=intent(settings), persist=settings.persist, observe_only=settings.observe_only)


def _told_to_stop() -> asyncio.Event:
    """Set by the first signal; the second one ends the process."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def hear() -> None:
        if told.is_set():
            sys.stderr.flush()
            os._exit(AT_ONCE)
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear)
    return told


async def _say_what_is_there(proxy: Proxy, hint: str) -> None:
    """Look at the server once; the engine meets it by itself, now or when it comes."""
    engine = proxy.engines.first
    try:
        told = process(await engine.model.client.props(engine.lifecycle.auth))
    except ControlFailed as error:
        words = nothing_useful(proxy.upstream.address, error, hint)
        log.warning("upstream", line=words, status=error.code)
    else:
        name = "several models" if told.is_router else Path(told.model_path).name or "no model that it names"
        log.info("upstream", line=f"found llama-server {told.build or 'of unknown build'} with {name}")


def intent(settings: Settings) -> str:
    """What the proxy will do, in one line."""
    if settings.observe_only:
        return "observing only: requests are explained, nothing is prepared or saved"
    what = "prefixes are prepared in " + ("any slot" if settings.slot == "auto" else f"slot {settings.slot} only")
    models = f" for {', '.join(settings.models)}" if settings.models else ""
    if not settings.persist:
        return f"{what}{models}, and not saved (PERSIST=1 saves them)"
    return f"{what}{models}, and saved in {settings.slot_dir or 'a directory that is not seen from here'}"


def nothing_useful(address: str, error: ControlFailed, hint: str = "") -> str:
    """Why the server is of no use yet, and what becomes of requests meanwhile."""
    if error.is_timeout:
        return f"{address} takes longer than CONTROL_TIMEOUT to answer; requests pass, unprepared until it does"
    match error.code:
        case 0:
            return f"nothing answers at {address} yet: requests get a 502 until llama-server does{hint}"
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return f"llama-server at {address} is loading its model"
        case HTTPStatus.UNAUTHORIZED:
            return f"llama-server at {address} wants a key: clients bring theirs; API_KEY is for work nobody asked for"
        case status:
            return f"{address} answers /props with HTTP {status:d}: is it llama-server? Requests pass, unprepared"


def cannot_listen(error: OSError, host: str, port: int) -> str:
    """Why an address can't be listened on, and what to change."""
    where = f"can't listen on {host}:{port}: "
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{where}this machine has no such address; choose another --host"
    if error.errno == errno.EADDRINUSE:
        return f"{where}another program does (a second proxy?); end that one or choose another --port"
    if error.errno == errno.EACCES:
        return f"{where}not permitted (ports below 1024 are for root); choose another --port"
    return f"{where}{error.strerror or error}; choose another --host or --port"


def container_hint(upstream: Upstream, is_container: bool) -> str:
    """What is nearly always wrong with a loopback address inside a container."""
    if not (is_container and is_loopback(upstream.host)):
        return ""
    return (
        f" (inside a container {upstream.host} is the container itself: name the server's service,"
        " or host.docker.internal for one on the host)"
    )
