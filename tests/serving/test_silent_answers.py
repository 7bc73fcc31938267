"""Answers that tell nothing of themselves: what `/slots` shows stands in, under its own name."""

from tests.serving.running import Running, running, sessions
from tests.serving.scripted import PROMPT_TOKENS, Quiet
from tests.wire import recording


async def test_figures_come_from_the_slot() -> None:
    """A request whose answer has no figures is told with its slot's prompt tokens, named as such."""
    quiet = Quiet()
    async with recording(quiet.script) as upstream, running(f"http://127.0.0.1:{upstream.port}/v1") as proxied:
        said = await proxied.ask(sessions("/a")[0])
        figures = proxied.last.figures
    assert (200, "a") == (said.status, said.text)
    assert figures is not None
    assert ("slots", PROMPT_TOKENS) == (figures.source, figures.prompt_tokens)


async def test_no_claim_is_judged_by_what_nobody_told() -> None:
    """Sessions after it are served, and no claim counts as failed for want of figures."""
    quiet = Quiet()
    async with recording(quiet.script) as upstream, running(f"http://127.0.0.1:{upstream.port}/v1") as proxied:
        said = [await proxied.ask(body) for body in sessions("/a", "/b", "/c")]
    assert [200] * 3 == [one.status for one in said]
    assert [] == failed(proxied)


def failed(proxied: Running) -> list[str]:
    return [reason for reason in proxied.heard.troubles if reason.startswith("claim:")]
