"""The admin listener, asked over HTTP."""

import asyncio
import re
from pathlib import Path

import aiohttp
import orjson
import pytest
from pydantic import TypeAdapter

from proxy.serving.admin import PAGE
from proxy.serving.history import Past
from proxy.serving.status import Status
from tests.conftest import StartLlama
from tests.serving.admin.administered import Administered, administered, answering, persisting
from tests.serving.running import PATIENCE_S, sessions

NOWHERE = "http://127.0.0.1:9/v1"
PATHS = ["/", "/metrics", "/healthz", "/readyz", "/status", "/status/schema", "/events"]


@pytest.mark.parametrize("path", PATHS)
async def test_the_main_port_has_not_one_path_of_these(path: str) -> None:
    """There it is the upstream that answers."""
    async with answering(418, {"mine": True}) as upstream, administered(upstream) as proxy:
        answer = await proxy.client.get(f"http://127.0.0.1:{proxy.proxy.port}{path}")
        assert (418, {"mine": True}) == (answer.status, await answer.json())


async def test_without_a_port_it_is_off() -> None:
    """Empty ADMIN_PORT: nothing listens, requests are served."""
    async with answering(200) as upstream, administered(upstream, admin_port=None) as proxy:
        assert 0 == proxy.proxy.admin.port
        assert proxy.proxy.port


async def test_off_loopback_without_a_token_it_stays_closed_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """The proxy itself goes on: a slip in a setting must not keep it from serving."""
    async with answering(200) as upstream, administered(upstream, admin_host="0.0.0.0") as proxy:
        assert 0 == proxy.proxy.admin.port
        assert proxy.proxy.port
    assert "ADMIN_TOKEN" in capsys.readouterr().out


async def test_a_port_that_is_taken_does_not_keep_the_proxy_from_serving(capsys: pytest.CaptureFixture[str]) -> None:
    """Two proxies with the default admin port: the second has no page, and says why."""
    async with (
        answering(200) as upstream,
        administered(upstream) as one,
        administered(upstream, admin_port=one.proxy.admin.port) as other,
    ):
        assert 0 == other.proxy.admin.port
        assert other.proxy.port
    assert "ADMIN_PORT" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "expected"),
    [(200, (200, "ready")), (503, (503, "loading")), (401, (200, "locked")), (404, (503, "unreachable"))],
)
async def test_readiness_is_the_servers(code: int, expected: tuple[int, str]) -> None:
    """Ready when a request would be served: not while the model loads, but also where only clients have the key."""
    async with answering(code) as upstream, administered(upstream) as proxy:
        told = await proxy.look("/readyz")
        assert expected == (told.status, told.text.strip())
        assert 200 == (await proxy.look("/healthz")).status
        assert f"pi_prefix_cache_upstream_up {float(expected[0] == 200)}" in (await proxy.look("/metrics")).text


async def test_without_a_server_it_is_alive_and_not_ready() -> None:
    """Liveness is the proxy's, readiness the server's."""
    async with administered(NOWHERE) as proxy:
        assert [200, 503] == [(await proxy.look(path)).status for path in ("/healthz", "/readyz")]
        assert "unreachable" == (await proxy.look("/status")).json["server"]["state"]
        assert [] == (await proxy.look("/status")).json["slots"]


@pytest.mark.parametrize("path", ["/", "/status", "/status/schema", "/events", "/nothing"])
async def test_a_strangers_name_gets_nothing_anywhere(path: str) -> None:
    """Neither the page nor an answer that tells which paths there are."""
    async with answering(200) as upstream, administered(upstream) as proxy:
        assert 403 == (await proxy.look(path, Host="evil.example")).status


@pytest.mark.parametrize("path", ["/warm", "/checkpoints/0123456789abcdef/delete"])
async def test_another_site_can_do_nothing(path: str) -> None:
    """Its origin is told by the browser; a GET does nothing either."""
    async with answering(200) as upstream, administered(upstream) as proxy:
        assert 403 == (await proxy.look(path, "POST", Origin="http://evil.example")).status
        assert 405 == (await proxy.look(path)).status


async def test_the_page_gives_a_cookie_for_the_token() -> None:
    """`/?token=` leads on to the page without it; the cookie opens everything, a wrong token nothing."""
    async with answering(200) as upstream, administered(upstream, admin_token="s3cret") as proxy:
        assert 401 == (await proxy.look("/")).status
        assert 401 == (await proxy.look("/?token=wrong")).status
        entered = await proxy.look("/?token=s3cret")
        assert (303, "/") == (entered.status, entered.headers["Location"])
        cookie = entered.headers["Set-Cookie"]
        assert {"httponly", "samesite=strict"} <= {part.strip().lower() for part in cookie.split(";")}
        assert "s3cret" not in cookie
        assert 200 == (await proxy.look("/status", Cookie=cookie.partition(";")[0])).status
        assert 200 == (await proxy.look("/metrics", Authorization="Bearer s3cret")).status


