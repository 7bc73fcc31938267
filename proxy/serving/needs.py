"""What a request needs, once the server has been asked: its fingerprint and its exact prefix.

Owns the remembering of exact prefixes by their rendering inputs, and the fallback where the server can't render: the
prefix is then prefilled as a chat request with an empty user message, which leaves the template's closing tokens in the
slot and is worth something only where a slot can be rolled back.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from http import HTTPStatus

from proxy.checkpoints.key import checkpoint_key
from proxy.llama.client import Auth, ControlFailed
from proxy.llama.renderer import LikelyToStay, exact_head, exact_prefix, likely_to_stay
from proxy.request.body import ChatRequest
from proxy.request.conversation import opening
from proxy.request.fingerprint import ModelIdentity, fingerprint
from proxy.request.prefix import StablePrefix
from proxy.request.rendering import chat_shaped, common_length
from proxy.serving.context import Context
from proxy.serving.model import ExactPrefix
from proxy.serving.store import identity_text
from proxy.serving.ticket import Ticket
from proxy.serving.visit import Visit
from proxy.slots.anchoring import leaves_anchors
from proxy.slots.holding import BYTES_PER_TOKEN, Need, continues_talk

HEAD_TOKENS = 512
"""By how much a head must be longer than the exact prefix: a shorter rest is prefilled in one batch."""
ANCHORED_HEAD_TOKENS = 8
"""The same where an anchor keeps it, which costs no file and little time: fewer are no more than it costs."""
STEM_TOKENS = 512
"""At least so long must a stem be, to be worth a file."""
STEM_APART = 64
"""By so much must one be longer than another."""
REWRITTEN_TIMES = 3
MAX_FINGERPRINTS = 64
MAX_CONVERSATIONS = 64
"""Of so many it is remembered how they went on."""
CHARACTERS_PER_TOKEN = 6
"""High, so that what is claimed of a prefix that could not be counted is too little rather than too much."""
MOST_BYTES_PER_TOKEN = 16
"""Hardly any text has longer tokens on average."""
CANNOT_RENDER = (HTTPStatus.NOT_FOUND, HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.INTERNAL_SERVER_ERROR)


class Needs:
    """Finds out what requests need, for one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rewritten: OrderedDict[bytes, list[str]] = OrderedDict()
        """By conversation: the keys of the prefixes, each never seen before, with which it went on."""
        self._fingerprints: OrderedDict[tuple[str, str, ModelIdentity], str] = OrderedDict()
        """By what decides it; each is a hash over all tools and the prefix."""

    def identify(self, ticket: Ticket) -> None:
        """Give the request its fingerprint, where the model is known."""
        visit, identity = ticket.visit, self._context.model.identity
        if visit.request is None or visit.prefix is None or identity is None:
            return
        name = (visit.rendering, visit.client, identity)
        if name not in self._fingerprints:
            self._fingerprints[name] = fingerprint(visit.request, visit.prefix, identity, visit.client)
            if len(self._fingerprints) > MAX_FINGERPRINTS:
                self._fingerprints.popitem(last=False)
        ticket.fingerprint = self._fingerprints[name]

    def was_rewritten(self, ticket: Ticket) -> None:
        """A conversation goes on with a prefix never seen; when that goes on and on, somebody should know."""
        if ticket.visit.request is None:
            return
        name, key = opening(ticket.visit.request), ticket.need.prefix_key
        keys = self._rewritten.pop(name, [])
        self._rewritten[name] = keys
        if len(self._rewritten) > MAX_CONVERSATIONS:
            self._rewritten.popitem(last=False)
        if key in keys:
            return  # conversations that begin alike and take turns, each with its own prompt
        keys[:] = [*keys[-REWRITTEN_TIMES:], key]
        now, before = self._context.model.by_key(key), self._context.model.by_key(keys[-2] if len(keys) > 1 else "")
        if now is None or before is None or len(keys) < REWRITTEN_TIMES:
            return
        same = common_length(now.tokens, before.tokens)
        self._context.report.trouble(
            "prompt_rewritten",
            f"tools or system prompt change in mid-conversation again and again, last from token {same} of "
            f"{now.n_tokens} on: all after that is prefilled anew each time; look for what rewrites them",
        )

    async def of(self, ticket: Ticket) -> Need:
        """What the request needs of a slot; raises ControlFailed where the server does not answer."""
        visit = ticket.visit
        choices = visit.request.choices if visit.request else 1
        need = Need(visit.chain, visit.sizes, has_past=visit.has_past, slots=choices, inputs=visit.inputs)
        if visit.prefix is None or self._is_too_long(sum(need.sizes) // MOST_BYTES_PER_TOKEN):
            return need
        known = self._context.model.recall(visit.rendering, date.today())
        if known is None and any(continues_talk(need, belief.holds) for belief in self._context.model.ledger.idle()):
            return need  # it needs no prefix now, and rendering would cost it some milliseconds
        known = known or await self._render(ticket)
        if known is None or known.n_tokens < self._context.settings.min_prefix_tokens:
            return need
        if self._is_too_long(ticket.n_rendered):
            return need
        head, stems = await self._head(ticket, known), await self._stems(ticket.visit, known)
        n_most = max(known.n_tokens, head.n_tokens if head else 0)
        return replace(
            need,
            prefix_key=known.key,
            prefix_tokens=known.n_tokens,
            rest_tokens=_rest(need, known),
            head_key=head.key if head else "",
            head_tokens=head.n_tokens if head else 0,
            stems=tuple((stem.key, stem.n_tokens) for stem in stems),
            common=self._context.model.common(known),
            is_slow=self._is_slow(n_most),
        )

    def _is_too_long(self, n_tokens: int) -> bool:
        """Whether no slot could hold so many tokens: the server refuses such a request, and nothing is prefilled."""
        return 0 < self._context.model.able.n_ctx < n_tokens

    async def _head(self, ticket: Ticket, base: ExactPrefix) -> ExactPrefix | None:
        """The head, where it is worth keeping: the model can't go back to its end by itself."""
        visit, model = ticket.visit, self._context.model
        has_files = self._context.store.is_on and bool(model.able.restores)
        if model.able.goes_back_freely or base.chat_body or not (has_files or leaves_anchors(model.able)):
            return None
        found = model.recall(visit.head, date.today())
        if found is None and visit.request is not None and visit.prefix is not None:
            # A server that can't roll back goes back to where the first message begins. Where it rolls back by the
            # token, a head without those that say whose message it is would cost them in each session.
            of_users = model.able.truncates
            tokens = await exact_head(model.client, visit.request, visit.prefix, visit.auth, of_users=of_users)
            found = self._remember(visit.head, tokens, base)
        least = HEAD_TOKENS if has_files else ANCHORED_HEAD_TOKENS
        if found is None or found.n_tokens < base.n_tokens + least:
            return None
        # A prefix that is prefilled in time is not to wait for a head that isn't.
        return found if has_files or not self._is_slow(found.n_tokens) else None

    async def _stems(self, visit: Visit, base: ExactPrefix) -> list[ExactPrefix]:
        """Parts that others will likely begin with, where the model can't go back to them and they can be kept."""
        model = self._context.model
        has_files = self._context.store.is_on and bool(model.able.restores)
        has_anchors = model.able.truncates and leaves_anchors(model.able)
        if model.able.goes_back_freely or model.able.is_untried or not base.tokens or not (has_files or has_anchors):
            return []
        if base.stems is None:
            base = replace(base, stems=tuple(await self._stems_of(visit, base)))
            model.remember(visit.rendering, base)
        return [stem for key in base.stems or () if (stem := model.by_key(key)) is not None]

    async def _stems_of(self, visit: Visit, base: ExactPrefix) -> list[str]:
        if visit.request is None or visit.prefix is None:
            return []
        try:
            found = await likely_to_stay(self._context.model.client, visit.request, visit.prefix, visit.auth)
        except ControlFailed as error:
            if error.code not in (HTTPStatus.BAD_REQUEST, *CANNOT_RENDER):
                raise
            return []  # not every template takes another text
        return list(self._worth_keeping(visit.rendering, base, found))

    def _worth_keeping(self, rendering: str, base: ExactPrefix, found: LikelyToStay) -> Iterator[str]:
        """Keys of the stems. Most installs have one text for their tools, so the tools are one only with a second text.

        But for a sliding window with all of its cache: there a slot has them for every text, until one comes back.
        """
        model, least = self._context.model, STEM_TOKENS
        for n_tokens in sorted(common_length(tokens, base.tokens) for tokens in (found.tools, found.before_date)):
            tokens = base.tokens[:n_tokens]
            others = (
                other.tokens[:n_tokens]
                for other in model.prefixes.values()
                if base.key not in (other.key, other.base_key)
            )
            is_dated = n_tokens == common_length(found.before_date, base.tokens)
            if not least <= n_tokens < base.n_tokens or not (is_dated or model.able.truncates or tokens in others):
                continue
            if (stem := self._remember(f"{n_tokens} of {rendering}", tuple(tokens))) is not None:
                least = n_tokens + STEM_APART
                yield stem.key

    def _is_slow(self, n_tokens: int) -> bool:
        """Whether prefilling so much takes longer than a client waits for us."""
        return n_tokens * self._context.model.prompt_ms_per_token > self._context.settings.max_silence * 1000

    def _remember(
        self, name: str, tokens: tuple[int, ...], base: ExactPrefix | None = None, seen: tuple[int, int] = (0, 0)
    ) -> ExactPrefix | None:
        model = self._context.model
        if model.identity is None:
            return None
        identity = model.identity
        key = checkpoint_key(identity_text(identity), identity.lora, identity.server_id, tokens)
        found = ExactPrefix(key, array("i", tokens), len(tokens), date.today(), seen_tokens=seen[0], seen_bytes=seen[1])
        if base is not None:
            found = replace(found, base_key=base.key, base_tokens=base.n_tokens)
        model.remember(name, found)
        return found

    async def _render(self, ticket: Ticket) -> ExactPrefix | None:
        visit, model = ticket.visit, self._context.model
        if visit.request is None or visit.prefix is None or model.identity is None:
            return None
        if not model.renders:
            return self._unrendered(visit.request, visit.prefix, visit.rendering)
        try:
            rendered = await exact_prefix(model.client, visit.request, visit.prefix, visit.auth)
        except ControlFailed as error:
            if error.code not in CANNOT_RENDER:
                raise
            if await self._can_render(visit.auth):
                return None  # the request is odd, not the server
            model.renders = False
            self._context.report.trouble("cannot_render", f"{error}: prefixes are warmed by chat request instead")
            return self._unrendered(visit.request, visit.prefix, visit.rendering)
        ticket.n_rendered = rendered.n_real
        seen = (rendered.n_real, sum(visit.sizes))
        return self._remember(visit.rendering, rendered.tokens, seen=seen)

    async def _can_render(self, auth: Auth) -> bool:
        try:
            await self._context.model.client.can_render(auth)
        except ControlFailed as error:
            if error.code not in CANNOT_RENDER:
                raise
            return False
        return True

    def _unrendered(self, request: ChatRequest, prefix: StablePrefix, rendering: str) -> ExactPrefix | None:
        model = self._context.model
        identity = model.identity
        if not model.able.rolls_back or identity is None:
            return None
        n_tokens = len(prefix.text) // CHARACTERS_PER_TOKEN
        key = checkpoint_key(identity_text(identity), identity.lora, identity.server_id, rendering.encode())
        body = chat_shaped(request, prefix)
        found = ExactPrefix(key, array("i"), n_tokens, date.today(), chat_body=body)
        model.remember(rendering, found)
        return found


def _rest(need: Need, known: ExactPrefix) -> int:
    """About how many tokens follow the prefix, by what followed it in the request that it was found with."""
    if not known.seen_tokens:
        return 0
    more = (sum(need.sizes) - known.seen_bytes) / BYTES_PER_TOKEN
    return max(1, known.seen_tokens - known.n_tokens + round(more))
