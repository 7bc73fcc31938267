"""Which requests the engine understands, and which make it doubt what the slots hold."""

import orjson
import pytest

from proxy.serving.app import path_of
from proxy.slots.holding import Talk, Unknown
from proxy.slots.plan import Source
from tests.serving.route import HOST, answer
from tests.serving.running import sessions
from tests.serving.scripted import whole
from tests.wire import Message, Peer, client

CHAT = orjson.dumps(sessions("/a")[0])


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v1/chat/completions?a#b", "/v1/chat/completions"),
        ("/v1/chat%2Fcompletions#a?b", "/v1/chat/completions"),
        ("http://me:mine@there/chat/completions", "/chat/completions"),
        ("/v1/../slots", "/v1/../slots"),
        ("*", ""),
    ],
)
def test_a_path_is_read_as_the_server_reads_it(target: str, path: str) -> None:
    """Without authority, query and fragment, escapes undone, dots left alone."""
    assert path == path_of(target)


def post(target: str, body: bytes = CHAT) -> bytes:
    head = f"POST {target} HTTP/1.1\r\nX-Client: of the test\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + HOST + b"\r\n" + body


@pytest.mark.parametrize("target", ["/v1/chat%2Fcompletions", "http://there/chat/completions", "/chat/completions#x"])
async def test_a_chat_is_one_however_its_path_is_spelt(target: str) -> None:
    """It is prepared like any other, and its target goes on as it came, but for the authority."""

    async def reply(peer: Peer, _: Message) -> None:
        await peer.send(answer(b"fine"))

    async with whole(reply) as path, client(path.port) as visitor:
        assert b"fine" == (await visitor.ask(post(target))).body
        await path.proxied.heard.until(lambda: bool(path.proxied.heard.requests))
        assert Source.WARM_UP is path.proxied.last.plan.source
        assert target.removeprefix("http://there").encode() == path.server.asked[0].target


@pytest.mark.parametrize(
    ("target", "status", "belief"),
    [
        ("/v1/completions", 200, Unknown),
        ("/completion", 500, Unknown),
        ("/v1/audio/transcriptions", 200, Unknown),
        ("/slots/0?action=erase", 200, Unknown),
        ("/something/new", 200, Unknown),
        ("/completion", 401, Talk),
        ("/v1/embeddings", 400, Talk),
        ("/tokenize", 200, Talk),
        ("/v1/messages/count_tokens", 200, Talk),
    ],
)
async def test_what_may_have_used_a_slot_makes_its_content_unknown(target: str, status: int, belief: type) -> None:
    """Whatever is posted may have, but for what the server refuses and what only computes."""

    async def reply(peer: Peer, message: Message) -> None:
        is_chat = b"/chat/completions" in message.target
        await peer.send(answer(b"{}", status=b"200 OK" if is_chat else b"%d So" % status))

    async with whole(reply) as path, client(path.port) as visitor:
        await visitor.ask(post("/v1/chat/completions"))
        await path.proxied.heard.until(lambda: bool(path.proxied.heard.requests))
        (slot,) = path.proxied.proxy.engine.model.ledger.slots
        assert isinstance(slot.holds, Talk)
        assert status == (await visitor.ask(post(target, b"{}"))).status
        assert belief is type(slot.holds)
