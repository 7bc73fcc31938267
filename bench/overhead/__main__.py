"""What each way to a server adds to a request, measured side by side: `python -m bench.overhead`.

In rounds, each way in turn within each, so that whatever else the machine does meets all of them. `--short` takes less
than a minute, `--real` also asks a real llama-server with a tiny model.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from bench.overhead.client import GET, Line, chat, streams
from bench.overhead.figures import Figures
from bench.overhead.places import ONE_AT_A_TIME, WAYS, Place, places, upstream
from bench.overhead.report import show, write
from proxy import __version__
from proxy.demo.models import model_path
from proxy.demo.servers import LlamaServer

OUT = Path(__file__).parents[1] / "out"
REQUESTS = {
    "GET": (GET, 100),
    "chat 1 kB": (chat(1000), 50),
    "chat 100 kB": (chat(100_000), 25),
    "chat 5 MB": (chat(5_000_000), 4),
}
REAL = {"real: chat 1 kB": (chat(1000), 10), "real: chat 20 kB": (chat(20_000), 10)}
STREAMS = (1, 16, 64)
DEFAULT_SLOTS = 4
"""What a llama-server has that nobody told how many."""
GAP_S = 0.005
"""Nobody asks again within the same millisecond."""


def main() -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of requests; a fifth as many of streams")
    parser.add_argument("--short", action="store_true", help="three rounds")
    parser.add_argument("--real", action="store_true", help="a real llama-server, too")
    parser.add_argument("--only", nargs="*", choices=tuple(WAYS), help="these ways, beside direct")
    parser.add_argument("--out", type=Path, default=OUT, help="where the files go")
    asked = parser.parse_args()
    console = Console()
    rounds = 3 if asked.short else asked.rounds
    with TemporaryDirectory(prefix="bench-overhead-") as home:
        bench = Bench(Path(home), [*(asked.only or WAYS)], rounds, console)
        bench.run()
        if asked.real:
            bench.run_real()
    show(bench.figures, console)
    about = {"version": __version__, "rounds": rounds, "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    for path in write(bench.figures, {**about, "at": time.strftime("%Y-%m-%d %H:%M")}, asked.out):
        console.print(f"[dim]{path}[/]")
    return 0


class Bench:
    """One run."""

    def __init__(self, home: Path, names: list[str], rounds: int, console: Console) -> None:
        self.home, self.names, self.rounds, self.console = home, names, rounds, console
        self.figures: dict[str, Figures] = {}

    def run(self) -> None:
        """In front of the server that answers at once."""
        with self._front("streams", max(STREAMS)) as found:
            asyncio.run(self._streams(found))
            for place in found:
                self.figures[place.name].peak_mb = place.peak_mb()
        with self._front("requests", DEFAULT_SLOTS) as found:
            asyncio.run(self._requests(found, REQUESTS))

    @contextmanager
    def _front(self, what: str, n_slots: int) -> Iterator[list[Place]]:
        home = self.home / what
        home.mkdir()
        with upstream(home, n_slots) as server, places(home, server.port, self.names) as (found, missing):
            for name, why in missing.items():
                self.console.print(f"[yellow]left out: {name}: {why}[/]")
            self.figures = self.figures or {place.name: Figures() for place in found}
            yield found

    def run_real(self) -> None:
        """In front of a llama-server with a tiny model."""
        slots = self.home / "slots"
        slots.mkdir()
        real = self.home / "real"
        real.mkdir()
        flags = ("-np", "1", "--slot-save-path", str(slots))
        with (
            LlamaServer(model_path("dense"), *flags, ctx=32768, log_path=self.home / "server.log") as server,
            places(real, server.port, [name for name in self.names if name in self.figures]) as (found, _),
        ):
            asyncio.run(self._requests(found, REAL))

    async def _requests(self, found: list[Place], scenarios: dict[str, tuple[bytes, int]]) -> None:
        lines = {place.name: Line(place.port) for place in found}
        for place in found:
            for request, _ in scenarios.values():
                with suppress(RuntimeError):
                    await lines[place.name].ask(request)  # the first of its kind is another matter
        for number in range(self.rounds):
            for scenario, (request, count) in scenarios.items():
                for place in found[number % len(found) :] + found[: number % len(found)]:
                    await self._ask(place, lines[place.name], scenario, request, count)
        for line in lines.values():
            line.close()

    async def _ask(self, place: Place, line: Line, scenario: str, request: bytes, count: int) -> None:
        before = place.cpu_s()
        times: list[float] = []
        figures = self.figures[place.name]
        for _ in range(count):
            try:
                times.append(await line.ask(request))
                await asyncio.sleep(GAP_S)
            except RuntimeError:
                line.close()
                figures.lost[scenario] = figures.lost.get(scenario, 0) + 1
        figures.add(scenario, times, place.cpu_s() - before, count)

    async def _streams(self, found: list[Place]) -> None:
        bodies = [chat(1000, stream=True, folder=f"/{number}") for number in range(max(STREAMS))]
        for place in found:
            await streams(place.port, bodies[: 1 if place.name in ONE_AT_A_TIME else max(STREAMS)])
        for number in range(max(1, self.rounds // 5)):
            for many in STREAMS:
                for place in found[number % len(found) :] + found[: number % len(found)]:
                    if many > 1 and place.name in ONE_AT_A_TIME:
                        continue
                    before = place.cpu_s()
                    seen = await streams(place.port, bodies[:many])
                    used, figures = place.cpu_s() - before, self.figures[place.name]
                    figures.add(f"first event, {many} streams", seen.first, 0.0, many)
                    figures.add(f"delay a chunk, {many} streams", seen.delays, used, len(seen.delays))
                    name = f"delay a chunk, {many} streams"
                    figures.lost[name] = figures.lost.get(name, 0) + seen.lost


if __name__ == "__main__":
    sys.exit(main())
