"""Anchors where host memory has room for the conversations alone: what they push out is lost once, and no more."""

from typing import Any

from proxy.demo.sessions import Body, next_turn
from tests.conftest import StartLlama
from tests.serving.running import running, sessions

FLAGS = ("-np", "1", "--cache-ram", "4")


def install(number: int, folder: str) -> Body:
    """A first request whose prompt begins like that of no other install."""
    (body,) = sessions(folder, tokens=900, user=f"{folder} " + "word " * 40)
    tools: list[Any] = body["tools"]
    named = [
        {**tool, "function": {**tool["function"], "name": f"x{number}{place}"}} for place, tool in enumerate(tools)
    ]
    return {**body, "tools": named}


async def test_what_they_push_out_is_lost_once(start_llama: StartLlama) -> None:
    """Three installs take turns: when one comes back to nothing, no more anchors are left on this server."""
    turns = [install(number, f"/{number}") for number in range(3)]
    server = start_llama("hybrid", *FLAGS)
    async with running(server) as proxied:
        for _ in range(3):
            for place, body in enumerate(turns):
                await proxied.ask(body)
                turns[place] = next_turn(body, "done", "go on")
        model = proxied.proxy.engine.model
        assert not model.able.needs_anchors or model.able.has_room is False
        proxied.heard.anchors.clear()
        for body in (install(4, "/4"), install(5, "/5")):
            await proxied.ask(body)
    assert not proxied.heard.anchors
