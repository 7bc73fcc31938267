"""A server with a checkpoint on disk: made once a run for each kind of model, copied for each test that begins so."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from proxy.demo.servers import LlamaServer
from tests.conftest import StartLlama
from tests.serving.checkpoints.persisting import DENSE, EXACT, TOKENS, Place, Setup, crash, told
from tests.serving.running import Answer, Running, ask_directly, sessions

FLAGS = (*EXACT, "-np", "1")
PROBES = 1
"""Restores that each server start costs, however bad a file is."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a proxy that has ended left on disk, and what a cold server answers."""

    cold: Answer
    files: dict[Path, bytes]
    """Under the home of a place."""


_made: dict[Setup, Prepared] = {}


async def started(
    start: StartLlama, place: Place, setup: Setup = DENSE, *flags: str, is_saved: bool = True
) -> tuple[LlamaServer, Answer]:
    """A server just started, with a checkpoint of a proxy that has ended (or without); and a cold answer of it."""
    made = _made.get(setup) or _made.setdefault(setup, await _prepare(start, setup))
    for name, raw in made.files.items() if is_saved else ():
        (place.home / name).parent.mkdir(mode=0o700, exist_ok=True)
        (place.home / name).write_bytes(raw)
    return place.start(start, setup, *FLAGS, *flags), made.cold


async def _prepare(start: StartLlama, setup: Setup) -> Prepared:
    with TemporaryDirectory() as home:
        place = Place(Path(home))
        server = place.start(start, setup, *FLAGS)
        (cold,) = await ask_directly(server, {**told("/new"), "cache_prompt": False})
        crash(server)
        async with place.proxy(server) as proxied:
            await proxied.ask(sessions("/old", tokens=TOKENS)[0])
        server.close()
        kept = [*place.files(), place.index / "index.json"]
        return Prepared(cold, {path.relative_to(home): path.read_bytes() for path in kept})


async def ask_new(proxied: Running) -> Answer:
    """The first question of another session, answered with log-probabilities."""
    return await proxied.ask(told("/new"))


async def recovers(place: Place, server: LlamaServer) -> bool:
    """After one more restart the new checkpoint is restored, and nothing is left lying about."""
    crash(server)
    async with place.proxy(server) as proxied:
        await ask_new(proxied)
        return ["restore"] == proxied.sources and place.is_clean()
