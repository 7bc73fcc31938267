"""One run: a trace, a configuration, a way. What it cost, by the answers, by the proxy's log and by the server's count.

Owns: the server's life during a run, and the records. The server counts the prompt tokens that it has processed; it
forgets them when it dies, so they are read before. The ideal is worked out after the run from the tokens of what was
asked, by the server that answered it.
"""

import asyncio
import string
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import orjson

from bench.ideal import Ideal, shared
from bench.traces import Size, Trace
from bench.ways import Served, served
from proxy.demo.asking import Turn, ask
from proxy.demo.models import Kind, model_path
from proxy.demo.servers import LlamaServer, ServerBinary
from proxy.demo.sessions import USER_AGENTS, Body

CONTEXT = 65536
PROMPT_TOKENS = "llamacpp:prompt_tokens_total "
ANSWER_S = 180.0
SOMEBODYS: Body = {"messages": [{"role": "user", "content": "hello " * 20}], "max_tokens": 2}


@dataclass(frozen=True, slots=True)
class Config:
    """A server: model and flags."""

    name: str
    kind: Kind
    flags: tuple[str, ...] = ()
    tools_last: bool = False

    @property
    def model(self) -> Path:
        return model_path(self.kind, tools_last=self.tools_last)


@dataclass(slots=True)
class Asked:
    """One request of a trace; `turn` is None where no answer came. A restart stands in their order, without a body."""

    name: str
    body: Body | None
    turn: Turn | None = None
    error: str = ""
    ideal: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run cost, in prompt tokens."""

    trace: str
    config: str
    way: str
    ideal: int
    answers: int
    """Prefilled for the answers, by their own figures."""
    warm_ups: int
    """Prefilled by the proxy's warm-ups, by its log."""
    server: int
    """Prefilled in all, by the server's count: probes and verifications too."""
    lost: int
    n_prefixes: int
    n_resumes: int
    requests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.answers + self.warm_ups

    @property
    def efficiency(self) -> float:
        return self.ideal / self.total if self.total else 0.0

    @property
    def excess(self) -> int:
        """What was prefilled beyond need."""
        return self.total - self.ideal

    def as_record(self) -> dict[str, Any]:
        return asdict(self) | {"total": self.total, "efficiency": round(self.efficiency, 4)}


class ServedWorld:
    """A trace's counterpart: asks, notes, restarts."""

    def __init__(self, client: aiohttp.ClientSession, base_url: str, server: LlamaServer) -> None:
        self.asked: list[Asked] = []
        self.processed = 0
        self._client = client
        self._base_url = base_url
        self._server = server

    async def ask(self, name: str, body: Body, began: asyncio.Event | None = None) -> str:
        asked = Asked(name, body)
        self.asked.append(asked)
        try:
            async with asyncio.timeout(ANSWER_S):
                asked.turn = await ask(self._client, self._base_url, name, len(self.asked), body, began)
        except (aiohttp.ClientError, TimeoutError) as error:
            asked.error = f"{type(error).__name__}: {error}"
        finally:
            if began is not None:
                began.set()
        return asked.turn.answer if asked.turn else ""

    async def restart(self) -> None:
        self.processed += processed(self._server)
        self.asked.append(Asked("restart", None))
        self._server.kill()
        self._server.start()


def run(
    name: str, trace: Trace, size: Size, config: Config, way: str, binary: ServerBinary, *, is_used: bool = False
) -> Outcome:
    """Start everything, play the trace, end everything; `is_used` has somebody ask the server before the proxy runs."""
    with TemporaryDirectory(prefix="pi-prefix-cache-bench-") as made:
        slots = Path(made, "slots")
        slots.mkdir()
        flags = ("--metrics", "--slot-save-path", str(slots), *config.flags)
        with LlamaServer(config.model, *flags, ctx=CONTEXT, binary=binary) as server:
            if is_used:
                _post(server, "/v1/chat/completions", SOMEBODYS)
            with served(way, server, Path(made), slots) as at:
                world = asyncio.run(_play(trace, size, at, server))
            work_out_ideal(world.asked, server)
            return _outcome((name, config.name, way), world, at, server)


