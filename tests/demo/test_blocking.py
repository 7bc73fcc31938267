"""The guard of `conftest`: blocking calls on the event loop don't go unseen."""

import asyncio
import time
from pathlib import Path

import pytest
from blockbuster import BlockingError

import proxy
from tests.conftest import StartLlama

SWALLOWING = """
import time
def doze():
    try:
        time.sleep(0)
    except Exception:
        pass
def doze_openly():
    time.sleep(0)
"""


def code_of_the_proxy(name: str) -> object:
    """A function that looks as if it stood in the package."""
    scope: dict[str, object] = {}
    exec(compile(SWALLOWING, str(Path(proxy.__file__).with_name("doze.py")), "exec"), scope)
    return scope[name]


@pytest.mark.may_block
async def test_a_blocking_call_in_the_proxy_raises_on_the_event_loop() -> None:
    """Code of the package that blocks the loop gets an error."""
    with pytest.raises(BlockingError):
        code_of_the_proxy("doze_openly")()  # type: ignore[operator]


@pytest.mark.may_block
async def test_a_blocking_call_is_noted_though_the_code_swallows_every_error(blocking_calls: list[str]) -> None:
    """Failing open doesn't hide a blocking call from the tests."""
    code_of_the_proxy("doze")()  # type: ignore[operator]
    assert ["time.sleep on the event loop"] == [call.splitlines()[0] for call in blocking_calls]


async def test_a_blocking_call_off_the_event_loop_is_fine() -> None:
    """Work handed to a thread may block."""
    await asyncio.to_thread(code_of_the_proxy("doze_openly"))  # type: ignore[arg-type]


async def test_a_test_may_block_itself(tmp_path: Path, start_llama: StartLlama) -> None:
    """Tests look at files and start servers while their loop runs."""
    time.sleep(0)
    (tmp_path / "file").write_text("text")
    assert start_llama("dense").is_running
