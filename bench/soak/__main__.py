"""Random use for as long as you like: `python -m bench.soak --minutes N`.

By default the mix: one proxy process under clients of all kinds, while the server is killed, frozen and cut off and its
files are spoilt; fails where an answer is wrong without a fault, where the log tells of an error, where anything stays
held, or where tasks, descriptors or memory grow. `--only trace`, `crowd` or `stranger` runs the tests of that name,
round after round, `--only rounds` all three. Needs the tests' packages; listens on loopback ports only.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from bench.prefill import OUT
from bench.soak.house import described
from bench.soak.mix import Course, soak
from bench.soak.report import Table, write
from bench.soak.rounds import CHECKS, soak_rounds
from proxy.demo.servers import NoServerError, find_server

MIX, ROUNDS = "mix", "rounds"
MINUTES = 60.0
TALKERS = 5


def main() -> int:
    """Soak; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="of the mix 60 by default; of rounds each in its full length")
    parser.add_argument("--only", choices=(MIX, ROUNDS, *CHECKS), default=MIX, help="the mix by default")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; of the mix: model, flags and what happens")
    parser.add_argument("--talkers", type=int, default=TALKERS, help="of the mix: clients that only chat")
    wanted = parser.parse_args()
    console = Console()
    try:
        find_server()
    except NoServerError as missing:
        console.print(str(missing), markup=False)
        return 1
    if wanted.only != MIX:
        return soak_rounds(console, wanted.minutes, None if wanted.only == ROUNDS else wanted.only, wanted.seed)
    return _mix(console, wanted.minutes or MINUTES, wanted.seed, wanted.talkers)


def _mix(console: Console, minutes: float, seed: int, talkers: int) -> int:
    course, table, (kind, flags) = Course.of(minutes), Table(console), described(seed)
    about = {"minutes": minutes, "seed": seed, "model": kind, "flags": flags, "talkers": talkers}
    table.begin(f"{minutes:g} minutes, {course.days} days; {kind} model, {flags}; seed {seed}")
    home = Path(tempfile.mkdtemp(prefix="pi-prefix-cache-soak-"))
    try:
        outcome = asyncio.run(soak(seed, course, talkers, home, table.day))
    except BaseException:
        console.print(f"files and logs are in {home}", highlight=False, soft_wrap=True)
        raise
    table.end(outcome)
    if outcome.has_failed:
        console.print(f"files and logs are in {home}", highlight=False, soft_wrap=True)
    else:
        shutil.rmtree(home, ignore_errors=True)
    console.print(str(write(outcome, about, OUT)), highlight=False, soft_wrap=True)
    return int(outcome.has_failed)


if __name__ == "__main__":
    sys.exit(main())
