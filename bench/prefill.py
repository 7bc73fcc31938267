"""How many prompt tokens do conversations cost, and how many would do? `python -m bench.prefill --short`.

Owns: which runs are made and where their results go. Every run has a server of its own, so that any of them can be
made alone. The results of all runs so far are in the JSON file after each run.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import orjson
from rich.console import Console
from rich.progress import Progress

from bench.runs import Config, Outcome, run
from bench.tables import LEGEND, table
from bench.traces import FULL, SHORT, TRACES, Size
from bench.ways import WAYS, NotHereError
from proxy.demo.models import Kind
from proxy.demo.proxies import ProxyStartError
from proxy.demo.servers import NoServerError, ServerBinary, ServerStartError, find_server

OUT = Path(__file__).parent / "out"

KINDS: dict[str, tuple[Kind, bool, tuple[str, ...]]] = {
    "dense": ("dense", False, ()),
    "hybrid": ("hybrid", False, ()),
    "hybrid-last": ("hybrid", True, ()),
    "swa": ("swa", False, ()),
    "swa-full": ("swa", False, ("--swa-full",)),
}
"""Name: model, tools after the system text, flags."""

FLAGS: dict[str, tuple[str, ...]] = {
    "one": ("-np", "1"),
    "default": (),
    "one-noram": ("-np", "1", "--cache-ram", "0"),
    "default-noram": ("--cache-ram", "0"),
}


@dataclass(frozen=True, slots=True)
class Job:
    """One run to be made."""

    trace: str
    config: Config
    way: str

    def __str__(self) -> str:
        return f"({self.trace}) {self.config.name} {self.way}"


def config(kind: str, flags: str) -> Config:
    """A server by the names of its model and flags."""
    model, tools_last, needed = KINDS[kind]
    return Config(f"{kind} {flags}", model, (*needed, *FLAGS[flags]), tools_last)


def main() -> int:
    """Make the runs; returns the exit status."""
    wanted = _parser().parse_args()
    progress = Console(stderr=True)
    try:
        binary = find_server()
    except NoServerError as missing:
        progress.print(str(missing), markup=False)
        return 1
    jobs = [
        Job(trace, config(kind, flags), way)
        for trace in wanted.traces
        for kind in wanted.kinds
        for flags in wanted.flags
        for way in wanted.ways
        if way != "hearth" or flags.startswith("one")  # it knows servers of one slot only
    ]
    out = wanted.out or OUT / f"prefill-{'short' if wanted.short else 'full'}.json"
    outcomes = list(_made(jobs, SHORT if wanted.short else FULL, binary, progress, out))
    _show(outcomes, wanted.ways)
    progress.print(f"all figures, request by request: {out}", soft_wrap=True)
    return 0


def _made(jobs: Sequence[Job], size: Size, binary: ServerBinary, console: Console, out: Path) -> Iterator[Outcome]:
    done: list[Outcome] = []
    build = _build(binary)
    console.print(f"{len(jobs)} runs with {binary.path} ({build})", style="dim", soft_wrap=True)
    with Progress(console=console) as bar:
        task = bar.add_task("", total=len(jobs))
        for job in jobs:
            bar.update(task, description=str(job))
            try:
                outcome = run(job.trace, TRACES[job.trace], size, job.config, job.way, binary)
            except (NotHereError, ServerStartError, ProxyStartError) as trouble:
                bar.console.print(f"{job}: {trouble}", markup=False, soft_wrap=True)
            else:
                done.append(outcome)
                _write(out, build, done)
                bar.console.print(_line(outcome), markup=False, highlight=False, soft_wrap=True)
                yield outcome
            bar.advance(task)


def _line(outcome: Outcome) -> str:
    return (
        f"({outcome.trace}) {outcome.config:21} {outcome.way:9} ideal {outcome.ideal:7,}  prefilled {outcome.total:7,}"
        f"  server's count {outcome.server:7,}  efficiency {outcome.efficiency:.3f}  lost {outcome.lost}"
    )


def _show(outcomes: Sequence[Outcome], ways: Sequence[str]) -> None:
    console = Console()
    for name in dict.fromkeys(outcome.trace for outcome in outcomes):
        title = (TRACES[name].__doc__ or name).rstrip(".")
        console.print(table(title, [one for one in outcomes if one.trace == name], ways))
    console.print(LEGEND, style="dim")


def _write(out: Path, build: str, outcomes: Sequence[Outcome]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    told = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "server": build}
    records = [outcome.as_record() for outcome in outcomes]
    out.write_bytes(orjson.dumps({**told, "runs": records}, option=orjson.OPT_INDENT_2))


def _build(binary: ServerBinary) -> str:
    """What the server calls itself."""
    told = subprocess.run(
        [binary.path, "--version"], env=dict(binary.environment), capture_output=True, text=True, check=False
    )
    lines = [line for line in (told.stdout + told.stderr).splitlines() if line.startswith("version")]
    return lines[0] if lines else "unknown version"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.prefill", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="short traces: minutes instead of an hour")
    parser.add_argument("--traces", type=_letters, default=list(TRACES), help=f"of {''.join(TRACES)}; default all")
    for name, known in (("kinds", tuple(KINDS)), ("flags", tuple(FLAGS)), ("ways", WAYS)):
        told = f"of {','.join(known)}; default all"
        parser.add_argument(f"--{name}", type=partial(_chosen, known), default=known, help=told)
    parser.add_argument("--out", type=Path, help="the JSON file")
    return parser


def _letters(told: str) -> list[str]:
    return _chosen(tuple(TRACES), ",".join(told.replace(",", "")))


def _chosen(known: Sequence[str], told: str) -> list[str]:
    """A comma-separated choice among names."""
    chosen = told.split(",")
    if unknown := [name for name in chosen if name not in known]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not among {', '.join(known)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
