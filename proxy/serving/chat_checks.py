"""Checks of a restored prefix whose tokens are not known, as the server can't render: asked as it was made, by chat.

There is no "prefix and one more token" then. The same chat again must come from the cache, and one with another user's
message must share something with it: where it shares nothing, this server can't go back inside a slot, and only the
words of the one who started it can tell why. Only on models that roll back: no other gets a prefix by chat.
"""

import orjson

from proxy.llama.replies import Warmed
from proxy.serving.context import Context
from proxy.serving.model import ExactPrefix
from proxy.serving.ticket import Ticket
from proxy.slots.verdict import GOOD_SHARE

OTHER_USER = "which files are there?"


class ChatChecks:
    """Asks a restored slot by chat, for one context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def is_good(self, ticket: Ticket, prefix: ExactPrefix, name: str, n_tokens: int) -> bool:
        """Whether the same chat is reused; that another one is not is only told."""
        context = self._context
        same = await self._ask(prefix.chat_body, ticket)
        if same.cache_n < GOOD_SHARE * n_tokens:
            context.report.unfit(name, "verification failed", f"cache_n={same.cache_n} of {n_tokens}")
            return False
        context.report.verified(name, same.cache_n, n_tokens, None)
        other = await self._ask(divergent(prefix.chat_body), ticket)
        if not other.cache_n:
            context.report.trouble(
                "divergent_not_reused",
                f"{name} is restored, but another session reuses nothing of it (cache_n=0): "
                "a sliding-window model needs --swa-full on the server",
            )
        context.model.ledger.hold(ticket.plan.slot or 0, prefix.held(other.prompt_n + other.cache_n))
        return True

    async def _ask(self, body: bytes, ticket: Ticket) -> Warmed:
        context = self._context
        return await context.model.client.prefill_chat(body, ticket.visit.auth, context.settings.warm_timeout)


def divergent(body: bytes) -> bytes:
    """The same chat, but the user says something."""
    chat = orjson.loads(body)
    *before, last = chat["messages"]
    return orjson.dumps({**chat, "messages": [*before, {**last, "content": OTHER_USER}]})
