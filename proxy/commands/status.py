"""`pi-prefix-cache status`: what the running proxy's page shows, in a terminal.

Reads `/status` and nothing else: asking changes nothing and wakes nobody.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from proxy.commands import arguments
from proxy.commands.admin_client import AdminClient, running_proxy
from proxy.commands.arguments import write_json
from proxy.commands.shown import age, console, plain, size, table, tokens
from proxy.errors import PrefixCacheError

Told = Mapping[str, Any]
BAR, LEAST_BAR = 24, 4
WATCH_S = 1.0
SOURCE_STYLES = {"warm-up": "yellow", "none": "dim", "restore": "cyan", "resume": "blue"}
YES_NO = {True: "yes", False: "no", None: "not known"}


def status(argv: Sequence[str]) -> int:
    """Show it once, or again and again; returns the exit code."""
    given = arguments.read(argv, "status", "Show what the running proxy does.", more=_flags)
    arguments.tell_warnings(given)
    client = running_proxy(given.settings)
    if given.as_json:
        write_json(_ask(client, given.own.requests))
        return 0
    if given.own.watch:
        _watch(lambda: picture(_ask(client, given.own.requests)))
        return 0
    console().print(picture(_ask(client, given.own.requests)))
    return 0


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="follow what happens until Ctrl-C")
    parser.add_argument("--requests", type=int, default=10, metavar="N", help="how many of the last requests (10)")


def _ask(client: AdminClient, requests: int) -> Told:
    told: Told = client.ask(f"/status?requests={max(0, requests)}").json
    return told


def _watch(look: Callable[[], RenderableType]) -> None:
    """Until Ctrl-C; a proxy that is being restarted is waited for."""
    screen = Console()
    with Live(console=screen, screen=screen.is_terminal, auto_refresh=False) as live:
        try:
            while True:
                try:
                    live.update(look(), refresh=True)
                except PrefixCacheError as error:
                    live.update(Text(f"{error}; waiting for it", style="red"), refresh=True)
                time.sleep(WATCH_S)
        except KeyboardInterrupt:
            return


def picture(told: Told) -> Group:
    """Everything, as it is printed."""
    parts = [
        *_head(told),
        Text(),
        _slots(told["slots"], told["server"]["state"]),
        Text(),
        *_today(told),
        Text(),
        _requests(told),
    ]
    if told["advice"]:
        parts += [Text(), *(_advice(one) for one in told["advice"])]
    return Group(*parts)


def _head(told: Told) -> Iterator[RenderableType]:
    proxy, server, now = told["proxy"], told["server"], told["now"]
    ways = ["observes only"] * proxy["observes_only"] + ["saves checkpoints"] * proxy["persists"]
    up = age(now - proxy["started_at"])
    yield Text(", ".join([f"pi-prefix-cache {proxy['version']}, up {up}", *ways]), style="bold")
    is_good = server["state"] in ("ready", "sleeping", "locked")
    line = Text.assemble(f"{proxy['upstream']} ", (server["state"], "green" if is_good else "red"))
    if server["slots"]:
        line.append(f", {plain(server['model'])}, build {plain(server['build'])}, ")
        line.append(f"{server['slots']} slot(s) of {tokens(server['context_tokens'])} tokens")
    yield line
    can = {name.replace("_", " "): YES_NO[server[name]] for name in ("rolls_back", "restores", "keeps_copies")}
    yield Text(", ".join(f"{name}: {word}" for name, word in can.items()), style="dim")


def _slots(slots: Sequence[Told], state: str) -> Table | Text:
    if not slots:
        why = "the server can't be reached" if state == "unreachable" else "nothing is known of them yet"
        return Text(f"slots: {why}", style="dim")
    rows = [
        (
            one["slot"],
            one["holds"],
            Bar(one),
            tokens(one["prefix_tokens"]),
            tokens(one["other_tokens"]),
            tokens(one["free_tokens"]),
            f"working ({one['source'] or 'not ours'})" if one["is_working"] else "",
            one["checkpoint"],
        )
        for one in slots
    ]
    columns = ("slot", "holds", "", "prefix", "other", "free", "", "checkpoint")
    return table(columns, rows, right=("prefix", "other", "free"), yields=("",))


@dataclass(frozen=True, slots=True)
class Bar:
    """Prefix, other tokens and free context of a slot, to scale, in as much room as there is."""

    slot: Told

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(LEAST_BAR, options.max_width), min(BAR, options.max_width))

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield self.drawn(min(BAR, options.max_width))

    def drawn(self, width: int) -> Text:
        """So many characters."""
        parts = [self.slot["prefix_tokens"], self.slot["other_tokens"], self.slot["free_tokens"] or 0]
        whole = sum(parts)
        ends = [round(sum(parts[: i + 1]) * width / whole) if whole else 0 for i in range(2)]
        pieces = ("█" * ends[0], "▒" * (ends[1] - ends[0]), "·" * (width - ends[1]))
        return Text.assemble(*zip(pieces, ("green", "blue", "dim"), strict=True))


def _today(told: Told) -> Iterator[RenderableType]:
    day, queue, disk = told["today"], told["queue"], told["disk"]
    sources = ", ".join(f"{source} {count}" for source, count in sorted(day["by_source"].items()))
    yield Text(f"now      {queue['running']} running, {queue['waiting']} waiting for a slot")
    yield Text(
        f"today    {day['requests']} request(s){f' ({sources})' if sources else ''}, "
        f"{tokens(day['prompt_tokens'])} prompt tokens, "
        f"{tokens(day['prefilled_tokens'] + day['warm_up_tokens'])} prefilled"
    )
    yield Text(f"saved    {tokens(day['saved_tokens'])} tokens, about {day['saved_s']:.0f} s of prefilling")
    yield Text(f"on disk  {disk['checkpoints']} checkpoint(s), {size(disk['size_bytes'])}")


def _requests(told: Told) -> RenderableType:
    if not told["requests"]:
        return Text("no request yet", style="dim")
    columns = ("no", "ago", "source", "reason", "tokens", "reused", "%", "first", "ended")
    rows = [
        (
            one["number"],
            age(told["now"] - one["ended_at"]),
            Text(one["source"], style=SOURCE_STYLES.get(one["source"], "green")),
            one["reason"],
            tokens(one["prompt_tokens"]),
            tokens(one["reused_tokens"]),
            _share(one),
            f"{one['first_token_ms']:,.0f} ms",
            one["outcome"] if one["outcome"] != "refused" else f"refused ({one['status']})",
        )
        for one in told["requests"]
    ]
    return table(columns, rows, right=("no", "ago", "tokens", "reused", "%", "first"), yields=("reason",))


def _share(one: Told) -> str:
    if not one["prompt_tokens"] or one["reused_tokens"] is None:
        return ""
    return f"{one['reused_tokens'] / one['prompt_tokens']:.0%}"


def _advice(one: Told) -> Text:
    times = f" ({one['times']} times)" if one["times"] > 1 else ""
    return Text(f"! {plain(one['words'])}{times}", style="red" if one["is_bug"] else "yellow")
