"""The doctor: one right set-up in which it finds nothing, and set-ups that are wrong in one way each.

Each names its fault, with the flag or setting to change, and no other.
"""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from proxy.checkpoints.index import Index
from proxy.commands.file_checks import others_may
from proxy.demo.models import Kind, model_path
from proxy.demo.servers import LlamaServer, ServerBinary
from proxy.llama.client import LlamaClient
from proxy.settings import PREFIX
from tests.checkpoints.state_files import KEY, checkpoint
from tests.commands.typed import Said, Terminal
from tests.packaging.files import as_user
from tests.packaging.served import OURS, environment
from tests.serving.admin.administered import administered, answering
from tests.serving.routers import Router
from tests.serving.running import ask_server, sessions

NOBODY = 20_004
SECRET = "sk-clinic"


@dataclass(frozen=True, slots=True)
class House:
    """A llama-server and the directories beside it."""

    home: Path
    server: LlamaServer

    @property
    def slots(self) -> Path:
        return self.home / "slots"

    def settings(self, **more: object) -> dict[str, object]:
        """The right ones."""
        right = {"base_url": self.server.base_url, "persist": 1, "slot_dir": self.slots, "admin_port": ""}
        return {**right, "dir": self.home / "index", **more}


def a_house(home: Path, binary: ServerBinary, kind: Kind, *flags: str, **more: Any) -> House:
    """A server that is started with these flags, and with the right one for its slots."""
    (home / "slots").mkdir(parents=True, mode=0o700)
    where = () if "--no-slot-save-path" in flags else ("--slot-save-path", str(home / "slots"))
    given = [flag for flag in flags if flag != "--no-slot-save-path"]
    server = LlamaServer(model_path(kind, **more.pop("traits", {})), *where, *given, binary=binary, **more)
    return House(home, server.start())


