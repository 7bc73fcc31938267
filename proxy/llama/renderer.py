"""Finding the exact prefix: the tokens that every session with these rendering inputs begins with.

Owns the asking (`/apply-template`, `/tokenize`); which bodies to render and what their token lists have in common is
`request.rendering`. All is asked at once; a server answers each in about a millisecond.
"""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus

from proxy.llama.client import Auth, ControlFailed, LlamaClient
from proxy.request.body import ChatRequest
from proxy.request.dated import before_first_date
from proxy.request.prefix import StablePrefix
from proxy.request.rendering import common_prefix, head_variants, other_text, variants

MAX_COMPARED_BYTES = 256 * 1024
"""A longer request isn't rendered itself: it would only tell how many tokens it has, and takes seconds for some MB."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """An exact prefix and how it was found."""

    tokens: tuple[int, ...]
    n_real: int
    """Tokens of the real request's whole prompt, to be compared with the server's own count; 0 is not known."""


async def exact_prefix(client: LlamaClient, request: ChatRequest, prefix: StablePrefix, auth: Auth) -> Rendered:
    """Render and compare; raises ControlFailed where the server can't render."""

    real, *made_up = variants(request, prefix)
    if len(real) > MAX_COMPARED_BYTES:
        return Rendered(tuple(common_prefix(await _tokens(client, made_up, auth))), 0)
    lists, told = await asyncio.gather(_tokens(client, made_up, auth), _real(client, real, auth))
    return Rendered(tuple(common_prefix([*lists, told] if told else lists)), len(told))


async def _real(client: LlamaClient, body: bytes, auth: Auth) -> list[int]:
    """The real request's tokens; none where the server refuses to render it (a picture for a text-only model)."""
    try:
        return await client.tokenize(await client.render(body, auth), auth)
    except ControlFailed as error:
        if error.code < HTTPStatus.BAD_REQUEST or error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise
        return []


async def whole_prompt(client: LlamaClient, request: ChatRequest, prefix: StablePrefix, auth: Auth) -> list[int]:
    """The request's own tokens; none where the server refuses to render it, or it is very long."""
    body = variants(request, prefix)[0]
    return await _real(client, body, auth) if len(body) <= MAX_COMPARED_BYTES else []


async def beginning_of_prompt(
    client: LlamaClient, request: ChatRequest, prefix: StablePrefix, n_messages: int, auth: Auth
) -> list[int]:
    """The tokens of the first messages, the last of which is an answer in plain text; none where it is not.

    The server takes such an answer for one that is to be gone on with, and leaves it open.
    """
    messages = request.messages[:n_messages]
    answer = messages[-1] if len(messages) == n_messages else {}
    is_plain = answer.get("content") is not None and not (answer.get("tool_calls") or answer.get("reasoning_content"))
    if answer.get("role") != "assistant" or not is_plain:
        return []
    fields = {**request.fields, "messages": list(messages)}
    try:
        return await whole_prompt(client, replace(request, messages=messages, fields=fields), prefix, auth)
    except ControlFailed:
        return []


async def exact_head(
    client: LlamaClient, request: ChatRequest, prefix: StablePrefix, auth: Auth, *, of_users: bool = False
) -> tuple[int, ...]:
    """The tokens that every request with this system text begins with, or every one in which the user speaks first;
    raises ControlFailed likewise."""
    *users, other = head_variants(request, prefix)
    if of_users:
        return tuple(common_prefix(await _tokens(client, users, auth)))
    lists, told = await asyncio.gather(_tokens(client, users, auth), _real(client, other, auth))
    return tuple(common_prefix([*lists, told] if told else lists))


@dataclass(frozen=True, slots=True)
class LikelyToStay:
    """Token lists that begin with what later prefixes will likely begin with, too, and then go on otherwise."""

    tools: "array[int]"
    """With another system text, from its first letter on: what precedes it stays, where the tools are the same. Empty
    where the template refuses that."""
    before_date: "array[int]"
    """Up to the line with the first date; empty where there is none."""


async def likely_to_stay(client: LlamaClient, request: ChatRequest, prefix: StablePrefix, auth: Auth) -> LikelyToStay:
    """Render and tokenize; raises ControlFailed likewise."""

    async def before_date() -> list[int]:
        text = before_first_date(await client.render(variants(request, prefix)[1], auth))
        return await client.tokenize(text, auth) if text else []

    tools, dated = await asyncio.gather(_real(client, other_text(request, prefix), auth), before_date())
    return LikelyToStay(array("i", tools), array("i", dated))


async def _tokens(client: LlamaClient, bodies: Sequence[bytes], auth: Auth) -> list[list[int]]:
    async def tokens(body: bytes) -> list[int]:
        return await client.tokenize(await client.render(body, auth), auth)

    return await asyncio.gather(*(tokens(body) for body in bodies))