async def _play(trace: Trace, size: Size, at: Served, server: LlamaServer) -> ServedWorld:
    # A connection each: llama-server closes one that has streamed, and may do so just as the next request is sent.
    fresh = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=fresh, headers={"User-Agent": USER_AGENTS["1.6"]}) as client:
        world = ServedWorld(client, at.base_url, server)
        await trace(world, size)
    return world


def _outcome(names: tuple[str, str, str], world: ServedWorld, at: Served, server: LlamaServer) -> Outcome:
    log = at.log()
    told = [line for line in log if line["event"] == "request" and line["path"].endswith("/chat/completions")]
    return Outcome(
        *names,
        ideal=sum(asked.ideal for asked in world.asked),
        answers=sum(asked.turn.prefilled for asked in world.asked if asked.turn),
        warm_ups=sum(line["prompt_n"] for line in log if line["event"] in ("warmed", "anchored")),
        server=world.processed + processed(server),
        lost=sum(asked.turn is None for asked in world.asked if asked.body),
        n_prefixes=len({_install(asked.body) for asked in world.asked if asked.body and asked.body.get("tools")}),
        n_resumes=sum(line["source"] == "resume" for line in told),
        requests=[_record(asked, told) for asked in world.asked],
    )


def _install(body: Body) -> str:
    return str(body["messages"][0]["content"]).split("\n\n<project_context>")[0].split("\n\n<cwd>")[0]


def _record(asked: Asked, told: list[dict[str, Any]]) -> dict[str, Any]:
    if asked.turn is None:
        return {"name": asked.name, "error": asked.error}
    turn = asked.turn
    figures = {"name": asked.name, "prompt_n": turn.prefilled, "cache_n": turn.reused, "ideal": asked.ideal}
    figures["first_token_ms"] = round(turn.first_token_ms, 1)
    for line in told:
        if (line["prompt_n"], line["cache_n"]) == (turn.prefilled, turn.reused):
            told.remove(line)  # the first of two with the same figures
            return figures | {"source": line["source"], "reason": line["reason"], "slot": line["slot"]}
    return figures


# --- what the server says --------------------------------------------------------------------------------------------


def processed(server: LlamaServer) -> int:
    """Prompt tokens that the server has processed since its start."""
    lines = _get(server, "/metrics").decode().splitlines()
    return round(float(next(line.split()[1] for line in lines if line.startswith(PROMPT_TOKENS))))


def work_out_ideal(asked: Sequence[Asked], server: LlamaServer) -> None:
    """Enter in each record what it needed at least."""
    letters = {letter: _tokenize(server, letter)[0] for letter in string.ascii_uppercase}
    count, firsts = Ideal(), dict[str, list[int]]()
    for one in asked:
        if one.body is None:
            count.restarted(_stable(list(firsts.values())))
            continue
        rendered = orjson.loads(_post(server, "/apply-template", one.body))["prompt"]
        prompt = _tokenize(server, rendered)
        firsts.setdefault(one.name, prompt)
        # The tiny models say capitals only, each of them a token.
        one.ideal = count.asked(prompt, [letters[letter] for letter in one.turn.answer] if one.turn else ())


def _stable(firsts: list[list[int]]) -> list[list[int]]:
    """What several sessions begin with: that could have been kept elsewhere."""
    pairs = ((one, other) for place, one in enumerate(firsts) for other in firsts[:place])
    return [shared(one, other) for one, other in pairs]


def _tokenize(server: LlamaServer, text: str) -> list[int]:
    body = {"content": text, "add_special": True, "parse_special": True}
    tokens: list[int] = orjson.loads(_post(server, "/tokenize", body))["tokens"]
    return tokens


def _post(server: LlamaServer, path: str, body: dict[str, Any]) -> bytes:
    return _get(server, urllib.request.Request(f"{server.url}{path}", orjson.dumps(body)))


def _get(server: LlamaServer, what: str | urllib.request.Request) -> bytes:
    wanted = f"{server.url}{what}" if isinstance(what, str) else what
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(wanted) as answer:
        told: bytes = answer.read()
    return told
