"""Admission and entry: how many requests of ours are in the server, and whose turn it is to prepare a slot.

`Gate` lets in as many as the server has slots, first come first served; the rest wait here, where a client that leaves
is simply dropped, and not in the server's queue. `Turn` is held by one request from the first step of its plan until
the server has begun it, so that no other takes the slot that was prepared. Both are synchronous at heart: a waiter is a
future, handed on by whoever leaves.
"""

import asyncio
from collections import deque
from contextlib import suppress


class Gate:
    """A counting gate; unlimited until the number of slots is known."""

    def __init__(self) -> None:
        self._size = 0
        self._inside = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def __repr__(self) -> str:
        return f"<Gate {self._inside}/{self._size or '∞'} waiting={len(self._waiting)}>"

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def inside(self) -> int:
        """How many slots are taken by requests of ours."""
        return self._inside

    def resize(self, size: int) -> None:
        """The server has this many slots."""
        self._size = size
        self._let_in()

    def enter_now(self, places: int = 1) -> int:
        """Go in if nobody has to be waited for; returns how many places were taken, 0 for none."""
        places = self._most(places)
        if self._waiting or not self._fits(places):
            return 0
        self._inside += places
        return places

    async def enter(self, places: int = 1) -> int:
        """Wait for a turn; returns how many places were taken, to be given to `leave`."""
        if taken := self.enter_now(places):
            return taken
        places = self._most(places)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (turn, places)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(places)
            else:
                with suppress(ValueError):  # passed over already
                    self._waiting.remove(entry)
                self._let_in()
            raise
        return places

    def leave(self, places: int) -> None:
        """Make room; the next ones go in."""
        self._inside -= places
        self._let_in()

    def _most(self, places: int) -> int:
        return min(places, self._size) if self._size else places

    def _fits(self, places: int) -> bool:
        # An empty server takes anything: one that asks for more places than there are would wait for ever.
        return not self._size or not self._inside or self._inside + places <= self._size

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            turn, places = self._waiting.popleft()
            if not turn.done():
                self._inside += places
                turn.set_result(None)


class Turn:
    """One holder at a time, in order of arrival; may be handed to another holder."""

    def __init__(self) -> None:
        self._gate = Gate()
        self._gate.resize(1)
        self._holder: object | None = None

    @property
    def is_free(self) -> bool:
        """Whether nobody prepares anything."""
        return self._holder is None and not self._gate.inside

    async def take(self, holder: object) -> None:
        """Wait for the turn."""
        await self._gate.enter()
        self._holder = holder

    def hand_over(self, holder: object, to: object) -> None:
        """Another one goes on with it."""
        if self._holder is holder:
            self._holder = to

    def give_back(self, holder: object) -> None:
        """End the turn; does nothing if `holder` does not have it."""
        if self._holder is holder:
            self._holder = None
            self._gate.leave(1)
