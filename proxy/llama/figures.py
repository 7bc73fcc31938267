"""What an answer says about its own prompt and generation, and how its two vocabularies map onto one record.

llama-server's `timings` count prefilled and reused tokens apart; OpenAI's `usage` counts the whole prompt and the
reused part of it. Owns the reading of both values; where in an answer they stand is `llama.answer`'s part.
"""

from dataclasses import dataclass, replace

_LARGEST = 2**53


@dataclass(frozen=True, slots=True)
class Figures:
    """What one answer says about its own prompt and generation."""

    prompt_n: int | None
    """Prompt tokens prefilled for this request (where `cache_n` is None: all its prompt tokens)."""
    cache_n: int | None
    """Prompt tokens reused; None where the answer doesn't say."""
    predicted_n: int | None
    prompt_ms: float | None
    predicted_ms: float | None
    source: str
    """`timings`, `usage` or `slots`."""

    @property
    def prompt_tokens(self) -> int | None:
        """All tokens of the prompt, prefilled and reused."""
        return None if self.prompt_n is None else self.prompt_n + (self.cache_n or 0)


@dataclass(slots=True)
class Found:
    """The latest figures of each kind, gathered while an answer passes."""

    timings: Figures | None = None
    usage: Figures | None = None
    error: bool = False
    is_done: bool = False
    """The stream said that nothing follows."""

    def take(self, key: str, value: object) -> bool:
        """Take what stands under a wanted key; False if it isn't what belongs there."""
        if key == "timings":
            figures = _from_timings(value)
            self.timings = figures or self.timings
            return figures is not None
        if key == "usage":
            figures = _from_usage(value)
            self.usage = figures or self.usage
            return figures is not None
        self.error = self.error or bool(value)
        return bool(value)

    def best(self) -> Figures | None:
        """Timings before usage; some older servers tell the reused tokens only in the latter."""
        if self.timings is None:
            return self.usage
        if self.timings.cache_n is None and self.usage is not None:
            return replace(self.timings, cache_n=self.usage.cache_n)
        return self.timings


def _from_timings(value: object) -> Figures | None:
    if not isinstance(value, dict) or (prompt_n := _count(value.get("prompt_n"))) is None:
        return None
    return Figures(
        prompt_n=prompt_n,
        cache_n=_count(value.get("cache_n")),
        predicted_n=_count(value.get("predicted_n")),
        prompt_ms=_milliseconds(value.get("prompt_ms")),
        predicted_ms=_milliseconds(value.get("predicted_ms")),
        source="timings",
    )


def _from_usage(value: object) -> Figures | None:
    if not isinstance(value, dict) or (prompt_tokens := _count(value.get("prompt_tokens"))) is None:
        return None
    details = value.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    prefilled = max(0, prompt_tokens - (cached or 0))
    return Figures(prefilled, cached, _count(value.get("completion_tokens")), None, None, "usage")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST else None


def _milliseconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        return None  # not finite, too: neither infinity nor NaN compares so
    return float(value)
