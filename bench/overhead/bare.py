"""The floor: what aiohttp costs that forwards and does nothing else. `python -m bench.overhead.bare PORT UPSTREAM`."""

import sys

import aiohttp
import uvloop
from aiohttp import web

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}


async def forward(request: web.Request) -> web.StreamResponse:
    session: aiohttp.ClientSession = request.app["session"]
    sent = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
    url, data = sys.argv[2] + request.raw_path, await request.read() if request.can_read_body else None
    async with session.request(request.method, url, headers=sent, data=data) as told:
        got = {name: value for name, value in told.headers.items() if name.lower() not in HOP_BY_HOP}
        passing = web.StreamResponse(status=told.status, headers=got)
        await passing.prepare(request)
        async for piece in told.content.iter_any():
            await passing.write(piece)
        return passing


async def application() -> web.Application:
    app = web.Application(client_max_size=1 << 30)
    app["session"] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
    app.router.add_route("*", "/{path:.*}", forward)
    return app


if __name__ == "__main__":
    loop = uvloop.new_event_loop()
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None, loop=loop)
