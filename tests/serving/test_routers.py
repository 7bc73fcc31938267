"""Several models behind one router: what is known is kept for each, and nothing of ours has one loaded."""

import asyncio
import gzip
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import orjson
import pytest

from proxy.demo.servers import LlamaServer, ServerBinary
from proxy.demo.sessions import next_turn
from proxy.llama.client import ControlFailed
from proxy.serving.acquaintance import Acquaintance
from tests.load.relay import Call, relay
from tests.serving.routers import Router
from tests.serving.running import Running, ask, ask_directly, running, sessions
from tests.serving.test_accounting import context

LOADS_ALPHA = "/props?model=alpha"
PATIENCE_S = 10.0
MODELS: dict[str, Any] = {"alpha": "dense", "beta": "hybrid"}


@pytest.fixture
def router(llama_binary: ServerBinary, tmp_path: Path) -> Iterator[Router]:
    with Router(tmp_path, MODELS, "-np", "1", binary=llama_binary) as found:
        yield found


def claims(proxied: Running) -> list[str]:
    return [reason for reason in proxied.heard.troubles if reason.startswith("claim:")]


async def test_models_that_take_turns(router: Router, tmp_path: Path) -> None:
    """Each has its own slots, prefixes and checkpoints: what one does costs the other nothing, and all claims hold."""
    persist = {"persist": True, "slot_dir": router.slots, "dir": tmp_path / "index"}
    async with running(router, **persist) as proxied:
        kept = {}
        for folder in ("/a", "/b", "/c"):
            for model in MODELS:
                body = sessions(folder, tokens=600, seed=2, model=model)[0]
                answer = await proxied.ask(body)
                kept[model, folder] = (answer, proxied.prefix, proxied.sources[-1], next_turn(body, answer.text, "go"))
        later = [await proxied.ask(kept[model, "/c"][3]) for model in MODELS]
    assert ["continue"] * 2 == proxied.sources[-2:]
    for model in MODELS:
        sources = [kept[model, folder][2] for folder in ("/a", "/b", "/c")]
        assert "warm-up" == sources[0]
        assert {"hit", "restore"} >= set(sources[1:])
        assert all(answer.reused >= prefix.n_tokens for (of, _), (answer, prefix, *_) in kept.items() if of == model)
    assert kept["alpha", "/a"][1].key != kept["beta", "/a"][1].key
    assert {f"pi-prefix-{kept[model, '/a'][1].key}.bin" for model in MODELS} <= {p.name for p in router.slots.iterdir()}
    assert [True, True] == [answer.prefilled < 60 for answer in later]
    assert [] == claims(proxied)


async def test_what_the_router_loads_for_a_request_is_prepared_for_it(router: Router, tmp_path: Path) -> None:
    """Also where another model has put it out meanwhile: its prefix comes back from disk."""
    router.restart("--models-max", "1")
    persist = {"persist": True, "slot_dir": router.slots, "dir": tmp_path / "index"}
    async with running(router, **persist) as proxied:
        for model in ("alpha", "beta", "alpha", "beta"):
            answer = await proxied.ask(sessions("/a", tokens=600, seed=2, model=model)[0])
            assert proxied.prefix.n_tokens <= answer.reused
            assert {model} == await router.loaded()
    assert ["warm-up", "warm-up", "restore", "restore"] == proxied.sources
    assert [] == claims(proxied)


async def test_a_router_that_loads_nothing_unasked_is_left_so(router: Router) -> None:
    router.restart("--no-models-autoload")
    (body,) = sessions("/a", tokens=600, model="alpha")
    (expected,) = await ask_directly(router, body)
    async with running(router) as proxied:
        answer = await proxied.ask(body)
    assert (400, expected.data) == (answer.status, answer.data)
    assert ["model_not_loaded"] == proxied.reasons
    assert set() == await router.loaded()


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [("?autoload=false", {}, 400), ("", {"Content-Encoding": "gzip"}, 415)],
    ids=["not wanted", "compressed"],
)
async def test_what_the_router_would_load_nothing_for_has_nothing_loaded(
    router: Router, query: str, headers: dict[str, str], status: int
) -> None:
    (body,) = sessions("/a", tokens=600, model="alpha")
    data = orjson.dumps(body)
    async with running(router) as proxied:
        url = f"{proxied.base_url}/chat/completions{query}"
        async with proxied.client.post(url, data=gzip.compress(data) if headers else data, headers=headers) as answer:
            assert status == answer.status
    assert set() == await router.loaded()


async def test_beside_another_model_s_request_the_router_loads_as_it_likes(router: Router) -> None:
    """With room for one model ours would be put out again before its request has come."""
    calls: list[Call] = []

    async def note(call: Call) -> None:
        calls.append(call)

    long = {**sessions("/a", tokens=600, model="beta")[0], "max_tokens": 400}
    async with relay(router, note) as url, running(url) as proxied:
        other = asyncio.create_task(ask(proxied.client, proxied.base_url, long))
        await proxied.heard.until(lambda: any(engine.model.gate.inside for engine in proxied.proxy.engines))
        assert 200 == (await ask(proxied.client, proxied.base_url, sessions("/a", tokens=600, model="alpha")[0])).status
        await other
    assert LOADS_ALPHA not in [call.path for call in calls]


async def test_a_model_that_can_not_be_loaded(router: Router) -> None:
    (router.directory / "broken.gguf").write_bytes(b"GGUF" + bytes(1000))
    router.restart()
    (body,) = sessions("/a", tokens=600, model="broken")
    (expected,) = await ask_directly(router, body)
    async with running(router) as proxied:
        answer = await proxied.ask(body)
        await proxied.ask(sessions("/a", tokens=600, model="alpha")[0])
    assert (500, expected.data) == (answer.status, answer.data)
    assert ["control_call_failed", "model_not_loaded"] == proxied.reasons, "for a while that is left to the requests"


