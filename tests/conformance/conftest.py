"""Servers of one kind of flags each, with a proxy of its own process in front of each, shared by a module's tests."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from proxy.demo.models import Kind, model_path
from proxy.demo.proxies import ProxyProcess
from proxy.demo.servers import LlamaServer, ServerBinary
from tests.serving.routers import Router

KEY = "the-right-key"
FILL_IN = ",".join(
    f"tokenizer.ggml.fim_{name}_token_id=int:{at}" for name, at in (("pre", 97), ("suf", 98), ("mid", 99))
)
"""Any three tokens: what they mean is nothing to a model that knows nothing."""
KINDS: dict[str, tuple[str, ...]] = {
    "plain": ("-np", "4", "-fa", "off", "--metrics"),
    "keyed": ("-np", "1", "--api-key", KEY),
    "embedding": ("-np", "1", "--embeddings", "--pooling", "mean"),
    "ranking": ("-np", "1", "--reranking"),
    "infilling": ("-np", "1", "-fa", "off", "--override-kv", FILL_IN),
    "sleepy": ("-np", "1", "-fa", "off", "--sleep-idle-seconds", "1"),
    "routing": ("-np", "1", "-fa", "off"),
}
MODELS: dict[str, Kind] = {"alpha": "dense", "beta": "hybrid"}
"""Of the router."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A server and a proxy in front of it."""

    server: LlamaServer
    proxy: ProxyProcess


class Pairs(dict[str, Pair]):
    """Started when first asked for."""

    def __init__(self, binary: ServerBinary, home: Path) -> None:
        super().__init__()
        self._binary, self._home = binary, home

    def __missing__(self, kind: str) -> Pair:
        slots, home = self._home / f"{kind}-slots", self._home / kind
        slots.mkdir()
        home.mkdir()
        server = self._server(kind, slots).start()
        _save(server, slots / "mine.bin")
        self[kind] = Pair(server, ProxyProcess(server.base_url, home, "--persist", "1", "--slot-dir", str(slots)))
        self[kind].proxy.__enter__()
        return self[kind]

    def _server(self, kind: str, slots: Path) -> LlamaServer:
        if kind == "routing":
            return Router(self._home / kind, MODELS, *KINDS[kind], binary=self._binary)
        flags = (*KINDS[kind], "--slot-save-path", str(slots))
        return LlamaServer(model_path("dense"), *flags, ctx=16384, binary=self._binary)

    def close(self) -> None:
        for pair in self.values():
            pair.proxy.__exit__()
            pair.server.close()


def _save(server: LlamaServer, path: Path) -> None:
    """Have the server write a state file, as a client of its own mind does."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    for target, body in (
        ("/completion", {"prompt": "a b c", "n_predict": 0, "id_slot": 0}),
        ("/slots/0?action=save", {"filename": path.name}),
    ):
        request = urllib.request.Request(f"{server.url}{target}", orjson.dumps(body), headers)
        with suppress(urllib.error.HTTPError), urllib.request.urlopen(request) as answer:
            answer.read()


@pytest.fixture(scope="module")
def pairs(llama_binary: ServerBinary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    """Pairs by the name of their flags; that no proxy logged an error is checked at the end."""
    found = Pairs(llama_binary, tmp_path_factory.mktemp("conformance"))
    try:
        yield found
    finally:
        found.close()
    lines = [orjson.loads(line) for pair in found.values() for line in pair.proxy.log_path.read_bytes().splitlines()]
    assert [] == [line for line in lines if line["level"] in ("error", "critical") or line.get("reason") == "bug"]
