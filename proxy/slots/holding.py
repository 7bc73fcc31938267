"""What a slot, or an entry of the server's host-memory prompt cache, is believed to hold.

A belief is one of four: nothing, exactly an exact prefix, a conversation, or unknown. Unknown is always safe: nothing
is claimed of it and nothing in it is destroyed unless a copy was made first. `share` estimates, in tokens, what a
holding and a new request have in common from the start: the server compares tokens, we compare hashes of messages, so
the figure is exact for a prefix and a continuation and a proportional guess in between.
"""

from dataclasses import dataclass

from proxy.request.conversation import continues, shared_messages

BYTES_PER_TOKEN = 3.5
"""For estimates of text that no answer has counted yet; low for English, so that tokens are not underestimated."""

FIRST_MESSAGES = 2
"""System text and first question."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """An empty slot."""

    n_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Unknown:
    """Anything: somebody else's work, or ours that went wrong."""

    n_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Whole:
    """The place before which a slot has not all that would have to be attended to there; 0 for one that has it all."""

    n_tokens: int = 0
    n_messages: int = 0
    """So many messages of a conversation lie before it; 0 where it is in none of them."""


NOWHERE_CUT = Whole()


@dataclass(frozen=True, slots=True)
class Prefix:
    """Exactly the tokens of an exact prefix, or of a head."""

    key: str
    n_tokens: int
    base_key: str = ""
    """Of a head: the exact prefix that it begins with."""
    base_tokens: int = 0
    whole: Whole = NOWHERE_CUT
    """As of a conversation."""


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation: the tokens of one request and what was generated after it."""

    chain: tuple[bytes, ...]
    sizes: tuple[int, ...]
    """Bytes of each message, to share tokens out among them."""
    n_prompt: int
    """Tokens of the request's prompt."""
    n_tokens: int
    """Tokens of prompt and answer."""
    prefix_key: str = ""
    prefix_tokens: int = 0
    is_whole: bool = True
    """False after an answer that was cut off: how far the prompt came is not known."""
    is_marked: bool = False
    """Whether the slot stood exactly at the prefix's end on the way: then the server may go back there (an
    in-memory checkpoint), also where it can't roll back freely."""
    is_first: bool = False
    """Whether this was its first turn and went on from the prefix's end: then the server can go back to there. Of the
    in-memory checkpoints that it has, the next turn leaves only the oldest, which lies some hundred tokens before."""
    keeps_question: bool = False
    """Whether this turn ran through where the first question begins: until the next one the server has an in-memory
    checkpoint there, too."""
    keeps_last: bool = False
    """The same of where the last message begins, which is a user's."""
    head_key: str = ""
    head_tokens: int = 0
    inputs: bytes = b""
    """Hash of the rendering inputs."""
    is_anchor: bool = False
    """Whether it is the beginning of a prompt with another last token: no later turn contains it."""

    whole: Whole = NOWHERE_CUT
    """Where it can be gone back to, if it came back from host memory or a file with the model's window only."""
    is_changed: bool = False
    """Whether its client sends answers back changed (without what the model thought, say), the last one too then."""

    @property
    def name(self) -> bytes:
        """What tells it from other copies."""
        return self.inputs + self.chain[-1] + b"anchor" * self.is_anchor


Holding = Nothing | Unknown | Prefix | Talk


@dataclass(frozen=True, slots=True)
class Need:
    """What a request needs of a slot."""

    chain: tuple[bytes, ...] = ()
    sizes: tuple[int, ...] = ()
    prefix_key: str = ""
    prefix_tokens: int = 0
    has_past: bool = False
    """Whether assistant turns show that it is in mid-conversation."""
    slots: int = 1
    is_slow: bool = False
    """Whether prefilling the prefix would take longer than a client waits for us."""
    head_key: str = ""
    """The head: all that requests of this folder begin with (the whole system text, tools that follow it). Wanted only
    where it is much longer than the exact prefix and the model can't roll back to its end by itself."""
    head_tokens: int = 0
    inputs: bytes = b""
    """Hash of the rendering inputs."""
    rest_tokens: int = 0
    """Tokens of the prompt that follow the exact prefix; 0 where that can't be told."""
    stems: tuple[tuple[str, int], ...] = ()
    """Keys and tokens of parts that other exact prefixes will likely begin with, the shortest first. Wanted only where
    they are long and the model can't roll back to their ends by itself."""
    common: tuple[tuple[str, int], ...] = ()
    """By key of another exact prefix or head that some slot holds: how many tokens it has in common with this one."""

    @property
    def n_tokens(self) -> int:
        """Estimated tokens of its prompt."""
        return max(self.prefix_tokens, int(sum(self.sizes) / BYTES_PER_TOKEN))