class Loading:
    """A router whose model somebody else has it load, or nobody yet."""

    model = "alpha"

    def __init__(self, code: int) -> None:
        self.code = code

    async def props(self, *_: Any) -> dict[str, Any]:
        raise ControlFailed("/props", self.code)

    async def props_once_loaded(self, *_: Any) -> dict[str, Any]:
        return {"total_slots": 1}


@pytest.mark.parametrize("code", [400, 503])
async def test_a_model_that_is_not_there_yet_is_waited_for_by_requests_only(code: int) -> None:
    """By those that have it loaded; the proxy's own looks only see that it is not there."""
    known = Acquaintance(context(client=cast("Any", Loading(code))))
    assert {"total_slots": 1} == await known._props({}, may_load=True)
    with pytest.raises(ControlFailed):
        await known._props({}, may_load=False)


async def test_a_model_that_takes_too_long_to_load(router: Router) -> None:
    """No client waits for it any longer than for other work of ours: the request goes on and waits at the router."""

    async def keep_waiting(call: Call) -> None:
        if call.path == LOADS_ALPHA:
            await asyncio.sleep(PATIENCE_S)

    async with relay(router, keep_waiting) as url, running(url, max_silence=0.3) as proxied:
        answer = await proxied.ask(sessions("/a", tokens=600, model="alpha")[0])
    assert 200 == answer.status
    assert PATIENCE_S / 2 > answer.headers_s
    assert {"control_call_failed", "too_slow"} & {*proxied.reasons}


async def test_while_only_observing_no_model_is_loaded_before_the_request(router: Router) -> None:
    calls: list[Call] = []

    async def note(call: Call) -> None:
        calls.append(call)

    async with relay(router, note) as url, running(url, observe_only=True) as proxied:
        await proxied.ask(sessions("/a", tokens=600, model="alpha")[0])
    assert LOADS_ALPHA not in [call.path for call in calls]
    assert ["observe_only"] == proxied.reasons


async def test_every_call_of_ours_names_its_model_and_loads_none(router: Router, tmp_path: Path) -> None:
    """But for a request at hand: with room for one model only, the one put out stays out until a client asks for it."""
    router.restart("--models-max", "1")
    calls: list[Call] = []

    async def note(call: Call) -> None:
        calls.append(call)

    persist = {"persist": True, "slot_dir": router.slots, "dir": tmp_path / "index"}
    async with relay(router, note) as url, running(url, **persist) as proxied:
        for folder in ("/a", "/b", "/c"):
            await proxied.ask(sessions(folder, tokens=600, model="alpha")[0])
        await proxied.ask(sessions("/a", tokens=600, model="beta")[0])
        assert {"beta"} == await router.loaded()
        for engine in proxied.proxy.engines:
            with suppress(ControlFailed):
                await engine.lifecycle.look()
        assert {"beta"} == await router.loaded()
        again = await ask(proxied.client, proxied.base_url, sessions("/d", tokens=600, model="alpha")[0])
    assert 200 == again.status
    assert "warm-up" in proxied.sources
    loading = [call.path for call in calls if call.path.startswith("/props?model=") and "autoload" not in call.path]
    assert [LOADS_ALPHA, LOADS_ALPHA.replace("alpha", "beta"), LOADS_ALPHA] == loading  # one before each client's
    of_nobody = ("/v1/chat/completions", "/props", "/v1/models", *loading)
    ours = [call for call in calls if call.path not in of_nobody]
    assert {"false"} == {parse_qs(urlsplit(call.path).query)["autoload"][0] for call in ours}
    named = [parse_qs(urlsplit(c.path).query)["model"][0] if c.method == "GET" else c.body["model"] for c in ours]
    assert set(MODELS) == set(named)
    assert [] == claims(proxied)


@pytest.mark.parametrize("model", ["nobody", ""])
async def test_a_model_that_is_not_there(router: Router, model: str) -> None:
    """The router's own words, and nothing is prepared or remembered for it."""
    (body,) = sessions("/a", tokens=600)
    body = {**body, "model": model} if model else {name: value for name, value in body.items() if name != "model"}
    (expected,) = await ask_directly(router, body)
    async with running(router) as proxied:
        answers = [await proxied.ask(body) for _ in range(3)]
        assert 1 == len([*proxied.proxy.engines])
    assert [(400, expected.data)] * 3 == [(answer.status, answer.data) for answer in answers]
    assert ["unknown_model"] * 3 == proxied.reasons
    assert set() == await router.loaded()


async def test_a_router_becomes_a_plain_server(router: Router, llama_binary: ServerBinary) -> None:
    """What was believed of its models is nobody's any more; sessions go on being prepared."""
    async with running(router) as proxied:
        await proxied.ask(sessions("/a", tokens=600, model="alpha")[0])
        router.stop()
        model = router.directory / "alpha.gguf"
        with LlamaServer(model, "-np", "1", port=router.port, binary=llama_binary):
            await proxied.proxy.engines.first.lifecycle.look()
            answers = [await proxied.ask(body) for body in sessions("/d", "/e", tokens=600, model="alpha")]
            expected = proxied.prefix.n_tokens
        assert 1 == len([*proxied.proxy.engines])
    assert "warm-up" == proxied.sources[-2]
    assert [True, True] == [expected <= answer.reused for answer in answers]
    assert [] == claims(proxied)
