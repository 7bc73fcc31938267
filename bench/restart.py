"""How long until the first token after a restart of the server? `python -m bench.restart`.

For prefixes of some lengths: the cold prefill, and the same with the prefix restored from disk, once with its file in
the page cache and once without. Both end with the prefill of what is the session's own, shown apart: below that no
restore can get. Each figure is the median of some rounds; other load moves them all, so the last column is a ratio.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from bench.prefill import KINDS, OUT, config
from bench.runs import Config
from bench.ways import served
from proxy.demo.asking import Turn, ask
from proxy.demo.servers import LlamaServer, NoServerError, ServerBinary, find_server
from proxy.demo.sessions import session

CONTEXT = 32768
PREFIXES = (2000, 8000, 20000)
PATIENT = ("--max-silence", "600")  # on a slow machine, too, the prefix is saved before anything is measured
AWAY_S = 1.2  # a server with a real model is away for longer; the proxy doesn't ask again within a second of an answer
TOOLS_TOKENS = 850  # what the tools add to the stable text


@dataclass(frozen=True, slots=True)
class Measured:
    """The first request after a start, the median round."""

    kind: str
    prefix_tokens: int
    how: str
    first_token_ms: float
    prefilled: int
    prefill_ms: float
    file_bytes: int = 0


def main() -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.restart", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kinds", default="dense,hybrid", help=f"of {','.join(KINDS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="the shortest prefix only")
    wanted = parser.parse_args()
    progress = Console(stderr=True)
    try:
        binary = find_server()
    except NoServerError as missing:
        progress.print(str(missing), markup=False)
        return 1
    rows: list[Measured] = []
    for kind in wanted.kinds.split(","):
        for tokens in PREFIXES[: 1 if wanted.short else None]:
            with progress.status(f"{kind}, {tokens} tokens") as status:

                def tell(what: str, of: str = f"{kind}, {tokens} tokens: ") -> None:
                    status.update(of + what)

                rows += _measured(config(kind, "one"), tokens, wanted.rounds, binary, tell)
            progress.print(f"{kind}, {tokens} tokens: done")
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "restart.json").write_bytes(orjson.dumps([asdict(row) for row in rows], option=orjson.OPT_INDENT_2))
    Console().print(_table(rows))
    return 0


def _measured(
    server: Config, prefix_tokens: int, rounds: int, binary: ServerBinary, tell: Callable[[str], None]
) -> Iterator[Measured]:
    with TemporaryDirectory(prefix="pi-prefix-cache-bench-") as made:
        home = Path(made)
        with _running(server, home, binary) as llama:
            tell("cold")
            cold = [_first(llama, llama.base_url, prefix_tokens, number) for number in range(rounds)]
            yield _median(server, prefix_tokens, "cold", cold, 0)
            with served("PERSIST=1", llama, home, home / "slots", *PATIENT) as at:
                tell("saving")
                _first(llama, at.base_url, prefix_tokens, rounds)
                for how in ("cached", "dropped"):
                    tell(f"file {how}")
                    turns = [
                        _first(llama, at.base_url, prefix_tokens, number, _drop(home) if how == "dropped" else None)
                        for number in range(rounds)
                    ]
                    yield _median(server, prefix_tokens, f"file {how}", turns, _size(home))


@contextmanager
def _running(server: Config, home: Path, binary: ServerBinary) -> Iterator[LlamaServer]:
    (home / "slots").mkdir()
    flags = ("--slot-save-path", str(home / "slots"), *server.flags)
    with LlamaServer(server.model, *flags, ctx=CONTEXT, binary=binary) as llama:
        yield llama


def _first(
    llama: LlamaServer, base_url: str, prefix_tokens: int, number: int, before: Callable[[], None] | None = None
) -> Turn:
    """Restart the server and ask the first question of a new session in a new folder."""
    llama.kill()
    if before is not None:
        before()
    time.sleep(AWAY_S)
    llama.start()
    body = session(f"/home/me/folder{number}", prefix_tokens=prefix_tokens - TOOLS_TOKENS) | {"temperature": 0}
    return asyncio.run(_ask(base_url, body))


async def _ask(base_url: str, body: dict[str, object]) -> Turn:
    async with aiohttp.ClientSession(headers={"User-Agent": "pi/1.6.0"}) as client:
        return await ask(client, base_url, "restart", 1, body)


def _drop(home: Path) -> Callable[[], None]:
    """Have the kernel forget the checkpoints' pages; needs no rights."""

    def drop() -> None:
        for path in (home / "slots").iterdir():
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)  # only clean pages are dropped
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)

    return drop


def _size(home: Path) -> int:
    return max((path.stat().st_size for path in (home / "slots").iterdir()), default=0)


def _median(server: Config, prefix_tokens: int, how: str, turns: list[Turn], size: int) -> Measured:
    return Measured(
        server.name.split()[0],
        prefix_tokens,
        how,
        round(statistics.median(turn.first_token_ms for turn in turns), 1),
        round(statistics.median(turn.prefilled for turn in turns)),
        round(statistics.median(turn.prompt_ms for turn in turns), 1),
        size,
    )


def _table(rows: list[Measured]) -> Table:
    shown = Table(title="first token after a restart of the server", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("model", "prefix\ntokens", "how"):
        shown.add_column(name, no_wrap=True)
    for name in ("first\ntoken ms", "prefilled\ntokens", "which\ntook ms", "the rest\nms", "file\nMB", "cold /\nthis"):
        shown.add_column(name, justify="right")
    cold = {(row.kind, row.prefix_tokens): row.first_token_ms for row in rows if row.how == "cold"}
    for row in rows:
        rest = row.first_token_ms - row.prefill_ms
        times = f"{cold[row.kind, row.prefix_tokens] / row.first_token_ms:.1f}"
        figures = f"{row.first_token_ms:,.0f}", f"{row.prefilled:,}", f"{row.prefill_ms:,.0f}", f"{rest:,.0f}"
        size = f"{row.file_bytes / 1e6:,.1f}" if row.file_bytes else ""
        shown.add_row(row.kind, f"{row.prefix_tokens:,}", row.how, *figures, size, times)
    return shown


if __name__ == "__main__":
    sys.exit(main())
