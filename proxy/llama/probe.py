"""The probe: a dozen short requests that tell what this server can do, whatever its version and flags.

Only on an idle server whose slots are empty: it uses a slot and leaves nothing of value behind. Each finding is an
observation from `timings.cache_n`, so the probe can say "not seen" but never "should". 96 random tokens are used, as
many as make the figures clear: a rollback to the middle gives 48 of 96, a sliding window loses some five.

With random tokens a yes is proof; a no may come of somebody else's request just then. Those after which nothing would
be prepared, or saved, any more are asked again.

Counterpart: `slots.capabilities` is the record; `engine` says when it is time.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus

from proxy.llama.client import Auth, ControlFailed, LlamaClient
from proxy.slots.capabilities import Capabilities

N_TOKENS = 96
HALF = N_TOKENS // 2
MOST = int(0.9 * N_TOKENS)
NEARLY = 2
"""A sliding window gives some tokens more or less."""
MOST_TOKENS = 2 * N_TOKENS
"""More than any prompt of the probe's has."""
LAST_TOKENS = 4
USUAL_BATCH = 512
"""A server leaves checkpoints so many tokens before a prompt's end, and so many more than its `-ub` (by default this):
more than the probe's prompt has, so that only a smaller one can be seen."""
TOO_SLOW_MS = 1500.0
"""A server that takes this long for 96 tokens has better things to do."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What the probe found."""

    able: Capabilities
    prompt_ms_per_token: float
    slot: int
    spare: tuple[int, ...] = ()
    """Random tokens that no prompt of the probe's begins with."""


async def probe(client: LlamaClient, able: Capabilities, auth: Auth, filename: str | None, limit_s: float) -> Probed:
    """Try everything once; raises ControlFailed where the server stops answering.

    `filename` is a name of ours in the slot directory; None where nothing may be written.
    """
    words = await _random_tokens(client, auth)
    prompt = words[:N_TOKENS]
    # What begins like the prompt would be taken for it, in a slot and in host memory.
    other = next(token for token in words if token != prompt[0])
    spare = tuple(dict.fromkeys(token for token in words[N_TOKENS:] if token not in (prompt[0], other)))
    # What goes on like the prompt by chance would make one token less to prefill.
    others = words[next(place for place in range(N_TOKENS, len(words)) if words[place] != prompt[HALF]) :]
    first = await client.prefill(prompt, auth, limit_s)
    slot, rate = first.slot, first.prompt_ms / N_TOKENS
    if first.prompt_ms > TOO_SLOW_MS or slot < 0:
        return Probed(able, rate, slot, spare)
    trial = _Trial(client, auth, limit_s, prompt, other, slot)
    acts, restores = (None, None) if filename is None else await trial.restores(filename)
    reuses, finds_alike = await trial.reuses()
    able = replace(
        able,
        acts_on_slots=acts,
        restores=restores,
        reuses=reuses,
        finds_alike=finds_alike or able.total_slots == 1,
        clears_idle=await trial.clears_idle() if able.total_slots > 1 and able.shows_slots else False,
        keeps_copies=await trial.keeps_copies(),
        rolls_back=await trial.rolls_back(others),
    )
    if able.truncates:
        able = replace(able, copies_roll_back=False)
    if not able.rolls_back:
        mark_distance, is_windowed = await trial.marks(others)
        able = replace(able, mark_distance=mark_distance, is_windowed=is_windowed)
    return Probed(able, rate, slot, spare)


async def _random_tokens(client: LlamaClient, auth: Auth) -> list[int]:
    """More than enough tokens of random text, none of which begins a prompt that anybody has."""
    text = " ".join(secrets.token_hex(2) for _ in range(4 * N_TOKENS))
    tokens = await client.tokenize(text, auth)
    if len(tokens) < 2 * N_TOKENS:
        raise ControlFailed("/tokenize gives too few tokens to probe with")
    # The first may be the beginning-of-sequence token, which all prompts share.
    return tokens[1 : 2 * N_TOKENS]


