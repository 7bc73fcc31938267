"""What clients do, as traces: the same requests in the same order, whoever answers them.

Owns: the words that are said and when. Each assistant message is the answer that came, sent back as agents do. Refuses:
to know who answers and what it cost (`runs`). Deterministic: all texts come from seeds, and all requests ask for the
likeliest token; the answers of the tiny models still differ by some letters with the shape of a batch, so that what is
compared between two runs is never the prompt tokens themselves but what exceeds each run's own ideal.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from proxy.demo.sessions import Body, session
from proxy.demo.vocabulary import WORDS

CHILDREN = 3
NEW_SESSIONS = 5
ANSWER_TOKENS = 12


class World(Protocol):
    """Who answers."""

    async def ask(self, name: str, body: Body, began: asyncio.Event | None = None) -> str:
        """The answer's text; empty where none came. `began` is set at its first token, or when there will be none."""

    async def restart(self) -> None:
        """Kill the server and start it again."""


@dataclass(frozen=True, slots=True)
class Size:
    """How long a trace is."""

    prefix_tokens: int
    results: tuple[int, ...]
    """Tokens of the tool result before each later turn."""
    long_answer: int
    """Tokens that a parent generates while its sub-agents start."""


FULL = Size(6000, (50, 150, 400, 800, 1400, 2200, 3000), 400)
SHORT = Size(2000, (50, 150, 400, 800), 150)


def words(count: int, seed: str) -> str:
    """Some `count` tokens of text."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


@dataclass(slots=True)
class Conversation:
    """One conversation of a client."""

    world: World
    name: str
    body: Body
    history: list[list[dict[str, Any]]] = field(default_factory=list)
    """The messages before each turn, to go back to."""

    async def turn(self, says: str = "", role: str = "user", began: asyncio.Event | None = None, **more: Any) -> None:
        """Say something, unless the first words are said already, and keep the answer."""
        if says:
            self.body["messages"] = [*self.body["messages"], _said(role, says)]
        self.history.append(self.body["messages"])
        answer = await self.world.ask(self.name, {**self.body, **more}, began)
        self.body["messages"] = [*self.body["messages"], {"role": "assistant", "content": answer}]


def _said(role: str, text: str) -> dict[str, Any]:
    told = {"role": role, "content": [{"type": "text", "text": text}]}
    return told | ({"tool_call_id": "call_1"} if role == "tool" else {})


def agent(world: World, name: str, size: Size, *, user: str = "", seed: int = 1, folder: str = "") -> Conversation:
    """A session of a coding agent that has not asked yet."""
    body = session(
        folder or f"/home/me/{name}",
        prefix_tokens=size.prefix_tokens,
        user=user or words(30, f"{name} asks"),
        seed=seed,
        max_tokens=ANSWER_TOKENS,
    )
    return Conversation(world, name, {**body, "temperature": 0})


def side_request(world: World, name: str, text: str, system: str = "give this a short title.") -> Conversation:
    """What agents ask besides: short instructions, no tools."""
    body = session("/", user=text, max_tokens=ANSWER_TOKENS) | {"temperature": 0}
    body["messages"] = [{"role": "system", "content": system}, body["messages"][1]]
    del body["tools"]
    return Conversation(world, name, body)


async def taking_turns(world: World, size: Size, *, restart_after: int = 0) -> None:
    """(a) Two sessions of one install take turns, their tool results grow."""
    pair = [agent(world, name, size) for name in ("shop", "blog")]
    for number, tokens in enumerate((0, *size.results)):
        for one in pair:
            await one.turn(words(tokens, f"{one.name} {number}"), "tool")
        if number + 1 == restart_after:
            await world.restart()


async def new_sessions(world: World, size: Size) -> None:
    """(b) Five sessions, one after the other, in as many folders."""
    for name in ("shop", "blog", "notes", "attic", "tools")[:NEW_SESSIONS]:
        await agent(world, name, size, user=words(120, f"{name} asks")).turn()


async def sub_agents(world: World, size: Size, *, folder: str = "") -> None:
    """(c) A parent starts three sub-agents, in folders of their own, while it still talks; then it goes on."""
    parent = agent(world, "parent", size)
    await parent.turn()
    await parent.turn(words(size.results[1], "parent goes on"), "tool")
    began = asyncio.Event()
    talking = asyncio.create_task(
        parent.turn(words(60, "parent delegates"), began=began, max_completion_tokens=size.long_answer)
    )
    await began.wait()
    await asyncio.gather(*(_child(world, size, f"child{i}", folder) for i in range(CHILDREN)))
    await talking
    for tokens in size.results[:2]:
        await parent.turn(words(tokens, f"parent reads {tokens}"), "tool")


async def sub_agents_at_home(world: World, size: Size) -> None:
    """(h) The same, in the parent's folder: what they share reaches beyond what all sessions of an install share."""
    await sub_agents(world, size, folder="/home/me/parent")


async def _child(world: World, size: Size, name: str, folder: str) -> None:
    child = agent(world, name, size, folder=folder)
    await child.turn()
    for tokens in size.results[:3]:
        await child.turn(words(tokens, f"{name} {tokens}"), "tool")


async def side_requests(world: World, size: Size) -> None:
    """(d) After each turn of the main session a short request without tools."""
    main = agent(world, "main", size)
    for number, tokens in enumerate((0, *size.results)):
        await main.turn(words(tokens, f"main {number}"), "tool")
        await side_request(world, f"side{number}", words(150, f"side {number}")).turn()


async def restarted(world: World, size: Size) -> None:
    """(e) The server is killed in the middle of (a)."""
    await taking_turns(world, size, restart_after=(len(size.results) + 1) // 2)


async def compaction(world: World, size: Size) -> None:
    """(f) A conversation is summed up and goes on from the summary."""
    main = agent(world, "main", size)
    for number, tokens in enumerate((0, *size.results[:-2])):
        await main.turn(words(tokens, f"main {number}"), "tool")
    transcript = words(sum(size.results[:-2]), "transcript")
    await side_request(world, "summary", transcript, "sum up this conversation for another agent.").turn()
    main.body["messages"] = main.body["messages"][:1]
    for number, tokens in enumerate((300, *size.results[:2])):
        await main.turn(words(tokens, f"compacted {number}"))


async def edited(world: World, size: Size) -> None:
    """(g) An earlier message is edited, and the conversation goes on from there."""
    main = agent(world, "main", size)
    for number, tokens in enumerate((0, *size.results[:-1])):
        await main.turn(words(tokens, f"main {number}"), "tool")
    main.body["messages"] = main.history[2][:-1]
    for number, tokens in enumerate(size.results[1:4]):
        await main.turn(words(tokens, f"edited {number}"), "tool")


Trace = Callable[[World, Size], Awaitable[None]]

TRACES: dict[str, Trace] = {
    "a": taking_turns,
    "b": new_sessions,
    "c": sub_agents,
    "d": side_requests,
    "e": restarted,
    "f": compaction,
    "g": edited,
    "h": sub_agents_at_home,
}
