"""The words that the tiny models know, as a byte-level BPE vocabulary.

Owns: which texts are one token. Needs neither gguf nor numpy, so that whoever only writes prompts (sessions) can
take the words from here without installing the demo's packages. Counterpart: `models`, which gives each token a vector.

A word is one token, with and without a space before it: the merges are learnt from the words themselves. English made
of these words costs about five characters a token, as with a real model; names and JSON cost more.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

WORDS = tuple(
    """
    a about absolute accept access add after again agent all allow already also always an and another answer any
    argument arguments array as ask assistant at available avoid bash be because before below between block body both
    branch break build but by cache call can case change changes character check class clean code command commands
    commit compare config content context copy correct create current cwd data date default delete description
    directory do docs documentation does done each edit edits either empty end entry error every exact examples
    execute exist existing exit expected explain extension false field file files find first fix folder for format
    found from full function give given go guidelines has have help here how if import in index input inside install
    instead instructions integer into is it its json keep key known last later leave least length less line lines
    list local log long look make many match message missing mode model module more most must name need never new
    next no not nothing number object of offset old on once one only open optional options or order other output over
    own package parameter parameters parse part pass path paths pattern plain point preserve print project prompt
    properties put range rather read reason replace report request required response result return root rule rules
    run safe same save search second see seconds section send server session set several short should show shown
    single size skill skills small so some source start state step stop string style such system take target task
    template test tests text than that the their them then there these they thing this time timeout to tool tools
    total true truncated turn two type under unless until up use used user uses value values version was way what
    when where which while whole why will with without words work working write written you your
    """.split()  # noqa: SIM905 - a list of 300 quoted words is no easier to read
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens in id order (bytes, merged pieces, specials) and the merges in order of precedence."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    specials: tuple[str, ...] = SPECIALS
    pre_tokenizer: str = "gpt-2"

    def __len__(self) -> int:
        return len(self.tokens) + len(self.specials)

    @property
    def capitals(self) -> tuple[bool, ...]:
        """For each token, specials included: is it a single ASCII capital?"""
        return tuple(len(text) == 1 and "A" <= text <= "Z" for text in (*self.tokens, *self.specials))


@lru_cache
def vocabulary(*, merge_trap: bool = False) -> Vocabulary:
    """The tiny models' vocabulary.

    With `merge_trap`, `>` and the line breaks after it are one token, as in Qwen's and Llama's vocabularies: whoever
    cuts a prompt by characters between the two gets tokens that the whole prompt doesn't contain.
    """
    symbols = byte_symbols()
    newline = symbols[ord("\n")]
    pairs = [(newline, newline)]
    if merge_trap:
        pairs += [(">", newline * 2), (">", newline)]
    pairs += _learn([[symbols[byte] for byte in text.encode()] for word in WORDS for text in (word, f" {word}")])
    tokens = dict.fromkeys([*symbols, *(left + right for left, right in pairs)])
    # GPT-2's pattern never lets punctuation and a line break meet; Qwen's does.
    pattern = "qwen2" if merge_trap else "gpt-2"
    return Vocabulary(tuple(tokens), tuple(f"{left} {right}" for left, right in pairs), pre_tokenizer=pattern)


def _learn(words: list[list[str]]) -> list[tuple[str, str]]:
    """Byte-pair encoding: join the most frequent pair of neighbours until each word is one piece."""
    learnt = []
    while words := [word for word in words if len(word) > 1]:
        counts = Counter(pair for word in words for pair in pairwise(word))
        best = max(counts, key=lambda pair: (counts[pair], pair))
        learnt.append(best)
        words = [_joined(word, best) for word in words]
    return learnt


def _joined(word: list[str], pair: tuple[str, str]) -> list[str]:
    pieces: list[str] = []
    for piece in word:
        if pieces and (pieces[-1], piece) == pair:
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces


def byte_symbols() -> list[str]:
    """What byte-level BPE writes for each byte: the character itself if it can be seen, else one above 255."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unseen = [byte for byte in range(256) if byte not in seen]
    table = {byte: chr(byte) for byte in seen} | {byte: chr(256 + place) for place, byte in enumerate(unseen)}
    return [table[byte] for byte in range(256)]
