"""All that is known of one model on one upstream: beliefs, capabilities, identity, prefixes, and who is waiting.

One record a model from the first day, so that a router of many models is only more records. Changed by the engine
only. Nothing here does I/O.
"""

import asyncio
import hashlib
import secrets
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from proxy.llama.client import LlamaClient
from proxy.llama.identity import Process
from proxy.request.fingerprint import ModelIdentity
from proxy.request.rendering import common_length
from proxy.serving.gate import Gate, Turn
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Prefix, Talk
from proxy.slots.ledger import Ledger, Look

MAX_PREFIXES = 128
MAX_KNOWN_KEYS = 256
FAILED_RESUMES = 3
"""After so many in a row host memory holds nothing of what we believe: it is too small, or off."""


@dataclass(frozen=True, slots=True)
class ExactPrefix:
    """An exact prefix as it is remembered."""

    key: str
    """Key of its checkpoint; in the fallback by chat request, of its rendering inputs."""
    tokens: "array[int]"
    """Empty where the server can't render."""
    n_tokens: int
    derived_on: date
    base_key: str = ""
    """Of a head: the exact prefix that it begins with."""
    base_tokens: int = 0
    chat_body: bytes = b""
    """The chat request that prefills it, where its tokens can't be had."""
    seen_tokens: int = 0
    """Tokens of the whole prompt with which it was found; 0 where that was not rendered."""
    seen_bytes: int = 0
    """Bytes of that prompt's messages."""
    stems: tuple[str, ...] | None = None
    """Keys of its stems, the shortest first; None where nobody has looked yet."""

    def held(self, n_tokens: int | None = None) -> Prefix:
        """What a slot holds that has just got it."""
        return Prefix(self.key, self.n_tokens if n_tokens is None else n_tokens, self.base_key, self.base_tokens)