def test_the_page_is_one_small_file_of_its_own() -> None:
    """Under 60 kB, nothing from any other address, no mark-up made from data."""
    html = PAGE.read_text(encoding="utf-8")
    assert len(html.encode()) < 60_000
    assert ["http://www.w3.org/2000/svg"] == re.findall(r"""https?:[^\s'"]+""", html)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(| style=|\son\w+=\"", html)


async def test_the_browser_runs_only_the_pages_own_script() -> None:
    """By hashes: what somebody might smuggle into it would not run."""
    async with answering(200) as upstream, administered(upstream) as proxy:
        policy = (await proxy.look("/")).headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


async def test_the_status_is_as_its_schema_says(start_llama: StartLlama, tmp_path: Path) -> None:
    """After real sessions every field has its documented type, and every part of it is there."""
    settings = persisting(tmp_path)
    server = start_llama("dense", "--slot-save-path", str(settings["slot_dir"]))
    async with administered(server, **settings) as proxy:
        for body in sessions("/a", "/b"):
            await proxy.ask(body)
        told = (await proxy.look("/status")).json
        schema = (await proxy.look("/status/schema")).json
    TypeAdapter(Status).validate_json(orjson.dumps(told), strict=True)
    assert set(told) == set(schema["properties"])
    assert ["hit", "warm-up"] == [one["source"] for one in told["requests"]]
    assert 1 == told["disk"]["checkpoints"] == len(told["checkpoints"])
    assert told["checkpoints"][0]["tokens"] == max(slot["prefix_tokens"] for slot in told["slots"])
    assert ("ready", server.model.name) == (told["server"]["state"], told["server"]["model"])
    assert str(settings["slot_dir"]) == told["proxy"].pop("slot_dir")
    assert "/" not in orjson.dumps(told).decode().replace(told["proxy"]["upstream"], ""), "it shows another path"


async def test_a_request_that_nobody_answered_is_shown_as_such() -> None:
    """Told as over, and by nobody; nothing is left running."""
    async with administered(NOWHERE) as proxy:
        async with proxy.client.post(f"{proxy.base_url}/chat/completions", json=sessions("/a")[0]) as answer:
            assert 502 == answer.status
        told = (await proxy.look("/status")).json
        assert ["unanswered"] == [one["outcome"] for one in told["requests"]]
        assert {"running": 0, "waiting": 0} == told["queue"]
        counted = 'pi_prefix_cache_requests_total{outcome="unanswered",source="none"} 1.0'
        assert counted in (await proxy.look("/metrics")).text


async def test_each_request_is_told_once_to_a_page_that_listens(start_llama: StartLlama) -> None:
    """At once when it has ended, and not again with the next."""
    bodies = sessions("/a", "/b")
    async with administered(start_llama("dense")) as proxy:
        async with proxy.client.get(f"{proxy.admin_url}/events") as events:
            told: list[int] = []

            async def listen(until: int) -> None:
                async with asyncio.timeout(PATIENCE_S):
                    while until not in told:
                        line = await events.content.readline()
                        if line.startswith(b"data: "):
                            told.extend(one["number"] for one in orjson.loads(line[6:])["requests"])

            await proxy.ask(bodies[0])
            await listen(1)
            await proxy.ask(bodies[1])
            await listen(2)
        assert [1, 2] == told


async def test_pages_that_listen_do_not_hold_up_the_end() -> None:
    """They are let go when the proxy stops."""
    async with answering(200) as upstream, aiohttp.ClientSession() as client, administered(upstream) as proxy:
        events = await client.get(f"{proxy.admin_url}/events")
        await events.content.readline()
        async with asyncio.timeout(5):
            await proxy.proxy.admin.close()
            await events.content.read()  # raises where the stream was cut


