"""The door between proxy and server: passes every byte as it comes; can be shut, and can cut what goes through it.

A connection is cut the way a network does it: reset, in the middle of whatever it was.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from proxy.demo.processes import free_port
from tests.wire import reset

PIECE = 1 << 16
CUT_WITHIN = 3000
"""Bytes of an answer that get through at most before it is cut: less than most have."""


class Door:
    """Listens on a port of its own, in front of a server's."""

    def __init__(self, behind: int, choose: random.Random) -> None:
        self.port = free_port()
        self.is_cutting = False
        self._behind, self._choose = behind, choose
        self._listening: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def open(self) -> None:
        """Let everybody through; a second time does nothing."""
        if self._listening is None:
            self._listening = await asyncio.start_server(self._came, "127.0.0.1", self.port)

    def shut(self) -> None:
        """Refuse whoever comes; who is inside stays."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def cut_some(self) -> None:
        """Reset about half of the connections that are open."""
        for writer in [*self._open.values()]:
            if self._choose.random() < 0.5:
                reset(writer)

    async def end(self) -> None:
        """Shut, and let go of all who are inside."""
        self.shut()
        for task in [*self._open]:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._pass(reader, writer))
        self._open[task] = writer
        task.add_done_callback(self._open.pop)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        except OSError:
            reset(writer)
            return
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(_copy(reader, to_writer))
                ways.create_task(_copy(to_reader, writer, self._choose.randrange(CUT_WITHIN), self))
        except* (OSError, _Cut):
            reset(writer)
            reset(to_writer)
        finally:
            writer.close()
            to_writer.close()


class _Cut(Exception):  # noqa: N818
    """Enough has gone through."""


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int = 0, cutter: Door | None = None
) -> None:
    """One direction, to its end; while the door cuts, no more than the budget."""
    while data := await reader.read(PIECE):
        is_cut = cutter is not None and cutter.is_cutting and len(data) > budget
        budget -= len(data)
        writer.write(data[: max(0, budget + len(data))] if is_cut else data)
        await writer.drain()
        if is_cut:
            raise _Cut
    with suppress(OSError):
        writer.write_eof()


@asynccontextmanager
async def door(behind: int, choose: random.Random) -> AsyncIterator[Door]:
    """An open door while the block runs."""
    made = Door(behind, choose)
    await made.open()
    try:
        yield made
    finally:
        await made.end()