@dataclass(slots=True)
class Model:
    """One model on one server process."""

    client: LlamaClient
    process: Process | None = None
    is_router: bool = False
    """The server was last seen to be a router: each of its models has a record of its own, and this one is not used."""
    identity: ModelIdentity | None = None
    ledger: Ledger = field(default_factory=lambda: Ledger(clock=time.monotonic))
    able: Capabilities = field(default_factory=Capabilities)
    gate: Gate = field(default_factory=Gate)
    turn: Turn = field(default_factory=Turn)
    prefixes: OrderedDict[str, ExactPrefix] = field(default_factory=OrderedDict)
    flights: dict[str, asyncio.Task[int]] = field(default_factory=dict)
    """Warm-ups under way, by prefix key."""
    interest: Counter[str] = field(default_factory=Counter)
    """Requests that wait or are being prepared, by rendering key."""
    to_build: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Rendering keys of prefixes that are worth a checkpoint but took too long for the client, with their reason."""
    settling: set[asyncio.Task[None]] = field(default_factory=set)
    last_answer: float = 0.0
    """When the server last said anything, on the monotonic clock."""
    wants_probe: bool = False
    """Whether this process was met with nothing in its slots, and not probed yet."""
    was_probed: bool = False
    failed_claims: int = 0
    """Warm-ups and hits in a row of which nothing came."""
    failed_resumes: int = 0
    """In a row."""
    verified: set[str] = field(default_factory=set)
    """Keys of checkpoints that this process has proven good."""
    adapters_changed: bool = False
    """Whether that was seen while this process ran: what it holds may be of the old ones, and it reuses it."""
    displacing: set[int] = field(default_factory=set)
    """Tokens used to displace a slot's content: none is used twice, the server keeps a copy of each."""
    meeting: asyncio.Lock = field(default_factory=asyncio.Lock)
    renders: bool = True
    """Whether renderings have the server's own token counts."""
    answers_change: bool = False
    """Whether the last answer that a client sent back came back changed (without what the model thought, say)."""
    prompt_ms_per_token: float = 0.0
    """Measured on this server; 0 until a prompt of some length was prefilled."""
    missing_copies: int = 0
    """Conversations in a row that did not come back from host memory, of a server that was not probed."""
    copy_ms: float = 0.0
    """The shortest that a copy of a slot took; 0 until there was one."""
    _marker: str = ""
    _known_keys: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    _salt: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    def began_process(
        self,
        process: Process,
        identity: ModelIdentity,
        looks: list[Look] | None,
        *,
        window: int | None = None,
        was_unused: bool = False,
    ) -> None:
        """Another server process: believe nothing of the earlier one."""
        is_other_model = self.identity is not None and self.identity != identity
        is_same_process = process.marker == self._marker
        self.adapters_changed = is_same_process and (self.adapters_changed or is_other_model)
        self.process, self.identity, self._marker = process, identity, process.marker
        if is_other_model:
            self.prefixes.clear()
        self.renders = True
        self.able = Capabilities(
            total_slots=process.total_slots, n_ctx=process.n_ctx, window=window, shows_slots=looks is not None
        )
        self.verified.clear()
        self.displacing.clear()
        self.copy_ms, self.missing_copies = 0.0, 0
        self.ledger.forget(process.total_slots)
        if process.is_sleeping:
            self.ledger.emptied()
        elif looks:
            self.ledger.first_look(looks, was_unused=was_unused)
        self.wants_probe = self.ledger.saw_start
        self.was_probed = False
        self.failed_claims = self.failed_resumes = 0
        self.gate.resize(process.total_slots)
        self._known_keys.clear()

    def take_up(self, able: Capabilities, prompt_ms_per_token: float) -> None:
        """What this very process was found to do before; how it is used now is another matter."""
        now = self.able
        self.able = replace(
            able, total_slots=now.total_slots, n_ctx=now.n_ctx, window=now.window, shows_slots=now.shows_slots
        )
        self.prompt_ms_per_token = prompt_ms_per_token
        self.was_probed = True

    def resume_failed(self, *, is_gone: bool, older: Sequence[Talk] = ()) -> None:
        """What was to be resumed was not there; `is_gone`, for want of room, and `older` what came there before it."""
        if is_gone:
            self.ran_out_of_room(older)
        self.failed_resumes += 1
        if self.failed_resumes < FAILED_RESUMES:
            return
        if self.able.truncates:  # one that is there after all could be gone back in unnoticed, if it were forgotten
            self.able = replace(self.able, keeps_copies=False)
        else:
            self.ledger.copies.clear()

    def ran_out_of_room(self, older: Sequence[Talk] = ()) -> None:
        """Host memory has lost what was copied there: it is too small for anchors, and they are as likely gone.

        So is what is `older`. With `--swa-full` that is still looked for: it could be gone back in unnoticed.
        """
        self.able = replace(self.able, has_room=False)
        gone = () if self.able.truncates else older
        for talk in [talk for talk in self.ledger.copies.values() if talk.is_anchor or talk in gone]:
            self.ledger.taken(talk)

    def remember(self, rendering: str, prefix: ExactPrefix) -> None:
        """Keep an exact prefix; the least recently used go."""
        self.prefixes[rendering] = prefix
        self.prefixes.move_to_end(rendering)
        while len(self.prefixes) > MAX_PREFIXES:
            self.prefixes.popitem(last=False)

    def recall(self, rendering: str, today: date) -> ExactPrefix | None:
        """The exact prefix of these rendering inputs, unless a template may have printed another date into it."""
        found = self.prefixes.get(rendering)
        if found is None or found.derived_on != today:
            return None
        self.prefixes.move_to_end(rendering)
        return found

    def by_key(self, key: str) -> ExactPrefix | None:
        """The exact prefix or head of this key."""
        return next((prefix for prefix in self.prefixes.values() if prefix.key == key), None)

    def common(self, known: ExactPrefix) -> tuple[tuple[str, int], ...]:
        """What other prefixes, that slots or host memory hold, have in common with this one: the tools, often."""
        held = [holds for belief in self.ledger.slots for holds in (belief.holds, belief.soon_holds)]
        keys = {holding.key for holding in held if isinstance(holding, Prefix)}
        talks = [*(holding for holding in held if isinstance(holding, Talk)), *self.ledger.copies.values()]
        keys |= {talk.prefix_key for talk in talks}
        others = [other for key in keys - {known.key, ""} if (other := self.by_key(key)) is not None]
        return tuple((other.key, common_length(known.tokens, other.tokens)) for other in others)

    def is_welcome(self, auth: Mapping[str, str]) -> bool:
        """Whether the server has accepted these credentials before; what is kept is a salted hash."""
        return self._hash(auth) in self._known_keys

    def welcomed(self, auth: Mapping[str, str]) -> None:
        """The server accepted these credentials."""
        self._known_keys[self._hash(auth)] = None
        while len(self._known_keys) > MAX_KNOWN_KEYS:
            self._known_keys.popitem(last=False)

    def _hash(self, auth: Mapping[str, str]) -> bytes:
        told = "\0".join(f"{name}:{value}" for name, value in sorted(auth.items()))
        return hashlib.blake2b(told.encode("utf-8", "surrogateescape"), key=self._salt, digest_size=16).digest()
