"""The least that a server has to prefill for a trace: each token of each distinct beginning once.

Pure. What was computed before, be it prompt or generated, needn't be computed again; one token of each request does,
since without it there is nothing to sample from. Counterpart: `runs`, which finds out the tokens.
"""

from array import array
from collections.abc import Iterable, Sequence

WIDTH = array("i").itemsize


class Ideal:
    """Counts while a trace is told, request by request."""

    def __init__(self) -> None:
        self.total = 0
        self._known: set[bytes] = set()

    def asked(self, prompt: Sequence[int], answer: Sequence[int] = ()) -> int:
        """What this request needs at least. The last generated token was never computed on."""
        told = array("i", prompt).tobytes()
        known = max((_shared(told, other) for other in self._known), default=0)
        needed = max(1, len(prompt) - known)
        self.total += needed
        self._known.add(told + array("i", answer[:-1]).tobytes())
        return needed

    def restarted(self, kept: Iterable[Sequence[int]]) -> None:
        """All is lost but these."""
        self._known = {array("i", tokens).tobytes() for tokens in kept}


def shared(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """What two prompts begin with alike."""
    return list(one[: _shared(array("i", one).tobytes(), array("i", other).tobytes())])


def _shared(one: bytes, other: bytes) -> int:
    """Tokens that both begin with: compared in halves, since slices compare at memory speed."""
    low, high = 0, min(len(one), len(other)) // WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        if one[low * WIDTH : middle * WIDTH] == other[low * WIDTH : middle * WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low
