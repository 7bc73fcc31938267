"""Whatever llama-server can be asked it answers through the proxy as it does directly."""

import asyncio

import pytest

from tests.conformance.conftest import Pairs
from tests.conformance.exchange import Ask, ask
from tests.conformance.table import AGENT, CHAT, ROWS


@pytest.mark.parametrize(("kind", "what"), [pytest.param(kind, what, id=f"{kind}-{name}") for kind, name, what in ROWS])
async def test_the_answer_is_the_servers_own(pairs: Pairs, kind: str, what: Ask) -> None:
    """Status line, headers and body are equal, dates, ids and timings apart."""
    pair = pairs[kind]
    directly = await ask(pair.server.port, what)
    assert directly == await ask(pair.proxy.port, what)


@pytest.mark.parametrize("what", [Ask("/props"), Ask(CHAT, AGENT)], ids=lambda what: what.target)
async def test_a_server_that_sleeps(pairs: Pairs, what: Ask) -> None:
    """With an idle proxy before it it falls asleep, and what is asked of it then is answered as directly."""
    pair = pairs["sleepy"]
    told = []
    for port in (pair.server.port, pair.proxy.port):
        await asleep(pair.server.port)
        told.append(await ask(port, what))
    assert told[0] == told[1]


async def asleep(port: int) -> None:
    """Wait until the server sleeps; asking for that wakes nobody."""
    async with asyncio.timeout(10):
        while not (await ask(port, Ask("/props"))).body["is_sleeping"]:
            await asyncio.sleep(0.05)
