"""The soak itself: what stands between proxy and server, and the whole of it, shortly."""

import asyncio
import io
import random
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from bench.soak.door import CUT_WITHIN, door
from bench.soak.mix import Course, soak
from bench.soak.report import Table, write
from proxy.demo.servers import ServerBinary
from tests.wire import Message, Peer, client, recording

ASKED = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LONG = b"x" * (CUT_WITHIN + 1)
SHORT = Course(days=2, load_s=5.0, rest_s=2.0)
EVERYBODY = {"greeting", "new", "newcomer", "parent", "child", "pass-through", "slow reader", "slow writer", "leaver"}
EVERYBODY |= {"malformed", "admin"}


async def long_answer(peer: Peer, _: Message) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LONG) + LONG)


async def test_a_door_passes_every_byte_until_it_cuts_or_is_shut() -> None:
    """Cut: part of an answer, then a reset. Shut: refused. Open again: as before."""
    async with recording(long_answer) as server, door(server.port, random.Random(1)) as between:
        for _ in range(2):
            async with client(between.port) as visitor:
                assert LONG == (await visitor.ask(ASKED)).body
            between.is_cutting = True
            async with client(between.port) as visitor:
                with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                    await visitor.ask(ASKED)
            between.is_cutting = False
            between.shut()
            with pytest.raises(ConnectionRefusedError):
                await client(between.port).__aenter__()
            await between.open()


async def test_a_door_ends_what_its_client_or_server_ends() -> None:
    """In both directions: nobody stays connected to one who has gone."""
    came = asyncio.Event()

    async def script(peer: Peer, message: Message) -> None:
        came.set()
        if message.target == b"/dies":
            peer.reset()
        await peer.gone()

    async with recording(script) as server, door(server.port, random.Random(1)) as between:
        async with client(between.port) as visitor:
            await visitor.send(ASKED)
            await came.wait()
            visitor.reset()
            await server.peers[0].closed.wait()
        async with client(between.port) as visitor:
            await visitor.send(ASKED.replace(b" / ", b" /dies "))
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await visitor.answer()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)], ids=["dense", "hybrid"])
async def test_half_a_minute_of_everything(llama_binary: ServerBinary, tmp_path: Path, seed: int) -> None:
    """Every kind of client while the server suffers: nothing is wrong without a fault, nothing stays, nothing grows."""
    told = io.StringIO()
    table = Table(Console(file=told, width=160))
    outcome = await soak(seed, SHORT, 2, tmp_path, table.day)
    table.end(outcome)
    assert not outcome.has_failed, told.getvalue()
    asked = [day.tally.asked for day in outcome.days]
    assert EVERYBODY <= {kind for day in asked for kind in day}, told.getvalue()
    assert any(day.faults for day in outcome.days), told.getvalue()
    assert orjson.loads(write(outcome, {}, tmp_path).read_bytes())["days"][1]["rest"]["fds"]
