"""The whole proxy with its admin listener, in this process, and what a person or a tool asks of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.demo.servers import LlamaServer
from proxy.serving.app import Proxy
from proxy.settings import Settings
from tests.serving.running import Recorder, Running, talking


@dataclass(frozen=True, slots=True)
class Told:
    """One answer of the admin listener."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return orjson.loads(self.text)


@dataclass(slots=True)
class Administered(Running):
    """A proxy that runs with its admin listener."""

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.admin.port}"

    async def look(self, path: str, method: str = "GET", **headers: str) -> Told:
        """Ask the admin listener; header names are written with underscores."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"{self.admin_url}{path}"
        async with self.client.request(method, url, headers=given, allow_redirects=False) as answer:
            return Told(answer.status, await answer.text(), dict(answer.headers))


@asynccontextmanager
async def administered(server: LlamaServer | str, **settings: Any) -> AsyncIterator[Administered]:
    """The proxy in front of a server, with an admin listener, while the block runs."""
    base_url = server if isinstance(server, str) else server.base_url
    with TemporaryDirectory() as home:
        own = {"base_url": base_url, "port": 0, "admin_port": 0, "dir": Path(home) / "index", **settings}
        async with _administered(Settings(_env_file=None, **own)) as proxied:  # type: ignore[call-arg]
            yield proxied


@asynccontextmanager
async def _administered(settings: Settings) -> AsyncIterator[Administered]:
    proxy = Proxy(settings)
    heard = proxy.reporter = Recorder()
    try:
        await proxy.start()
        async with talking() as client:
            yield Administered(proxy, heard, client)
    finally:
        await proxy.close()
    if heard.bugs:
        raise heard.bugs[0]


def persisting(directory: Path) -> dict[str, Any]:
    """Settings that save below a directory, and `slots` in it for the server."""
    (directory / "slots").mkdir(exist_ok=True)
    return {"persist": True, "slot_dir": directory / "slots", "dir": directory / "index"}


@asynccontextmanager
async def answering(code: int, body: Any = None) -> AsyncIterator[str]:
    """A server that answers everything with this, at the yielded base URL."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({} if body is None else body, status=code)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        yield f"http://127.0.0.1:{server.port}/v1"
