"""Commands while a proxy runs: it is asked, and does what is wanted."""

import asyncio
import copy
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.commands.admin_client import AdminClient, Answer, NobodyThereError
from tests.commands.typed import Terminal
from tests.conftest import StartLlama
from tests.serving.admin.administered import Administered, administered, answering, persisting
from tests.serving.running import sessions

COMMANDS = (("ls",), ("show", "a"), ("rm", "a"), ("prune",), ("status",), ("warm",), ("explain",))
ASKING = (("status",), ("warm",), ("explain",))


@pytest_asyncio.fixture
async def proxy(start_llama: StartLlama, tmp_path: Path) -> AsyncIterator[Administered]:
    """One that keeps checkpoints and has served two installs' sessions."""
    settings = persisting(tmp_path)
    server = start_llama("dense", "--slot-save-path", str(settings["slot_dir"]))
    async with administered(server, **settings, admin_token="s3cret") as running:
        for body in (*sessions("/a", tokens=600), *sessions("/a", "/b", tokens=600, seed=2)):
            await running.ask(body)
        yield running


def at(proxy: Administered, *more: object) -> tuple[object, ...]:
    return ("--admin-port", proxy.proxy.admin.port, "--admin-token", "s3cret", *more)


async def test_checkpoints_are_listed_shown_and_deleted_by_the_one_who_keeps_them(
    proxy: Administered, terminal: Terminal, tmp_path: Path
) -> None:
    """No setting but the listener's is needed; the proxy's own view is right at once."""
    listed = await terminal.beside("ls", *at(proxy), "--json")
    assert [(0, 2)] == [(listed.code, len(listed.json))]
    latest, first = (one["key"] for one in listed.json)
    assert {"there"} == {one["disk"] for one in listed.json}
    assert "whole" == (await terminal.beside("show", latest[:6], *at(proxy), "--json")).json["proof"]
    assert f"{first} deleted" in (await terminal.beside("rm", first, *at(proxy))).out
    assert [latest] == [*proxy.proxy.engine.store.index.records]  # type: ignore[union-attr]
    assert [f"pi-prefix-{latest}.bin"] == [path.name for path in (tmp_path / "slots").iterdir()]
    again = await terminal.beside("rm", first, *at(proxy))
    assert (2, True) == (again.code, "no checkpoint's key begins with" in again.err)


async def test_what_a_request_uses_now_is_not_deleted(proxy: Administered, terminal: Terminal) -> None:
    """Exit code 1 and the reason."""
    key = (await terminal.beside("ls", *at(proxy), "--json")).json[0]["key"]
    with proxy.proxy.engine.store.shelf.using(key):
        said = await terminal.beside("rm", "--all", *at(proxy))
    assert (1, True) == (said.code, f"{key} not deleted: the server is reading or writing it" in said.out)
    assert [key] == [*proxy.proxy.engine.store.index.records]  # type: ignore[union-attr]


async def test_the_running_proxy_prunes(proxy: Administered, terminal: Terminal, tmp_path: Path) -> None:
    """By its own limits; what it used last stays."""
    stray = tmp_path / "slots" / f"pi-prefix-{1:016x}.bin.tmp-4194303-1"
    stray.write_bytes(b"x")
    told = (await terminal.beside("prune", "--dry-run", *at(proxy), "--json")).json
    assert ([stray.name], True) == (told["files"], stray.exists())
    said = await terminal.beside("prune", *at(proxy))
    assert (0, False) == (said.code, stray.exists())
    assert 2 == len((await terminal.beside("ls", *at(proxy), "--json")).json)


async def test_status_shows_what_the_page_shows(proxy: Administered, terminal: Terminal) -> None:
    """Slots, requests, sums and checkpoints; `--json` is the listener's own answer."""
    shown = await terminal.beside("status", *at(proxy))
    told = (await terminal.beside("status", *at(proxy), "--json", "--requests", "2")).json
    assert (0, ["hit", "warm-up"]) == (shown.code, [one["source"] for one in told["requests"]])
    for words in ("ready", "4 slot(s) of 16,384 tokens", "2 checkpoint(s)", "3 request(s)", "conversation"):
        assert words in shown.out
    for one in told["requests"]:
        assert f"{one['reused_tokens']:,}" in shown.out


