"""Where the server is: a name that leads elsewhere after a while, and addresses of the sixth version."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.faults.pretender import TEXT, Pretender
from tests.serving.running import Running, running, sessions
from tests.wire import recording

NAME = "llama.test"


Places = list[tuple[str, int]]


def resolving(places: Callable[[], Places]) -> Callable[..., Awaitable[Any]]:
    """Name resolution in which one name leads to these places."""
    real = asyncio.get_running_loop().getaddrinfo

    async def getaddrinfo(host: Any, *others: Any, **more: Any) -> Any:
        if host != NAME:
            return await real(host, *others, **more)
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (*place, 0, 0))
            if ":" in place[0]
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", place)
            for place in places()
        ]

    return getaddrinfo


async def test_a_name_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that comes back at another address under the same name is found by the very next request."""
    places: Places = []
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolving(lambda: places[-1:]))
    one, *others = sessions("/a", "/b", "/c", tokens=400)
    first, second = Pretender(), Pretender()
    async with recording(first.script) as here:
        places.append(("127.0.0.1", here.port))
        async with running(f"http://{NAME}:{here.port}/v1") as proxied:
            answers = [await proxied.ask(one)]
            assert 200 == await look(proxied)
            await here.end()
            asked = len(first.calls)
            async with recording(second.script, host="127.0.0.2") as there:
                places.append(("127.0.0.2", there.port))
                assert 200 == await look(proxied)
                answers += [await proxied.ask(body) for body in others]
    assert [(200, TEXT)] * 3 == [(answer.status, answer.text) for answer in answers]
    # The old one would still answer.
    assert asked == len(first.calls)
    assert (1, 2) == (first.calls.count("chat"), second.calls.count("chat"))
    # Our own questions find it, too.
    assert {"props", "slots"} <= {*second.calls}


async def look(proxied: Running) -> int:
    """A request that may take a connection used before; its status."""
    async with proxied.client.get(f"{proxied.base_url}/models") as models:
        return models.status


@pytest.mark.parametrize("host", ["[::1]", NAME])
async def test_addresses_of_the_sixth_version(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """By number, or by a name that has one of each kind, of which only that one answers."""
    server = Pretender()
    async with recording(server.script, host="::1") as upstream:
        places = [("127.0.0.1", upstream.port), ("::1", upstream.port)]
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolving(lambda: places))
        async with running(f"http://{host}:{upstream.port}/v1", host="::1") as proxied:
            async with proxied.client.get(f"http://[::1]:{proxied.proxy.port}/v1/models") as models:
                assert 200 == models.status
            assert [f"{host}:{upstream.port}".encode()] == upstream.requests[-1].values(b"host")
