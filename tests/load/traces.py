"""One random trace on a real server: played through the proxy, then put to a quiet server, then compared.

Owns what must be true of any trace. A seed decides the model, the flags, whether checkpoints are kept, how many clients
there are and what each of them asks.
"""

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.demo.models import Kind
from proxy.demo.servers import LlamaServer
from tests.load.players import Asked, Player, furthest, play, put
from tests.load.quiet import at_rest, disagreements, idle_server
from tests.serving.running import Answer, Running, running, talking

ALONE, BESIDE_OTHERS = 5e-4, 2e-2
PER_PREFIX, PER_RESUME = 8, 24
KINDS: tuple[Kind, ...] = ("dense", "hybrid")
FLAGS: dict[str, tuple[str, ...]] = {
    "one": ("-np", "1"),
    "default": (),
    "four": ("-np", "4", "--no-kv-unified"),
}
CONTEXT = 65536
SOLO_ASKS, CROWD_ASKS, CROWD = 10, 4, 3
CROWDED_EVERY = 3
EXACT = ("-fa", "off")
"""With flash attention rounding depends on how a prompt was cut into batches."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a seed stands for."""

    seed: int

    @property
    def kind(self) -> Kind:
        return KINDS[self.seed % 2]

    @property
    def flags(self) -> str:
        return list(FLAGS)[self.seed // 2 % 3]

    @property
    def persists(self) -> bool:
        return self.seed // 6 % 2 == 1

    @property
    def clients(self) -> int:
        return CROWD if random.Random(self.seed).randrange(CROWDED_EVERY) == 0 else 1

    @property
    def slots(self) -> int:
        return 1 if self.flags == "one" else 4

    def __str__(self) -> str:
        kept = "PERSIST=1" if self.persists else "PERSIST=0"
        return f"seed {self.seed}: {self.kind}, {self.flags}, {kept}, {self.clients} client(s)"


@dataclass(slots=True)
class Played:
    """What came of a trace."""

    setting: Setting
    done: list[Asked]
    references: list[Answer]
    warmed: int
    """Tokens prefilled by warm-ups."""
    n_warm_ups: int
    n_resumes: int
    log: list[str]
    complaints: list[str] = field(default_factory=list)

    def complain(self) -> None:
        """Note all that must not be."""
        bad = [f"{one.ask.kind}: status {one.answer.status}" for one in self.done if one.answer.status != 200]
        self.complaints += bad
        limit = ALONE if self.setting.clients == 1 else BESIDE_OTHERS
        if not bad and (apart := furthest(self.done, self.references)) > limit:
            self.complaints.append(f"answers are {apart:.2g} from those of a quiet server")
        if not bad and self.setting.clients == 1 and self.prefilled > self.directly + self.allowed:
            self.complaints.append(f"{self.prefilled} tokens prefilled, directly {self.directly}")

    @property
    def allowed(self) -> int:
        return PER_PREFIX * self.n_warm_ups + PER_RESUME * self.n_resumes

    @property
    def prefilled(self) -> int:
        return self.warmed + sum(figure(one.answer) for one in self.done)

    @property
    def directly(self) -> int:
        return sum(figure(answer) for answer in self.references)

    def __str__(self) -> str:
        lines = [f"{self.setting}; {'; '.join(self.complaints) or 'fine'}", *self.log]
        for one, reference in zip(self.done, self.references, strict=True):
            mine, theirs = one.answer.timings, reference.timings
            lines.append(
                f"  {one.ask.kind:5} talk {one.ask.talk}: {mine.get('prompt_n')} + {mine.get('cache_n')}"
                f" (directly {theirs.get('prompt_n')} + {theirs.get('cache_n')})"
            )
        return "\n".join(lines)


def figure(answer: Answer) -> int:
    return int(answer.timings.get("prompt_n", 0))


async def trace(server: LlamaServer, setting: Setting, home: Path) -> Played:
    """Play it and compare; the server runs with the setting's flags, and is started anew in between."""
    persist: dict[str, Any] = {"dir": home / "index"}
    if setting.persists:
        persist |= {"persist": True, "slot_dir": home}
    async with running(server, **persist) as proxied:
        done = await _play(proxied, server, setting)
        await at_rest(proxied)
        slots = await idle_server(server)
        await proxied.proxy.engine.acquaintance.glance({}, is_needed=True)
        complaints = disagreements(proxied, slots)
        heard = proxied.heard
    server.restart()
    references = await _directly(server, done)
    warmed = heard.prefilled
    log = [f"  {t.plan.source} {t.plan.reason} {t.plan.steps} slot={t.slot} {t.figures}" for t in heard.requests]
    n_resumes = sum(t.plan.source == "resume" for t in heard.requests)
    played = Played(setting, done, references, warmed, len(heard.warm_ups), n_resumes, log, complaints)
    played.complain()
    return played


async def _play(proxied: Running, server: LlamaServer, setting: Setting) -> list[Asked]:
    choose = random.Random(setting.seed)
    if setting.clients > 1:
        players = [Player(random.Random(choose.random()), setting.slots) for _ in range(setting.clients)]
        days = [play(proxied.client, proxied.base_url, player, CROWD_ASKS) for player in players]
        return [asked for day in await asyncio.gather(*days) for asked in day]
    player, done = Player(choose, setting.slots), list[Asked]()
    for _ in range(SOLO_ASKS):
        done += await play(proxied.client, proxied.base_url, player, 1)
        await at_rest(proxied)
        await idle_server(server)
    return done


async def _directly(server: LlamaServer, done: list[Asked]) -> list[Answer]:
    answers = []
    async with talking() as client:
        for one in done:
            answers.append(await put(client, server.base_url, one.ask.as_told))
            await idle_server(server)
    return answers


def llama_flags(setting: Setting, home: Path) -> tuple[str, ...]:
    """The server's flags."""
    return (*EXACT, *FLAGS[setting.flags], "--slot-save-path", str(home))
