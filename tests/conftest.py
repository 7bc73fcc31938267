"""What every test may ask for: a real llama-server, and the certainty that nothing in `proxy` blocks the event loop.

A test that needs a llama-server takes `start_llama` (or any fixture built on it). It is marked `llama` by that alone,
fails with how to get a server when there is none, and is left out only where NO_LLAMA_SERVER=1 says so.
"""

import os
import traceback
from collections.abc import Iterator
from typing import Any, Protocol

import blockbuster.blockbuster
import hypothesis
import pytest

import proxy.demo
from proxy.demo.models import Kind, model_path
from proxy.demo.servers import LlamaServer, NoServerError, ServerBinary, find_server

# How long one example takes says more of what else the machine does.
hypothesis.settings.register_profile("busy machine", deadline=None)
hypothesis.settings.load_profile("busy machine")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "llama: needs a real llama-server (added by itself to users of start_llama)")
    config.addinivalue_line("markers", "long: more of the same, by name only (make test-long)")
    config.addinivalue_line("markers", "may_block: expects blocking calls on the event loop and looks at them itself")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "llama_binary" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.llama)
    if os.environ.get("NO_LLAMA_SERVER") == "1":
        left_out = [item for item in items if item.get_closest_marker("llama")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


# --- a real llama-server ---------------------------------------------------------------------------------------------


class StartLlama(Protocol):
    """Starts a llama-server that ends with the test; flags as on its command line."""

    def __call__(
        self,
        kind: Kind = "dense",
        *flags: str,
        tools_last: bool = False,
        merge_trap: bool = False,
        seed: int = 7,
        ctx: int = 16384,
        port: int | None = None,
    ) -> LlamaServer: ...


@pytest.fixture(scope="session")
def llama_binary() -> ServerBinary:
    """The llama-server of this run."""
    try:
        return find_server()
    except NoServerError as missing:
        pytest.fail(f"{missing}\n  - or leave these tests out: NO_LLAMA_SERVER=1", pytrace=False)


@pytest.fixture
def start_llama(llama_binary: ServerBinary) -> Iterator[StartLlama]:
    """Starter of real llama-servers, each on its own free port, all ended after the test."""
    servers: list[LlamaServer] = []

    def start(
        kind: Kind = "dense", *flags: str, ctx: int = 16384, port: int | None = None, **traits: Any
    ) -> LlamaServer:
        server = LlamaServer(model_path(kind, **traits), *flags, ctx=ctx, port=port, binary=llama_binary)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.close()


# --- no blocking call on the event loop ------------------------------------------------------------------------------


class _Seen(blockbuster.blockbuster.BlockingError):
    """The error of a blocking call, noted too: code that survives every error would survive this one unseen."""

    noted: list[str] = []  # noqa: RUF012 - one list for the run is the point

    def __init__(self, function: str) -> None:
        super().__init__(function)
        frames = [frame for frame in traceback.extract_stack() if "/blockbuster/" not in frame.filename]
        self.noted.append(f"{function} on the event loop\n" + "".join(traceback.format_list(frames[-6:])))


@pytest.fixture(scope="session", autouse=True)
def _blocking_calls_raise() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(blockbuster.blockbuster, "BlockingError", _Seen)
    # The demo's servers are started and ended by the tests themselves, synchronously.
    with blockbuster.blockbuster_ctx(proxy, excluded_modules=[proxy.demo]):
        yield
    patch.undo()


@pytest.fixture
def blocking_calls() -> list[str]:
    """The blocking calls noted since the test began."""
    return _Seen.noted


@pytest.fixture(autouse=True)
def _no_blocking_call(request: pytest.FixtureRequest) -> Iterator[None]:
    _Seen.noted.clear()
    yield
    noted, _Seen.noted[:] = list(_Seen.noted), []
    if noted and not request.node.get_closest_marker("may_block"):
        pytest.fail("blocking call: " + "\n".join(noted), pytrace=False)
