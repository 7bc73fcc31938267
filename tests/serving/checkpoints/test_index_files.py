"""The proxy's own files: an index that can't be used, a directory that can't be written, two proxies on one."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from proxy.checkpoints.index import Index
from proxy.serving import store
from tests.conftest import StartLlama
from tests.serving.checkpoints.persisting import (
    DENSE,
    Calls,
    Place,
    crash,
    reasons,
    saved,
)
from tests.serving.running import sessions

pytestmark = pytest.mark.usefixtures("unwatched")
ONE, TWO, THREE = sessions("/one", "/two", "/three", tokens=600)


@pytest.mark.parametrize("raw", [b"{", b"[]", b"", None], ids=["brace", "list", "empty", "truncated"])
async def test_a_corrupt_index_is_kept_aside_and_deletes_nothing(
    start_llama: StartLlama, place: Place, raw: bytes | None
) -> None:
    """The request is served, clean-up is off for this run, no file is gone; the next start is an ordinary one."""
    server = place.start(start_llama, DENSE, "-np", "1")
    old = place.slots / f"pi-prefix-{1:016x}.bin"
    old.write_bytes(b"old")
    os.utime(old, (1000, 1000))
    path = await saved_by(place, server)
    index = place.index / "index.json"
    spoilt = index.read_bytes()[:-40] if raw is None else raw
    index.write_bytes(spoilt)
    crash(server)
    async with place.proxy(server, ttl_days=0, keep_recent=0) as proxied:
        assert 200 == (await proxied.ask(TWO)).status
        assert 1 == len(reasons(proxied, ["index"]))
        await proxied.proxy.engine.store.clean_up()
    assert (True, True) == (old.exists(), path.exists())
    assert [spoilt] == [kept.read_bytes() for kept in place.index.glob("index.json.corrupt-*")]
    crash(server)
    async with place.proxy(server) as proxied:
        await proxied.ask(THREE)
        assert (["restore"], []) == (proxied.sources, proxied.heard.troubles)


async def saved_by(place: Place, server: object) -> Path:
    async with place.proxy(server, cleanup=False) as proxied:  # type: ignore[arg-type]
        await proxied.ask(ONE)
        return place.slots / f"pi-prefix-{proxied.prefix.key}.bin"


async def test_an_index_from_the_future_is_read_only(start_llama: StartLlama, place: Place, calls: Calls) -> None:
    """What a newer version wrote stays as it is, and so do its files; requests are served without checkpoints."""
    server = place.start(start_llama, DENSE, "-np", "1")
    path = await saved(place, server)
    index = place.index / "index.json"
    index.write_bytes(index.read_bytes().replace(b'"schema":1', b'"schema":999'))
    before, state, saves = index.read_bytes(), path.read_bytes(), calls.saves
    crash(server)
    async with place.proxy(server, ttl_days=0, keep_recent=0) as proxied:
        assert 200 == (await proxied.ask(TWO)).status
        await proxied.proxy.engine.store.clean_up()
        assert 1 == len(reasons(proxied, ["index"]))
    assert (before, state) == (index.read_bytes(), path.read_bytes())
    assert 1 == calls.saves - saves  # the probe's


async def test_an_index_that_can_not_be_written_is_said_once(
    start_llama: StartLlama, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk of its own the proxy goes on in memory: checkpoints are still restored in this run."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Index, "_write", full)
    server = place.start(start_llama, DENSE, "-np", "1")
    async with place.proxy(server) as proxied:
        await proxied.ask(ONE)
        crash(server, under=proxied)
        await proxied.ask(TWO)
        assert ["warm-up", "restore"] == proxied.sources
        assert ["index_not_written"] == proxied.heard.troubles


async def test_a_second_proxy_on_the_directory_restores_and_changes_nothing(
    start_llama: StartLlama, place: Place, calls: Calls
) -> None:
    """It neither saves nor deletes, says so once, and uses what the first has made."""
    server = place.start(start_llama, DENSE, "-np", "1")
    await saved_by(place, server)
    old = place.slots / f"pi-prefix-{1:016x}.bin"
    old.write_bytes(b"old")
    os.utime(old, (1000, 1000))
    async with place.proxy(server) as first:
        crash(server)
        saves = calls.saves
        async with place.proxy(server, ttl_days=0, keep_recent=0) as second:
            await second.ask(TWO)
            await second.ask(sessions("/other", seed=2, tokens=600)[0])
            await second.proxy.engine.store.clean_up()
            assert ["restore", "warm-up"] == second.sources
            assert ["index:directory_of_another_proxy"] == reasons(second, ["index"])
        assert 1 == calls.saves - saves  # the probe's
        assert 2 == len(place.files())
        crash(server, under=first)
        await first.ask(THREE)
        assert ["restore"] == first.sources
    assert place.is_clean()


async def test_a_bad_file_is_not_put_aside_by_the_second_proxy(start_llama: StartLlama, place: Place) -> None:
    """What the owner's index says may be newer than what the second has read."""
    server = place.start(start_llama, DENSE, "-np", "1")
    path = await saved_by(place, server)
    async with place.proxy(server), place.proxy(server) as second:
        crash(server)
        os.truncate(path, 1000)
        assert 200 == (await second.ask(TWO)).status
        assert ["warm-up"] == second.sources
        await second.proxy.engine.store.put_aside(second.prefix.key)
    assert 1000 == path.stat().st_size


async def test_uses_are_on_disk_within_a_minute(
    start_llama: StartLlama, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that is killed has forgotten no more than a minute of what was used when."""
    assert 60.0 >= store.FLUSH_S
    server = place.start(start_llama, DENSE, "-np", "1")
    async with place.proxy(server) as proxied:
        await proxied.ask(ONE)
        await asyncio.wait(proxied.proxy.engine.context._tasks or {asyncio.create_task(asyncio.sleep(0))})
        before = [record.uses for record in place.known().records]
        await proxied.ask(TWO)
        await proxied.proxy.engine.store.flush_when_due()
        assert before == [record.uses for record in place.known().records]
        monkeypatch.setattr(store, "FLUSH_S", 0.0)
        await proxied.proxy.engine.store.flush_when_due()
        assert before != [record.uses for record in place.known().records]


async def test_our_directory_is_private_and_says_nothing_of_prompts(start_llama: StartLlama, place: Place) -> None:
    """0700 and 0600, no word of the prompt in it; the server's directory keeps its mode."""
    place.slots.chmod(0o755)
    server = place.start(start_llama, DENSE, "-np", "1")
    await saved(place, server)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in place.index.iterdir()}
    assert (0o700, {0o600}) == (stat.S_IMODE(place.index.stat().st_mode), modes)
    assert 0o755 == stat.S_IMODE(place.slots.stat().st_mode)
    raw = (place.index / "index.json").read_bytes()
    assert not any(word in raw for word in (b"coding agent", b"/first", b"find the test"))