def only_prefix(need: Need, key: str, n_tokens: int) -> Need:
    """What a prompt needs that is no more than the request's exact prefix, its head, or a stem."""
    is_head = key == need.head_key
    if key in dict(need.stems):
        others = ((name, min(n_alike, n_tokens)) for name, n_alike in (*need.stems, *need.common))
        return Need(prefix_key=key, prefix_tokens=n_tokens, common=(*others, (need.prefix_key, n_tokens)))
    return Need(
        prefix_key=need.prefix_key,
        prefix_tokens=n_tokens if not is_head else need.prefix_tokens,
        head_key=key if is_head else "",
        head_tokens=n_tokens if is_head else 0,
        stems=need.stems,
        sizes=(round(n_tokens * BYTES_PER_TOKEN),) if is_head else (),
        common=need.common,
    )


def is_rendered_alike(need: Need | Talk, talk: Talk) -> bool:
    """Whether the same messages give the same tokens.

    So they do with the same inputs, and with others (a tool choice, another name for the model) that lead to the same
    exact prefix.
    """
    return need.inputs == talk.inputs or (bool(need.prefix_key) and need.prefix_key == talk.prefix_key)


def goes_beyond(holding: Holding, talk: Talk) -> bool:
    """Whether a slot or a copy holds all of a conversation, and more of what was said after it; never of an anchor."""
    if not isinstance(holding, Talk) or talk.is_anchor:
        return False
    return continues(holding.chain, talk.chain) and is_rendered_alike(holding, talk)


def goes_back_in(need: Need, holding: Holding) -> bool:
    """Whether the request goes on from an earlier answer of this conversation: its client has given up the rest.

    With a first question alone in common they may be two that are told the same, and both go on.
    """
    if not isinstance(holding, Talk) or not is_rendered_alike(need, holding):
        return False
    return FIRST_MESSAGES < shared_messages(need.chain, holding.chain) < len(holding.chain)


def continues_talk(need: Need, holding: Holding) -> bool:
    """Whether the request appends to this conversation."""
    return isinstance(holding, Talk) and continues(need.chain, holding.chain) and is_rendered_alike(need, holding)


def repeats_talk(need: Need, holding: Holding) -> bool:
    """Whether the request is the one that this conversation ended with, sent again."""
    if not isinstance(holding, Talk) or not holding.chain:
        return False
    return holding.chain == need.chain and is_rendered_alike(need, holding)


def common_tokens(need: Need, *keys: str) -> int:
    """Tokens in common with other prefixes, or stems, the most of them."""
    return max((n_tokens for key, n_tokens in (*need.common, *need.stems) if key in keys), default=0)


def of_prefix(key: str) -> tuple[bytes, ...]:
    """What stands for the messages of an exact prefix's anchor: it is the beginning of no conversation."""
    return (key.encode(),)


def is_of_prefix(talk: Talk) -> bool:
    """Whether it is the anchor of an exact prefix or of a head."""
    return talk.is_anchor and talk.chain in (of_prefix(talk.prefix_key), of_prefix(talk.head_key))


def is_truncated(need: Need, holding: Holding) -> bool:
    """Whether the request would go back to where the slot has not all that is attended to there."""
    if not isinstance(holding, Prefix | Talk):
        return False
    if isinstance(holding, Talk) and holding.whole.n_messages and is_rendered_alike(need, holding):
        is_behind = shared_messages(need.chain, holding.chain) >= holding.whole.n_messages
    else:
        is_behind = False
    return not is_behind and 0 < (share(need, holding) or 0) < holding.whole.n_tokens


def share(need: Need, holding: Holding) -> int | None:
    """Tokens that the request and the holding begin with alike; None where nobody knows."""
    match holding:
        case Nothing():
            return 0
        case Unknown():
            return None
        case Prefix(key, n_tokens):
            if key and key in (need.prefix_key, need.head_key):
                return n_tokens
            if need.prefix_key and holding.base_key == need.prefix_key:
                return holding.base_tokens
            return common_tokens(need, key)
        case Talk():
            return _shared_with_talk(need, holding)


def _shared_with_talk(need: Need, talk: Talk) -> int:
    alike = shared_messages(need.chain, talk.chain) if is_rendered_alike(need, talk) else 0
    floor = common_tokens(need, talk.prefix_key, talk.head_key)
    floor = talk.prefix_tokens if talk.prefix_key and talk.prefix_key == need.prefix_key else floor
    floor = talk.head_tokens if talk.head_key and talk.head_key == need.head_key else floor
    if alike and alike == len(talk.chain):
        if talk.is_anchor:
            return talk.n_tokens - 1
        # Of an answer that was cut off nobody has counted the tokens.
        is_shared = len(need.chain) > alike and not (talk.is_changed and talk.n_prompt)
        return talk.n_tokens if is_shared else talk.n_prompt or max(floor, talk.n_tokens)
    total = sum(talk.sizes) or 1
    return max(floor, talk.n_prompt * sum(talk.sizes[:alike]) // total)
