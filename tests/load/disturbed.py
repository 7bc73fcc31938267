"""Conversations of ours while a stranger uses the same server: the check that the short test and the long one share."""

import asyncio
import random
import time

from proxy.demo.servers import LlamaServer
from proxy.demo.sessions import next_turn
from tests.load.players import Asked, Player, furthest, play, put
from tests.load.quiet import at_rest, idle_server
from tests.load.stranger import Stranger
from tests.load.traces import BESIDE_OTHERS
from tests.serving.running import Running, ask_server, running, sessions, talking

PLAYERS = 2
PER_RESUME = 24


async def disturbed(server: LlamaServer, seconds: float, seed: int, **settings: object) -> list[str]:
    """Play beside a stranger for so long; returns what must not be."""
    choose = random.Random(seed)
    slots = len(await ask_server(server, "/slots"))
    async with running(server, **settings) as proxied:
        # What the server can do is found out before anybody disturbs.
        await proxied.ask(sessions("/p", tokens=600)[0])
        stranger = Stranger(server, slots, random.Random(choose.random()))
        disturbing = asyncio.create_task(stranger.live())
        players = [Player(random.Random(choose.random()), slots) for _ in range(PLAYERS)]
        until = time.monotonic() + seconds
        done = [one for day in await asyncio.gather(*(_until(proxied, p, until) for p in players)) for one in day]
        stranger.is_sent_away = True
        await disturbing
        await at_rest(proxied)
        await idle_server(server)
        wrong = await restored_belief(proxied)
    wrong += [f"{one.ask.kind}: {one.answer.status}" for one in done if one.answer.status != 200]
    if len(stranger.done) < len(done) / 4:
        wrong.append(f"hardly disturbed: {len(stranger.done)} times in {len(done)} requests")
    return wrong or await _compared(server, done)


async def _until(proxied: Running, player: Player, until: float) -> list[Asked]:
    done: list[Asked] = []
    while time.monotonic() < until:
        done += await play(proxied.client, proxied.base_url, player, 1)
    return done


async def restored_belief(proxied: Running) -> list[str]:
    """Two conversations that take turns, when the stranger has gone: from their second turn on all is as planned."""
    wrong, bodies = [], sessions("/p", "/q", tokens=600)
    before = [0] * len(bodies)
    for turn in range(4):
        for at, body in enumerate(bodies):
            answer = await proxied.ask(body)
            new = answer.prompt_tokens - before[at]
            if turn > 1 and answer.prefilled > new + PER_RESUME:
                how = f"{proxied.last.plan.source} {proxied.last.plan.reason}"
                wrong.append(f"turn {turn} with {new} new tokens prefilled {answer.prefilled}: {how}")
            before[at], bodies[at] = answer.prompt_tokens, next_turn(body, answer.text, "go on")
    return wrong


async def _compared(server: LlamaServer, done: list[Asked]) -> list[str]:
    server.restart()
    async with talking() as client:
        references = [await put(client, server.base_url, one.ask.as_told) for one in done]
    apart = furthest(done, references)
    return [f"an answer is {apart:.2g} from a quiet server's"] if apart > BESIDE_OTHERS else []
