"""A proxy that starts beside a server at work does no harm: what it hasn't seen it leaves alone."""

from proxy.demo.models import Kind
from proxy.demo.sessions import Body, next_turn
from tests.conftest import StartLlama
from tests.serving.running import ask_directly, running, sessions
from tests.variants import servers

BATCH = 512
LONG = "read the first file and say what it does. " * 150


def turns(body: Body) -> list[Body]:
    """A conversation much longer than its prefix, in three requests."""
    second = next_turn(body, "look", LONG)
    return [body, second, next_turn(second, "done", "and now the second one")]


@servers
async def test_a_long_conversation_goes_on_after_the_proxy_was_restarted(
    start_llama: StartLlama, kind: Kind, flags: tuple[str, ...]
) -> None:
    """The next turn of a conversation that is hot in the server prefills no more than without a proxy."""
    first, second, third = turns(*sessions("/a"))
    server = start_llama(kind, *flags)
    *_, directly = await ask_directly(server, first, second, third)
    server.restart()
    async with running(server) as before:
        await before.ask(first)
        await before.ask(second)
    async with running(server) as after:
        answer = await after.ask(third)
    assert 0 == len(after.heard.warm_ups)
    assert directly.prefilled >= answer.prefilled


@servers
async def test_a_conversation_that_the_proxy_never_saw_goes_on(
    start_llama: StartLlama, kind: Kind, flags: tuple[str, ...]
) -> None:
    """A conversation led directly until now prefills no more in its next turn, nor in the one after it."""
    first, second, third = turns(*sessions("/a"))
    fourth = next_turn(third, "so it is", "thanks")
    server = start_llama(kind, *flags)
    directly = await ask_directly(server, first, second, third, fourth)
    server.restart()
    await ask_directly(server, first, second)
    async with running(server) as proxied:
        answers = [await proxied.ask(third), await proxied.ask(fourth)]
    assert 0 == len(proxied.heard.warm_ups)
    assert [True, True] == [d.prefilled >= a.prefilled for d, a in zip(directly[2:], answers, strict=True)]
    assert "continue" == proxied.sources[-1]


@servers
async def test_a_new_session_after_a_restart_of_the_proxy_is_warm_again(
    start_llama: StartLlama, kind: Kind, flags: tuple[str, ...]
) -> None:
    """What the new proxy can't know it prepares again: the session after the next finds the prefix warm."""
    first, second, third = sessions("/a", "/b", "/c")
    server = start_llama(kind, *flags)
    async with running(server) as before:
        await before.ask(first)
    (directly,) = await ask_directly(server, second)
    server.restart()
    async with running(server) as before:
        await before.ask(first)
    async with running(server) as after:
        answers = [await after.ask(body) for body in (second, third)]
        expected = after.prefix.n_tokens
    warmed = after.heard.prefilled
    # A recurrent state that was kept exactly at the prefix's end is of no use to a prompt that ends there.
    again = BATCH if kind == "hybrid" else 0
    assert directly.prefilled + again + 8 >= answers[0].prefilled + warmed
    assert expected - BATCH - 5 <= answers[1].reused