@dataclass(frozen=True, slots=True)
class _Trial:
    """What the single questions share; they are asked in the order in which they stand."""

    client: LlamaClient
    auth: Auth
    limit_s: float
    prompt: Sequence[int]
    other: int
    slot: int

    async def _reused(self, *tokens: int) -> int:
        return (await self.client.prefill(tokens, self.auth, self.limit_s)).cache_n

    async def restores(self, filename: str) -> tuple[bool, bool | None]:
        """Whether slot actions are allowed, and whether what is restored is reused. The slot holds the prompt."""
        acts, restores = await self._restores(filename)
        if restores is not False:
            return acts, restores
        await self._reused(*self.prompt)
        return await self._restores(filename)

    async def _restores(self, filename: str) -> tuple[bool, bool | None]:
        try:
            saved = await self.client.save(self.slot, filename, self.auth, self.limit_s)
            await self.client.erase(self.slot, self.auth, self.limit_s)
            await self.client.restore(self.slot, filename, self.auth, self.limit_s)
        except ControlFailed as error:
            if error.code == 0:
                raise
            is_off = error.code in (HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.NOT_FOUND)
            return not is_off, None if is_off else False
        if saved.n_tokens != len(self.prompt):
            return True, None
        return True, await self._reused(*self.prompt, self.other) >= MOST

    async def reuses(self) -> tuple[bool, bool]:
        """Whether a request gets what a slot holds without asking for it, and whether it is put into that slot."""
        reuses, finds_alike = await self._reuses()
        if reuses and finds_alike:
            return True, True
        reuses_now, finds_now = await self._reuses()
        return reuses or reuses_now, finds_alike or finds_now

    async def _reuses(self) -> tuple[bool, bool]:
        asked = [*self.prompt, self.other]
        before = await self.client.prefill(asked, self.auth, self.limit_s)
        found = await self.client.prefill_plainly([*asked, self.other], self.auth, self.limit_s)
        return found.cache_n >= MOST, found.slot == before.slot

    async def clears_idle(self) -> bool:
        """Whether a task in another slot empties this one."""
        await self._reused(*self.prompt, self.other)
        elsewhere = 0 if self.slot else 1
        await self.client.copy(elsewhere, self.auth, self.limit_s)
        looks = await self.client.slots(self.auth)
        return any(look.slot == self.slot and look.n_tokens == 0 for look in looks)

    async def keeps_copies(self) -> bool:
        """Whether a displaced prompt comes back from host memory."""
        found = await self.client.prefill([*self.prompt, self.other], self.auth, self.limit_s)
        await self.client.copy(found.slot, self.auth, self.limit_s)
        await self.client.displace(found.slot, self.other, self.auth, self.limit_s)
        return await self._reused(*self.prompt, self.other, self.other) >= MOST

    async def rolls_back(self, others: Sequence[int]) -> bool:
        """Whether half of a prompt is reused when the other half changes."""
        return await self._reused(*self.prompt[:HALF], *others[:HALF]) >= HALF - 1

    async def marks(self, others: Sequence[int]) -> tuple[int | None, bool]:
        """How far before the end of a first prompt the checkpoint lies that two more turns leave, and whether a slot
        goes on before its end; for models that don't roll back: the slot begins anew with a prompt that it holds a
        quarter of."""
        quarter, turn = HALF // 2, HALF // 6
        first = [*self.prompt[:quarter], *reversed(others[:HALF]), *reversed(self.prompt[:quarter])]
        second = [*first, *self.prompt[HALF : HALF + turn]]
        await self._reused(*first)
        most = await self._reused(*second)
        await self._reused(*second, *self.prompt[HALF + turn : HALF + 2 * turn])
        left = await self._reused(*first, *others[:turn])
        return _distance(most, left), MOST <= most < N_TOKENS


def _distance(most: int, left: int) -> int | None:
    if left >= most - NEARLY:
        return 0
    if left >= MOST:
        return USUAL_BATCH + LAST_TOKENS
    return N_TOKENS - left if left else None
