"""Checkpoints where the server can't render: made by a chat, checked by chats."""

import pytest

from proxy.serving.chat_checks import OTHER_USER, divergent
from tests.conftest import StartLlama
from tests.serving.checkpoints.persisting import DENSE, QUIET, SWA_FULL, Calls, Place, crash
from tests.serving.checkpoints.prepared import ask_new, started
from tests.serving.checkpoints.relay import relaying
from tests.serving.running import distance, sessions

pytestmark = pytest.mark.usefixtures("unwatched")
ONE, TWO, THREE = sessions("/one", "/two", "/three", tokens=600)


async def test_it_is_restored_after_a_crash_and_checked_by_chat(
    start_llama: StartLlama, place: Place, calls: Calls
) -> None:
    """The same chat is reused, another one too; the next session answers as a cold server would."""
    server, cold = await started(start_llama, place, DENSE, is_saved=False)
    async with relaying(server) as relay:
        relay.missing = "/apply-template"
        async with place.proxy(relay.base_url) as proxied:
            await proxied.ask(ONE)
            crash(server, under=proxied)
            answer = await ask_new(proxied)
            crash(server, under=proxied)
            await proxied.ask(THREE)
            assert ["warm-up", "restore", "restore"] == proxied.sources
            assert {"cannot_render"} == set(proxied.heard.troubles)
    assert 1400 < answer.reused
    assert QUIET > distance(cold, answer)
    assert place.is_clean()


async def test_a_file_that_the_same_chat_does_not_reuse_is_made_anew(
    start_llama: StartLlama, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the identical prompt shows counts as a failed verification: cold build, file replaced."""
    server = place.start(start_llama, DENSE, "-np", "1")
    async with relaying(server) as relay:
        relay.missing = "/apply-template"
        async with place.proxy(relay.base_url) as proxied:
            await proxied.ask(ONE)
            crash(server, under=proxied)
            first = place.checkpoint.stat().st_ino
            monkeypatch.setattr("proxy.serving.chat_checks.GOOD_SHARE", 1.1)
            await proxied.ask(TWO)
            assert ["warm-up", "warm-up"] == proxied.sources
    assert first != place.checkpoint.stat().st_ino


async def test_another_chat_that_reuses_nothing_is_told_and_the_file_kept(
    start_llama: StartLlama, place: Place, calls: Calls
) -> None:
    """A loud line names the flag that is most likely missing; the restore counts, now and after the next start."""
    server = place.start(start_llama, DENSE, "-np", "1")
    async with relaying(server) as relay:
        relay.missing, relay.forgets = "/apply-template", OTHER_USER.encode()
        async with place.proxy(relay.base_url) as proxied:
            await proxied.ask(ONE)
            first = place.checkpoint.stat().st_ino
            for body in (TWO, THREE):
                crash(server, under=proxied)
                await proxied.ask(body)
            assert ["warm-up", "restore", "restore"] == proxied.sources
            assert "--swa-full" in proxied.heard.said["divergent_not_reused"]
    assert first == place.checkpoint.stat().st_ino


async def test_a_sliding_window_is_not_restored(start_llama: StartLlama, place: Place) -> None:
    """With `--swa-full` an answer would be wrong: a chat ends behind the prefix, and has to be gone back in."""
    server, cold = await started(start_llama, place, SWA_FULL, is_saved=False)
    async with relaying(server) as relay:
        relay.missing = "/apply-template"
        async with place.proxy(relay.base_url) as proxied:
            await proxied.ask(ONE)
            crash(server, under=proxied)
            answer = await ask_new(proxied)
            assert "restore" not in proxied.sources
    assert QUIET > distance(cold, answer)


def test_the_other_chat_differs_in_what_the_user_says() -> None:
    """Everything before the user's message stays as it is."""
    same, other = b'{"messages":[{"role":"system","content":"s"},{"role":"user","content":""}],"n_predict":0}', ""
    other = divergent(same).decode()
    assert '{"messages":[{"role":"system","content":"s"},{"role":"user","content":"which' in other
    assert other.endswith('"n_predict":0}')