async def test_ten_thousand_requests_are_told_quickly() -> None:
    """The page gets the last 200; all of them are there for who asks."""
    one = Past(0, 0, "hit", "r", "answered", 200, "f" * 16, 0, 2830, 30, 2800, 2800, 1.4, 0.1, 10.0, 40.0, 90.0)
    async with answering(200) as upstream, administered(upstream) as proxy:
        for _ in range(12_000):
            proxy.proxy.admin.history.remember(one)
        assert 200 == len((await proxy.look("/status")).json["requests"])
        assert 10_000 == len((await proxy.look("/status?requests=99999")).json["requests"])
        assert 200 == len((await proxy.look("/status?requests=-1")).json["requests"])
        assert 12_000 == (await proxy.look("/status")).json["today"]["requests"]


async def test_a_checkpoint_is_deleted_with_its_file(start_llama: StartLlama, tmp_path: Path) -> None:
    """And no other; a second time there is none, and what is no key is refused."""
    settings = persisting(tmp_path)
    server = start_llama("dense", "--slot-save-path", str(settings["slot_dir"]))
    async with administered(server, **settings) as proxy:
        for body in (*sessions("/a"), *sessions("/a", seed=2)):
            await proxy.ask(body)
        first, second = sorted(one["key"] for one in (await proxy.look("/status")).json["checkpoints"])
        assert 200 == (await proxy.look(f"/checkpoints/{first}/delete", "POST")).status
        assert 404 == (await proxy.look(f"/checkpoints/{first}/delete", "POST")).status
        assert 400 == (await proxy.look("/checkpoints/..%2f..%2fx/delete", "POST")).status
        assert [second] == [one["key"] for one in (await proxy.look("/status")).json["checkpoints"]]
        assert [f"pi-prefix-{second}.bin"] == [path.name for path in settings["slot_dir"].iterdir()]


async def test_warm_restores_the_last_prefix_and_then_has_nothing_to_do(
    start_llama: StartLlama, tmp_path: Path
) -> None:
    """What a slot holds is copied first; a new session then finds the prefix."""
    settings = persisting(tmp_path)
    server = start_llama("dense", "--slot-save-path", str(settings["slot_dir"]))
    async with administered(server, **settings) as proxy:
        await proxy.ask(sessions("/a")[0])
        assert {"warmed": "restored"} == (await proxy.look("/warm", "POST")).json
        assert {"warmed": "already_warm"} == (await proxy.look("/warm", "POST")).json
        answer = await proxy.ask(sessions("/b")[0])
        assert answer.reused >= proxy.last.need.prefix_tokens


async def test_warm_builds_the_last_prefix_where_nothing_is_on_disk(start_llama: StartLlama) -> None:
    """Without persistence, too."""
    async with administered(start_llama("dense")) as proxy:
        assert {"error": "no_prefix_known"} == (await proxy.look("/warm", "POST")).json
        await proxy.ask(sessions("/a")[0])
        assert {"warmed": "built"} == (await proxy.look("/warm", "POST")).json


async def test_warm_does_nothing_while_a_request_runs(start_llama: StartLlama) -> None:
    """Idle only."""
    async with administered(start_llama("dense", "-np", "1")) as proxy:
        await proxy.ask(sessions("/a")[0])
        body = {**sessions("/a")[0], "max_completion_tokens": 4000, "ignore_eos": True}
        async with proxy.client.post(f"{proxy.base_url}/chat/completions", json=body) as answer:
            await answer.content.readline()
            told = await proxy.look("/warm", "POST")
        assert (409, {"error": "busy"}) == (told.status, told.json)


async def test_what_is_held_for_requests_is_counted_while_it_is(start_llama: StartLlama) -> None:
    """A place and a slot while an answer comes, and tasks; nothing of it afterwards."""
    (body,) = sessions("/a")
    long = {**body, "max_completion_tokens": 4000, "ignore_eos": True}
    async with administered(start_llama("dense", "-np", "1")) as proxy:
        await proxy.ask(body)
        before = await gauges(proxy)
        answer = await proxy.client.post(f"{proxy.base_url}/chat/completions", json=long)
        await answer.content.readline()
        during = await gauges(proxy)
        answer.close()
        await proxy.heard.until(lambda: 2 == len(proxy.heard.requests))
        async with asyncio.timeout(PATIENCE_S):
            while before != (after := await gauges(proxy)):
                await asyncio.sleep(0.01)
    assert {"places_taken": 0, "slots_leased": 0, "tasks": before["tasks"]} == after
    assert {"places_taken": 1, "slots_leased": 1} == {name: during[name] for name in ("places_taken", "slots_leased")}
    assert during["tasks"] > before["tasks"]


async def gauges(proxy: Administered) -> dict[str, float]:
    text = (await proxy.look("/metrics")).text
    found = re.findall(r"^pi_prefix_cache_(places_taken|slots_leased|tasks) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}
