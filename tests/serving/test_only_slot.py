"""`SLOT=N` on a server of four slots: the prefix is prepared there, and no other slot is changed by it."""

from pathlib import Path

import pytest

from tests.conftest import StartLlama
from tests.serving.running import running, sessions


@pytest.mark.parametrize("flags", [(), ("-np", "4", "--no-kv-unified")], ids=["default-flags", "four-slots"])
@pytest.mark.parametrize("slot", [0, 2])
async def test_the_named_slot_is_prepared(
    start_llama: StartLlama, tmp_path: Path, slot: int, flags: tuple[str, ...]
) -> None:
    """Also where the server would have chosen another, and from disk after a restart."""
    server = start_llama("hybrid", "--slot-save-path", str(tmp_path), *flags)
    first, second, third = sessions("/a", "/b", "/c", tokens=600)
    settings = {"persist": True, "slot_dir": tmp_path, "dir": tmp_path / "index", "slot": slot}
    async with running(server, **settings) as proxied:
        for body in (first, second):
            answer = await proxied.ask(body)
            assert (slot, True) == (proxied.last.slot, answer.reused >= proxied.prefix.n_tokens), proxied.reasons
        server.kill()
        server.start()
        answer = await proxied.ask(third)
        assert (slot, True) == (proxied.last.slot, answer.reused >= proxied.prefix.n_tokens), proxied.reasons
    assert 1 == len(proxied.heard.warm_ups)
