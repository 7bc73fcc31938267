"""A visit: one chat completion as far as its own bytes and headers tell, put together from the parts in `request`.

Pure. Owns the reasons for which a request is forwarded without any preparation; they end up in its log line.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.request.body import ChatRequest, Unreadable, read_chat
from proxy.request.conversation import has_assistant_turns, inputs_key, links
from proxy.request.fingerprint import client_version
from proxy.request.prefix import NoPrefix, StablePrefix, joined_text, stable_prefix
from proxy.request.rendering import head_key, inputs_digest, rendering_key
from proxy.settings import Settings

AUTH_HEADERS = ("Authorization", "X-Api-Key")
OWN_WAYS = ("Content-Encoding", "X-Conversation-Id")
"""Headers with which a router refuses a request before it loads a model, or finishes it though its client has left."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One chat completion, understood."""

    request: ChatRequest | None
    prefix: StablePrefix | None
    reason: str
    """Why there is no stable prefix, or why nothing may be prepared; "" if there is one and it may."""
    may_prepare: bool
    client: str
    auth: Mapping[str, str]
    """The client's own credentials, for our calls on its behalf."""
    chain: tuple[bytes, ...] = ()
    sizes: tuple[int, ...] = ()
    inputs: bytes = b""
    """Hash of model name and rendering inputs."""
    rendering: str = ""
    """Under what the exact prefix is remembered; "" without a stable prefix."""

    head: str = ""
    """Under what the head is remembered."""
    may_load: bool = False
    """Whether a router would load its model for it, and nothing else become of it than of any other request."""

    @property
    def model(self) -> str:
        """The model's name in the request."""
        return self.request.model if self.request else ""

    @property
    def is_text(self) -> bool:
        """Whether all messages are text: pictures and sounds take tokens that a rendering does not show."""
        messages = self.request.messages if self.request else ()
        contents = [message.get("content") for message in messages]
        return all(content is None or joined_text(content) is not None for content in contents)

    @property
    def has_past(self) -> bool:
        """Whether it is in mid-conversation."""
        return self.request is not None and has_assistant_turns(self.request)


def understand(body: bytes, headers: Mapping[str, str], settings: Settings, query: str = "") -> Visit:
    """Read a request; whatever it is, there is a visit. `query` is that of its target."""
    client = client_version(headers.get("User-Agent"))
    auth = {name: headers[name] for name in AUTH_HEADERS if name in headers}
    request = read_chat(body, headers.get("Content-Encoding", ""), headers.get("Content-Type", ""))
    if isinstance(request, Unreadable):
        return Visit(None, None, request.reason, may_prepare=False, client=client, auth=auth)
    prefix = stable_prefix(request, settings.markers)
    barred = _barred(request, settings)
    found = None if isinstance(prefix, NoPrefix) else prefix
    hashes, sizes = links(request, b"")
    inputs = inputs_digest(request)
    return Visit(
        request,
        found,
        barred or (prefix.reason if isinstance(prefix, NoPrefix) else ""),
        may_prepare=not barred,
        client=client,
        auth=auth,
        chain=hashes,
        inputs=inputs_key(inputs, request.model),
        sizes=sizes,
        rendering=rendering_key(inputs, found) if found else "",
        head=head_key(inputs, request, found) if found else "",
        may_load=not (query or any(name in headers for name in OWN_WAYS)),
    )


def _barred(request: ChatRequest, settings: Settings) -> str:
    """Why nothing may be prepared for this request; "" if it may."""
    if settings.observe_only:
        return "observe_only"
    if settings.models and request.model not in settings.models:
        return "model_not_listed"
    if request.own_slot:
        return "own_slot"
    if request.own_lora:
        return "own_lora"
    return "" if request.cache_prompt else "cache_prompt_off"