@pytest.fixture(scope="module")
def house(llama_binary: ServerBinary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A server that nothing is wrong with; each doctor leaves it as it was."""
    found = a_house(tmp_path_factory.mktemp("house"), llama_binary, "dense")
    yield found
    found.server.close()


@pytest.fixture
def build(llama_binary: ServerBinary, tmp_path: Path) -> Iterator[Any]:
    """Builds houses with something wrong."""
    with ExitStack() as stack:

        def one(*flags: str, kind: Kind = "dense", **more: Any) -> House:
            found = a_house(tmp_path / "house", llama_binary, kind, *flags, **more)
            stack.callback(found.server.close)
            return found

        yield one


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a doctor said."""

    said: Said

    @property
    def faults(self) -> dict[str, str]:
        """What is not ok: the check's name and its grade."""
        return {one["check"]: one["grade"] for one in self.said.json["findings"] if one["grade"] != "ok"}

    @property
    def checks(self) -> set[str]:
        return {one["check"] for one in self.said.json["findings"]}

    def change(self, check: str) -> str:
        (found,) = [one for one in self.said.json["findings"] if one["check"] == check and one["grade"] != "ok"]
        return f"{found['words']} → {found['change']}"


def flags(settings: dict[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def doctor(terminal: Terminal, settings: dict[str, object]) -> Verdict:
    return Verdict(terminal.type("doctor", "--json", *flags(settings)))


def check(verdict: Verdict, name: str, grade: str, *words: str) -> None:
    """This fault and no other, by these words, and with its exit code."""
    assert {name: grade} == verdict.faults, verdict.said.out
    for word in words:
        assert word in verdict.change(name)
    assert {"advice": 1, "wrong": 2}[grade] == verdict.said.code


def is_untouched(house: House) -> bool:
    """No slot holds anything, no file is left."""
    slots = asyncio.run(ask_server(house.server, "/slots"))
    return not any(slot.get("n_prompt_tokens") for slot in slots) and not list(house.slots.iterdir())


def test_nothing_is_wrong_where_nothing_is(build: Any, terminal: Terminal) -> None:
    """Exit code 0, every check made, and the server and its directory are left as they were; nobody used it before."""
    house: House = build()
    verdict = doctor(terminal, house.settings())
    assert (0, {}) == (verdict.said.code, verdict.faults), verdict.said.out
    made = {"settings", "server", "key", "model", "slots", "context", "slot actions", "slot directory", "roll back"}
    more = {"host memory", "restore", "reuse", "template", "index", "permissions", "disk"}
    assert made | more == verdict.checks
    assert is_untouched(house)
    assert ["doctor.json"] == [path.name for path in (house.home / "index").iterdir()]
    for_people = terminal.type("doctor", *flags(house.settings()))
    assert (0, "nothing wrong") == (for_people.code, for_people.out.splitlines()[-1])


@pytest.mark.parametrize(
    ("kind", "given"), [("hybrid", ("-np", "1")), ("swa", ("--swa-full",))], ids=["hybrid", "swa-full"]
)
def test_no_kind_of_model_is_a_fault(build: Any, terminal: Terminal, kind: Kind, given: tuple[str, ...]) -> None:
    """A hybrid one can't roll back; that is how it is."""
    found = build(*given, kind=kind)
    verdict = doctor(terminal, found.settings())
    assert (0, {}) == (verdict.said.code, verdict.faults), verdict.said.out
    assert is_untouched(found)


# --- the server's flags ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("--no-slot-save-path",), ("slot actions", "wrong", "--slot-save-path")),
        (("--cache-ram", "0"), ("host memory", "advice", "--cache-ram")),
        (("--no-cache-prompt",), ("reuse", "wrong", "--no-cache-prompt")),
        (("-c", "4096", "-np", "1"), ("context", "advice", "-c ")),
        (("--chat-template-file", "FORGETS"), ("template", "wrong", "leaves that out")),
        (("--chat-template-file", "FAILS"), ("template", "wrong", "does not render a system message with a tool")),
    ],
    ids=["slot-save-path", "cache-ram", "cache-prompt", "context", "template-forgets", "template-fails"],
)
def test_a_flag_is_named(
    build: Any, terminal: Terminal, tmp_path: Path, given: tuple[str, ...], expected: tuple[str, str, str]
) -> None:
    """The one that is missing or too many."""
    fails = "{{ raise_exception('not this') }}"
    (tmp_path / "FORGETS").write_text("who are you?")
    (tmp_path / "FAILS").write_text(f"{{{{ messages[0].content }}}}{{% if tools %}}{fails}{{% endif %}}")
    found = build(*(str(tmp_path / word) if (tmp_path / word).is_file() else word for word in given))
    check(doctor(terminal, found.settings()), *expected)


def test_a_rendering_that_is_not_what_is_prefilled(
    house: House, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token more is told."""
    count = LlamaClient.count_chat

    async def one_more(*args: Any) -> int:
        return await count(*args) + 1

    monkeypatch.setattr(LlamaClient, "count_chat", one_more)
    check(doctor(terminal, house.settings()), "template", "advice", "not exactly")


def test_hidden_slots_are_told_with_what_could_not_be_tried(build: Any, terminal: Terminal) -> None:
    """`--no-slots`: nothing that needs an empty slot is tried, and that is said."""
    verdict = doctor(terminal, build("--no-slots").settings())
    assert {"slots": "advice", "slot directory": "advice", "probe": "advice"} == verdict.faults
    assert (1, True) == (verdict.said.code, "--no-slots" in verdict.change("slots"))


def test_a_sliding_window_needs_its_flag(build: Any, terminal: Terminal) -> None:
    """Without it a restored prefix is of no use."""
    check(doctor(terminal, build(kind="swa").settings()), "restore", "wrong", "--swa-full")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"api_key": SECRET}, None),
        ({"api_key": "sk-other"}, ("key", "wrong", "refuses API_KEY")),
        ({}, ("key", "advice", "API_KEY is not set")),
    ],
    ids=["right", "wrong", "none"],
)
def test_the_key_is_looked_at(
    build: Any, terminal: Terminal, given: dict[str, object], expected: tuple[str, str, str] | None
) -> None:
    """A wrong one, and none; the key itself is never shown."""
    verdict = doctor(terminal, build("--api-key", SECRET).settings(**given))
    assert "sk-" not in verdict.said.out + verdict.said.err
    if expected is None:
        assert (0, {}) == (verdict.said.code, verdict.faults)
    else:
        check(verdict, *expected)


# --- who answers ------------------------------------------------------------------------------------------------------


def test_nobody_at_the_address(house: House, terminal: Terminal) -> None:
    """BASE_URL leads to nothing."""
    check(doctor(terminal, house.settings(base_url="http://127.0.0.1:9/v1")), "server", "wrong", "BASE_URL", ":9")


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (200, {"object": "list"}, ("server", "wrong", "no llama-server")),
        (404, None, ("server", "wrong", "HTTP 404")),
        (503, None, ("model", "wrong", "still loading")),
    ],
    ids=["other-json", "other-server", "loading"],
)
async def test_somebody_else_or_not_yet(
    terminal: Terminal, tmp_path: Path, code: int, body: Any, expected: tuple[str, str, str]
) -> None:
    """What answers is no llama-server, or one that loads."""
    async with answering(code, body) as url:
        said = await terminal.beside("doctor", "--json", "--base-url", url, "--admin-port", "", "--dir", tmp_path / "i")
    check(Verdict(said), *expected)


def test_a_router_is_looked_at_in_a_model_that_is_loaded(
    llama_binary: ServerBinary, terminal: Terminal, tmp_path: Path
) -> None:
    """Before anybody has used one there is nothing to look at, and none is loaded for it."""
    with Router(tmp_path, {"alpha": "dense", "beta": "hybrid"}, "-np", "2", binary=llama_binary) as router:
        router.slots.chmod(0o700)
        settings = House(tmp_path, router).settings()
        check(doctor(terminal, settings), "model", "advice", "no model loaded")
        assert set() == asyncio.run(router.loaded())
        asyncio.run(ask_server(router, "/tokenize", {"model": "beta", "content": "a"}))
        verdict = doctor(terminal, settings)
        assert (0, {}) == (verdict.said.code, verdict.faults), verdict.said.out
        assert "beta.gguf" in verdict.said.out
        assert {"beta"} == asyncio.run(router.loaded())


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"admin_port": "8082", "admin_host": "0.0.0.0"}, ("admin listener", "wrong", "ADMIN_TOKEN")),
        ({"slot": "9"}, ("slots", "wrong", "SLOT=9")),
        ({"keep_recent": "many"}, ("settings", "wrong", "--keep-recent")),
        ({"persist": "0"}, ("slot directory", "advice", "PERSIST=1")),
        ({"observe_only": "1"}, ("settings", "advice", "OBSERVE_ONLY=0")),
        ({"slot_dir": ""}, ("slot directory", "advice", "SLOT_DIR")),
    ],
    ids=["admin", "slot", "number", "persist", "observe", "slot-dir"],
)
def test_a_setting_is_named(
    house: House, terminal: Terminal, given: dict[str, object], expected: tuple[str, str, str]
) -> None:
    """The one that can't be meant."""
    check(doctor(terminal, house.settings(**given)), *expected)
    assert is_untouched(house)


def test_a_name_that_is_no_setting(house: House, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the one that was meant."""
    monkeypatch.setenv(f"{PREFIX}MAX_SILENSE", "3")
    check(doctor(terminal, house.settings()), "settings", "wrong", f"{PREFIX}MAX_SILENCE?")


def test_our_own_address_as_upstream(house: House, terminal: Terminal) -> None:
    """The proxy would forward to itself; that nothing answers there follows from it."""
    verdict = doctor(terminal, house.settings(base_url="http://127.0.0.1:9/v1", port=9))
    assert {"address": "wrong", "server": "wrong"} == verdict.faults
    assert "BASE_URL" in verdict.change("address")


# --- directories ------------------------------------------------------------------------------------------------------


def test_another_directory_than_the_servers(house: House, terminal: Terminal, tmp_path: Path) -> None:
    """Found out with a few bytes of an empty slot."""
    (tmp_path / "other").mkdir(mode=0o700)
    verdict = doctor(terminal, house.settings(slot_dir=tmp_path / "other"))
    (left,) = house.slots.iterdir()
    left.unlink()
    check(verdict, "slot directory", "wrong", f"--slot-save-path {tmp_path / 'other'}", left.name)


def test_no_directory_at_all(house: House, terminal: Terminal, tmp_path: Path) -> None:
    """Misspelt, or not mounted."""
    check(doctor(terminal, house.settings(slot_dir=tmp_path / "no")), "slot directory", "wrong", "is no directory")


def test_the_servers_directory_has_gone(build: Any, terminal: Terminal) -> None:
    """It can't write there any more: nothing can be saved or restored, and the doctor survives it."""
    found = build()
    shutil.rmtree(found.slots)
    (found.home / "ours").mkdir(mode=0o700)
    verdict = doctor(terminal, found.settings(slot_dir=found.home / "ours"))
    assert "wrong" == verdict.faults["slot directory"]
    assert "can't write to its --slot-save-path" in verdict.change("slot directory")


@pytest.mark.parametrize(("mode", "grade"), [(0o777, "wrong"), (0o755, "advice")], ids=["write", "read"])
def test_a_directory_that_is_open_to_all(house: House, terminal: Terminal, mode: int, grade: str) -> None:
    """Who can write there changes what the model says; who can read there has the agent's system prompt."""
    with opened_to_all(house.slots, mode):
        check(doctor(terminal, house.settings()), "permissions", grade, f"chmod o-rwx {house.slots.resolve()}")


class opened_to_all:  # noqa: N801
    """A directory whose parents let everybody pass while the block runs, as far as they are ours."""

    def __init__(self, path: Path, mode: int) -> None:
        self._path, self._mode = path, mode
        self._before: list[tuple[Path, int]] = []

    def __enter__(self) -> None:
        for one in (self._path, *self._path.resolve().parents):
            if one.stat().st_uid == os.geteuid() and one != Path(one.anchor):
                self._before.append((one, one.stat().st_mode))
                one.chmod(self._mode if one == self._path else one.stat().st_mode | 0o001)

    def __exit__(self, *_: object) -> None:
        for one, mode in self._before:
            one.chmod(mode)


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ((0o755, 0o700), (False, False)),
        ((0o755, 0o755), (True, False)),
        ((0o755, 0o777), (True, True)),
        ((0o755, 0o700, 0o777), (False, False)),
        ((0o755, 0o1777, 0o770), (False, False)),
        ((0o755, 0o777, 0o700), (False, True)),
        ((0o755, 0o2770), (False, False)),
        ((0o755, 0o711), (False, False)),
        ((0o755, 0o722), (False, False)),
        ((0o755, 0o733), (False, True)),
    ],
)
def test_what_others_may_follows_from_modes(modes: tuple[int, ...], expected: tuple[bool, bool]) -> None:
    """Of the directory and all above it: who can't pass can't read; who can write above can replace it."""
    assert expected == others_may(modes)


def test_a_directory_that_the_proxys_user_cannot_write(house: House, tmp_path: Path) -> None:
    """As another user, as a service would run."""
    slots = tmp_path / "slots"
    slots.mkdir(mode=0o555)
    with opened_to_all(slots, 0o555):
        command = [*as_user(NOBODY, NOBODY), *OURS, "doctor", "--json"]
        settings = house.settings(slot_dir=slots, dir=tmp_path / "none" / "index")
        ended = subprocess.run(
            [*command, *flags(settings)], env=environment(), cwd="/", capture_output=True, text=True, check=False
        )
    verdict = Verdict(Said(ended.returncode, ended.stdout, ended.stderr))
    assert "wrong" == verdict.faults["slot directory"], ended
    assert "can't be read and written by this user" in verdict.change("slot directory")
    assert "wrong" == verdict.faults["index"]  # its DIR is in a directory of somebody else
    assert is_untouched(house)


def test_no_room(house: House, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy would save nothing there."""
    usage = type(shutil.disk_usage("/"))(100, 95, 5)
    monkeypatch.setattr("proxy.commands.file_checks.shutil.disk_usage", lambda _: usage)
    check(doctor(terminal, house.settings()), "disk", "wrong", "less than a tenth of the disk")


def test_a_limit_below_one_checkpoint(house: House, terminal: Terminal, tmp_path: Path) -> None:
    """Each would be saved and deleted again."""
    known(tmp_path, size_bytes=5_000_000)
    check(doctor(terminal, house.settings(dir=tmp_path, max_gb="0.004")), "disk", "wrong", "MAX_GB to 0.01")


def test_a_context_that_the_known_prefix_does_not_fit_in(house: House, terminal: Terminal, tmp_path: Path) -> None:
    """Known from a checkpoint of the same model."""
    told = asyncio.run(ask_server(house.server, "/v1/models"))
    known(tmp_path, n_tokens=16_000, model_id=told["data"][0]["id"])
    check(doctor(terminal, house.settings(dir=tmp_path)), "context", "wrong", "16,000 tokens", "-c")
    known(tmp_path, n_tokens=16_000, model_id="another")
    assert {} == doctor(terminal, house.settings(dir=tmp_path)).faults


def known(directory: Path, **of: Any) -> None:
    """The index knows one checkpoint."""
    index = Index.open(directory, time.time())
    index.put(checkpoint(KEY, **of))
    assert index.close() is None


def test_a_second_proxy_on_the_directory(house: House, terminal: Terminal, tmp_path: Path) -> None:
    """One that can't be asked holds the lock: nothing is tried on a server that it may be using."""
    before = asyncio.run(ask_server(house.server, "/slots"))
    running = Index.open(tmp_path, time.time())
    try:
        check(doctor(terminal, house.settings(dir=tmp_path)), "index", "wrong", "a DIR of its own")
    finally:
        running.close()
    after = asyncio.run(ask_server(house.server, "/slots"))
    assert [slot.get("id_task") for slot in before] == [slot.get("id_task") for slot in after]
    assert {} == doctor(terminal, house.settings(dir=tmp_path)).faults


@pytest.mark.parametrize(
    ("raw", "expected"), [(b"{", ("advice", "damaged")), (b'{"schema": 999, "checkpoints": {}}', ("wrong", "newer"))]
)
def test_an_index_that_cannot_be_used(
    house: House, terminal: Terminal, tmp_path: Path, raw: bytes, expected: tuple[str, str]
) -> None:
    """Damaged, or of another version; it lies as it lay."""
    (tmp_path / "index.json").write_bytes(raw)
    check(doctor(terminal, house.settings(dir=tmp_path)), "index", *expected)
    assert raw == (tmp_path / "index.json").read_bytes()


# --- in use -----------------------------------------------------------------------------------------------------------


def test_a_server_in_use_is_not_touched(build: Any, terminal: Terminal) -> None:
    """Slots with somebody's conversation: nothing is tried, nothing is saved but an empty slot."""
    found = build()
    body = {"prompt": list(range(300, 400)), "n_predict": 0}
    asyncio.run(ask_server(found.server, "/completion", body))
    before = asyncio.run(ask_server(found.server, "/slots"))
    check(doctor(terminal, found.settings()), "probe", "advice", "its slots are in use")
    after = asyncio.run(ask_server(found.server, "/slots"))
    assert [slot.get("id_task") for slot in before] == [slot.get("id_task") for slot in after]
    assert [] == list(found.slots.iterdir())


async def test_a_proxy_that_starts_after_a_doctor_finds_the_server_unused(build: Any, terminal: Terminal) -> None:
    """It is probed as at its start, and the first session is prepared; not so once anybody else has used a slot."""
    found = build()
    settings = {"persist": True, "slot_dir": found.slots, "dir": found.home / "index", "admin_port": None}
    for _ in range(2):
        assert 0 == (await terminal.beside("doctor", *flags(found.settings()))).code
    async with administered(found.server, **settings) as proxy:
        await proxy.ask(sessions("/a", tokens=600)[0])
        assert (["warm-up"], True) == (proxy.sources, proxy.proxy.engine.model.able.keeps_copies)
    await asyncio.to_thread(found.server.restart)
    assert 0 == (await terminal.beside("doctor", *flags(found.settings()))).code
    await ask_server(found.server, "/completion", {"prompt": list(range(300, 400)), "n_predict": 0})
    for slot in range(4):
        await ask_server(found.server, f"/slots/{slot}?action=erase", {})
    async with administered(found.server, **settings) as proxy:
        await proxy.ask(sessions("/b", tokens=600)[0])
        assert (False, None) == (proxy.proxy.engine.model.was_probed, proxy.proxy.engine.model.able.keeps_copies)


async def test_beside_a_proxy_its_findings_are_taken(build: Any, terminal: Terminal) -> None:
    """Nothing wrong, and no slot has run anything for it."""
    found = build()
    settings = {"persist": True, "slot_dir": found.slots, "dir": found.home / "index"}
    async with administered(found.server, **settings) as proxy:
        await proxy.ask(sessions("/a", tokens=600)[0])
        before = await ask_server(found.server, "/slots")
        files = sorted(found.slots.iterdir())
        given = flags(found.settings(admin_port=proxy.proxy.admin.port))
        verdict = Verdict(await terminal.beside("doctor", "--json", *given))
        after = await ask_server(found.server, "/slots")
        unsaid = Verdict(await terminal.beside("doctor", "--json", "--admin-port", proxy.proxy.admin.port))
    assert (0, True) == (unsaid.said.code, found.server.url in unsaid.said.out), "it is where the proxy says"
    assert (0, {}) == (verdict.said.code, verdict.faults), verdict.said.out
    assert {"proxy", "roll back", "restore", "host memory", "template", "slot directory"} <= verdict.checks
    assert [slot.get("id_task") for slot in before] == [slot.get("id_task") for slot in after]
    assert files == sorted(found.slots.iterdir())


async def test_beside_a_proxy_that_found_the_server_in_use(build: Any, terminal: Terminal) -> None:
    """What the server can do nobody could try: that is said, and how it comes to be known."""
    found = build()
    await ask_server(found.server, "/completion", {"prompt": list(range(300, 400)), "n_predict": 0})
    settings = {"persist": True, "slot_dir": found.slots, "dir": found.home / "index"}
    async with administered(found.server, **settings) as proxy:
        await proxy.ask(sessions("/a", tokens=600)[0])
        await proxy.ask(sessions("/b", tokens=600)[0])
        given = flags(found.settings(admin_port=proxy.proxy.admin.port))
        verdict = Verdict(await terminal.beside("doctor", "--json", *given))
    # The server found the prefix by itself, and so nothing was saved yet.
    assert {"probe": "advice", "slot directory": "advice"} == verdict.faults, verdict.said.out
    assert "restart llama-server once while the proxy runs" in verdict.change("probe")


@pytest.mark.parametrize("is_known", [False, True], ids=["nothing-known", "one-known"])
async def test_beside_a_proxy_whose_directory_is_not_the_servers(
    build: Any, terminal: Terminal, tmp_path: Path, *, is_known: bool
) -> None:
    """Said before anything is saved: by the files that are not there, else at least that nothing is proven yet."""
    found = build()
    await ask_server(found.server, "/completion", {"prompt": list(range(300, 400)), "n_predict": 0})
    (tmp_path / "other").mkdir(mode=0o700)
    if is_known:
        await asyncio.to_thread(known, tmp_path / "index")
    settings = {"persist": True, "slot_dir": tmp_path / "other", "dir": tmp_path / "index"}
    async with administered(found.server, **settings) as proxy:
        await proxy.ask(sessions("/a", tokens=600)[0])
        given = ("--admin-port", proxy.proxy.admin.port)  # all else the proxy knows
        verdict = Verdict(await terminal.beside("doctor", "--json", *given))
    assert {"slot directory": "wrong" if is_known else "advice", "probe": "advice"} == verdict.faults
    words = "none of the 1 checkpoints known is in" if is_known else "is not proven yet"
    assert words in verdict.change("slot directory")
    assert f"SLOT_DIR={tmp_path / 'other'}" in verdict.change("slot directory")


async def test_a_probe_that_the_directory_does_not_show_says_so_at_once(
    build: Any, terminal: Terminal, tmp_path: Path
) -> None:
    """Before a client has asked anything; the doctor need not be told the directory to name it."""
    found = build()
    (tmp_path / "other").mkdir(mode=0o700)
    settings = {"persist": True, "slot_dir": tmp_path / "other", "dir": tmp_path / "index"}
    async with administered(found.server, **settings) as proxy:
        await proxy.heard.until(lambda: bool(proxy.heard.troubles))
        await proxy.ask(sessions("/a", tokens=600)[0])
        verdict = Verdict(await terminal.beside("doctor", "--json", "--admin-port", proxy.proxy.admin.port))
    assert [] == [path.name for path in found.slots.iterdir() if path.name.endswith(".bin")]
    check(verdict, "slot directory", "wrong", f"--slot-save-path {tmp_path / 'other'}")


async def test_beside_a_proxy_its_faults_are_told(build: Any, terminal: Terminal, tmp_path: Path) -> None:
    """One that may not save, and whose SLOT_DIR is not the server's."""
    found = build()
    (tmp_path / "other").mkdir(mode=0o700)
    held = await asyncio.to_thread(Index.open, tmp_path / "index", time.time())
    settings = {"persist": True, "slot_dir": tmp_path / "other", "dir": tmp_path / "index"}
    try:
        async with administered(found.server, **settings) as proxy:
            await proxy.ask(sessions("/a", tokens=600)[0])
            proxy.proxy.engine.store.shelf.is_blind = True
            given = flags(found.settings(admin_port=proxy.proxy.admin.port, slot_dir=tmp_path / "other"))
            verdict = Verdict(await terminal.beside("doctor", "--json", *given))
    finally:
        held.close()
    assert {"slot directory": "wrong", "index": "wrong"} == verdict.faults, verdict.said.out


async def test_another_servers_proxy_is_not_asked_for_this_one(build: Any, terminal: Terminal) -> None:
    """It is told, and everything is looked at as if there were none."""
    found = build()
    async with answering(503) as other, administered(other) as proxy:
        given = flags(found.settings(admin_port=proxy.proxy.admin.port))
        verdict = Verdict(await terminal.beside("doctor", "--json", *given))
    assert {"proxy": "advice"} == verdict.faults, verdict.said.out
    assert "restore" in verdict.checks


def test_findings_are_for_programs_too(house: House, terminal: Terminal) -> None:
    """Grade of all, and of each its check, words and change."""
    said = terminal.type("doctor", "--json", *flags(house.settings(slot="9")))
    assert "wrong" == said.json["grade"]
    assert {"check", "grade", "words", "change"} == set(said.json["findings"][0])
    assert orjson.loads(said.out)