async def test_watching_goes_on_until_ctrl_c(
    proxy: Administered, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a restart of the proxy, too; then it ends well."""
    looks = 0

    def wait(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:  # the proxy goes away
            monkeypatch.setattr(AdminClient, "ask", gone)
        if looks == 2:
            monkeypatch.setattr(AdminClient, "ask", ask)
        if looks == 3:
            raise KeyboardInterrupt

    def gone(*_: object, **__: object) -> Answer:
        raise NobodyThereError("no proxy runs there")

    ask = AdminClient.ask
    monkeypatch.setattr("proxy.commands.status.time.sleep", wait)
    said = await terminal.beside("status", "--watch", *at(proxy))
    assert (0, 3) == (said.code, looks)
    assert "2 checkpoint(s)" in said.out


async def test_warm_tells_what_came_of_it(proxy: Administered, terminal: Terminal) -> None:
    """Restored, and then there is nothing to do."""
    first, second = [await terminal.beside("warm", *at(proxy)) for _ in range(2)]
    assert [0, 0] == [first.code, second.code]
    assert "restored from its checkpoint" in first.out
    assert "already" in second.out


async def test_explain_names_the_part_that_has_changed(proxy: Administered, terminal: Terminal) -> None:
    """Section, tool and field, against the nearest fingerprint; a number explains an earlier miss."""
    body = copy.deepcopy(sessions("/c", tokens=600, seed=2)[0])
    body["messages"][0]["content"] = body["messages"][0]["content"].replace("- bash: run", "- bash: walk")
    body["tools"][1]["function"]["parameters"]["properties"]["timeout"]["description"] += "canary"
    await proxy.ask(body)
    last = await terminal.beside("explain", *at(proxy))
    assert (0, 4) == (last.code, len(last.out.splitlines()) - 1), last.out
    assert "request 4, fingerprint" in last.out
    assert ["system", "text", "<tools>", "changed", "line", "3", "of", "6"] == last.out.splitlines()[3].split()
    assert ["tool", "bash", "parameters.timeout.description", "changed"] == last.out.splitlines()[4].split()
    second = (await terminal.beside("explain", 2, *at(proxy), "--json")).json
    assert (2, "warm-up", {"system text"}) == (
        second["request"],
        second["source"],
        {change["place"] for change in second["changes"]},
    )
    first, hit = [await terminal.beside("explain", number, *at(proxy)) for number in (1, 3)]
    assert (0, True) == (first.code, "nothing to compare it with" in first.out)
    assert (1, True) == (hit.code, "no miss of that number" in hit.out)


async def test_a_miss_that_is_not_the_requests_fault_is_explained_so(proxy: Administered, terminal: Terminal) -> None:
    """The same fingerprint was served before: its reason says why."""
    (body,) = sessions("/c", tokens=600, seed=2)
    await proxy.ask({**body, "n": 2})
    said = await terminal.beside("explain", *at(proxy))
    assert (0, True, True) == (said.code, "reason=several_answers" in said.out, "has not changed" in said.out)
    await proxy.ask({**body, "messages": body["messages"][1:]})
    assert "reason=several_answers" in (await terminal.beside("explain", *at(proxy))).out
    side = await terminal.beside("explain", 5, *at(proxy))
    assert (True, True) == ("reason=no_system_message" in side.out, "no stable prefix" in side.out)


async def test_without_the_token_every_command_says_which_setting(proxy: Administered, terminal: Terminal) -> None:
    """Exit code 2; nothing falls back to the files of a proxy that runs."""
    for words in COMMANDS:
        said = await terminal.beside(*words, "--admin-port", proxy.proxy.admin.port)
        assert (2, True) == (said.code, "ADMIN_TOKEN" in said.err), words


def test_without_a_proxy_those_that_need_one_say_where_they_looked(terminal: Terminal) -> None:
    """Address and settings."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for words in ASKING:
        said = terminal.type(*words, "--admin-port", port)
        assert (2, True) == (said.code, f"http://127.0.0.1:{port} (ADMIN_HOST, ADMIN_PORT)" in said.err), words
        assert (2, True) == ((said := terminal.type(*words, "--admin-port", "")).code, "ADMIN_PORT" in said.err)


@pytest.mark.parametrize("body", [{"status": "ok"}, "<html>"], ids=["json", "text"])
async def test_a_stranger_on_the_port_is_not_taken_for_a_proxy(terminal: Terminal, body: object) -> None:
    """Nothing is deleted on files whose proxy may just listen elsewhere."""
    async with answering(200, body) as url:
        port = url.removesuffix("/v1").rpartition(":")[2]
        for words in COMMANDS:
            said = await terminal.beside(*words, "--admin-port", port)
            assert (2, True) == (said.code, "is no pi-prefix-cache; see ADMIN_PORT" in said.err), words


async def test_a_proxy_that_keeps_nothing_leaves_the_files_to_the_command(terminal: Terminal, tmp_path: Path) -> None:
    """PERSIST=0: what lies on the disk from before can be listed all the same."""
    (tmp_path / "index").mkdir()
    async with answering(200) as upstream, administered(upstream) as running:
        where = ("--admin-port", running.proxy.admin.port, "--dir", tmp_path / "index")
        said = await terminal.beside("ls", *where)
    assert (0, True) == (said.code, str(tmp_path / "index") in said.out)


async def test_a_listener_that_hangs_is_not_waited_for_without_end(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the limit it is said."""
    monkeypatch.setattr("proxy.commands.admin_client.AdminClient.ask.__defaults__", ("GET", 0.2))

    over = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await over.wait()
        return web.json_response({})

    application = web.Application()
    application.router.add_get("/status", hang)
    async with TestServer(application) as server:
        said = await terminal.beside("status", "--admin-port", server.port)
        over.set()
    assert (2, True) == (said.code, "does not answer within" in said.err)


def test_every_command_helps(terminal: Terminal) -> None:
    """`--help` names the exit codes and no setting that the command doesn't read."""
    for words in COMMANDS:
        said = terminal.type(words[0], "--help")
        assert (0, True) == (said.code, "Exit code" in said.out)
        assert "--admin-port" in said.out
        assert "--max-silence" not in said.out
