"""The pretended server is held against the real one: the proxy in front of either does and claims the same."""

from pathlib import Path

from proxy.demo.sessions import Body, next_turn
from tests.conftest import StartLlama
from tests.faults.pretender import TEXT, Pretender
from tests.faults.test_control_calls import trace
from tests.serving.running import Running, running
from tests.wire import recording


async def done(proxied: Running, bodies: list[Body]) -> list[tuple[str, str]]:
    for body in bodies:
        await proxied.ask(body)
    assert [] == [reason for reason in proxied.heard.troubles if reason.startswith("claim:")]
    return [*zip(proxied.sources, proxied.reasons, strict=True)]


async def test_the_proxy_does_the_same(start_llama: StartLlama, tmp_path: Path) -> None:
    """Sources, reasons and what was found out of the server are equal, and every claim comes true."""
    bodies = trace()
    bodies += [next_turn(bodies[4], TEXT, "and on"), next_turn(bodies[3], TEXT, "and on")]
    real = start_llama("dense", "-np", "1", "--slot-save-path", str(tmp_path))
    async with running(real, persist=True, dir=tmp_path / "real") as proxied:
        expected = await done(proxied, bodies), proxied.proxy.engine.model.able.rolls_back
    pretender = Pretender()
    async with (
        recording(pretender.script) as upstream,
        running(f"http://127.0.0.1:{upstream.port}/v1", persist=True, dir=tmp_path / "pretended") as proxied,
    ):
        assert expected == (await done(proxied, bodies), proxied.proxy.engine.model.able.rolls_back)
    assert {"warm-up", "restore", "resume"} <= {source for source, _ in expected[0]}
