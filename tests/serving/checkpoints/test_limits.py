"""Disk space and housekeeping: what is saved, what is not, what goes, and what nobody may take."""

import asyncio
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from proxy.checkpoints.key import FileKind, bad_name, temporary_name
from proxy.demo.sessions import next_turn
from proxy.serving import housekeeping, known_servers
from tests.checkpoints.state_files import checkpoint, state_file
from tests.conftest import StartLlama
from tests.serving.checkpoints.persisting import DENSE, Calls, Place, crash, reasons
from tests.serving.running import sessions

pytestmark = pytest.mark.usefixtures("unwatched")
SMALL: dict[str, Any] = {"tokens": 600}


def prefixes(*seeds: int) -> list[dict[str, Any]]:
    """First requests of other installs, each with a prefix of its own."""
    return [sessions("/folder", seed=seed, **SMALL)[0] for seed in seeds]


async def test_without_persistence_no_file_is_touched(start_llama: StartLlama, place: Place, calls: Calls) -> None:
    """Nothing is saved, nothing restored, and nothing kept but what was found out about the server."""
    server = place.start(start_llama)
    async with place.proxy(server, persist=False) as proxied:
        for body in sessions("/one", "/two", **SMALL):
            await proxied.ask(body)
        crash(server, under=proxied)
        await proxied.ask(sessions("/three", **SMALL)[0])
    assert (0, 0) == calls
    assert [] == list(place.slots.iterdir())
    assert [known_servers.NAME] == [path.name for path in place.index.iterdir()]


async def test_many_prefixes_keep_the_most_recent(start_llama: StartLlama, place: Place) -> None:
    """Of a hundred old checkpoints three stay, the current one among them, with their companions; others' files too."""
    server = place.start(start_llama)
    for number in range(100):
        path = state_file(place.slots / f"pi-prefix-{number:016x}.bin")
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
        if number % 2:
            shutil.copy2(path, path.with_name(path.name + ".ckpt"))
    stranger = place.slots / "somebody.bin"
    stranger.write_bytes(b"else")
    async with place.proxy(server, ttl_days=0, keep_recent=3) as proxied:
        await proxied.ask(prefixes(1)[0])
        await proxied.proxy.engine.store.clean_up()
        current = f"pi-prefix-{proxied.prefix.key}.bin"
    left = {path.name for path in place.slots.iterdir()} - {stranger.name}
    old = {f"pi-prefix-{number:016x}.bin" for number in (98, 99)}
    assert {current, *old, "pi-prefix-0000000000000063.bin.ckpt"} == left


async def test_a_start_sweeps_what_a_dead_proxy_left(start_llama: StartLlama, place: Place) -> None:
    """Fragments of a process that is gone, and what was put aside long ago, go at the next start."""
    server = place.start(start_llama)
    gone = subprocess.Popen(["true"])
    gone.wait()
    for name in (temporary_name("a" * 16, gone.pid, 1), bad_name("b" * 16, 1000)):
        (place.slots / name).write_bytes(b"left")
    async with place.proxy(server) as proxied:
        proxied.proxy.engine.context.tidy_up()
        await asyncio.wait(proxied.proxy.engine.context._tasks)
    assert [] == list(place.slots.iterdir())


async def test_a_start_cleans_up_by_itself(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per start, without any request and whether a server answers or not."""
    monkeypatch.undo()
    old = state_file(place.slots / f"pi-prefix-{1:016x}.bin")
    async with place.proxy("http://127.0.0.1:9/v1", ttl_days=1, keep_recent=0):
        async with asyncio.timeout(5):
            while old.exists():
                await asyncio.sleep(0.01)


async def test_a_file_chosen_for_a_restore_meanwhile_is_not_deleted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between clean-up's decision and its deletion a restore may choose the file: then it stays, in the index too."""
    chosen, other = (state_file(place.slots / f"pi-prefix-{number:016x}.bin") for number in (1, 2))
    async with place.proxy("http://127.0.0.1:9/v1", ttl_days=0, keep_recent=0) as proxied:
        store, plan = proxied.proxy.engine.store, housekeeping._plan
        assert store.index is not None
        for number in (1, 2):
            store.index.put(checkpoint(f"{number:016x}"))

        def plan_and_be_late(*told: Any) -> Any:
            planned = plan(*told)
            store.shelf.in_use[f"{1:016x}"] += 1
            return planned

        monkeypatch.setattr(housekeeping, "_plan", plan_and_be_late)
        await store.clean_up()
        assert [f"{1:016x}"] == list(store.index.records)
    assert (True, False) == (chosen.exists(), other.exists())


async def test_an_empty_directory_costs_no_entries(place: Place) -> None:
    """A slot directory that is not mounted yet does not make the index forget what is in it."""
    async with place.proxy("http://127.0.0.1:9/v1") as proxied:
        store = proxied.proxy.engine.store
        assert store.index is not None
        store.index.put(checkpoint())
        await store.clean_up()
        assert 1 == len(store.index.records)


@pytest.mark.parametrize("is_other", [True, False], ids=["other-process", "same-process"])
async def test_a_mark_that_was_left_convicts_only_if_the_server_died(
    start_llama: StartLlama, place: Place, is_other: bool
) -> None:
    """The proxy died during a restore. Is it another server process now, then the file is never handed over again."""
    server = place.start(start_llama, DENSE, "-np", "1")
    async with place.proxy(server) as proxied:
        await proxied.ask(prefixes(1)[0])
        key, process = proxied.prefix.key, proxied.proxy.engine.model.process
    assert process is not None
    if is_other:
        crash(server)
    dies = "import sys; from pathlib import Path; from proxy.checkpoints.marks import set_mark\n"
    dies += "set_mark(Path(sys.argv[1]), *sys.argv[2:])"
    subprocess.run([sys.executable, "-c", dies, place.index, key, process.marker], check=True)
    async with place.proxy(server) as proxied:
        await proxied.proxy.engine.acquaintance.meet_first({})
        assert ([] if not is_other else [f"suspect:{key}"]) == reasons(proxied, ["suspect"])
    assert int(is_other) == len(place.files(FileKind.BAD))
    assert place.is_clean()


async def test_a_prompt_rewritten_each_turn_makes_few_files(start_llama: StartLlama, place: Place) -> None:
    """Thirty turns, each with another system text or tools in another order, make at most two checkpoints."""
    server = place.start(start_llama)
    async with place.proxy(server) as proxied:
        body = sessions("/folder", tokens=300)[0]
        for turn in range(30):
            assert 200 == (await proxied.ask(body)).status
            body = next_turn(body, "done", f"go on {turn}")
            first, *rest = body["messages"]
            text = first["content"].replace("coding agent", f"coding agent number {turn}", 1)
            body = {**body, "messages": [{**first, "content": text}, *rest], "tools": body["tools"][::-1]}
    assert 2 >= len(place.files())


async def test_side_requests_make_no_file(start_llama: StartLlama, place: Place) -> None:
    """A compaction and a title have a short system text without a boundary: never warmed, never saved."""
    server = place.start(start_llama)
    async with place.proxy(server) as proxied:
        for user in ("a title for this, please", "summarise " + "all of this " * 400):
            messages = [{"role": "system", "content": "you write titles"}, {"role": "user", "content": user}]
            await proxied.ask({"model": "tiny", "messages": messages, "stream": True, "max_tokens": 4})
        assert ["none", "none"] == proxied.sources
    assert [] == place.files()
