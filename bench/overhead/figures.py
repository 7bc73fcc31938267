"""What was measured, and whether it is what was wanted. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

OURS, FLOOR, OTHER = "this proxy", "bare", "hearth"
ADDED, DELAYS, CPU_REQUEST, CPU_CHUNK, PEAK = "added", "delay", "cpu a request", "cpu a chunk", "peak memory"
MOST_MB = 120.0


def quantile(values: Sequence[float], part: float) -> float:
    """The value that this part of all doesn't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


@dataclass(slots=True)
class Figures:
    """Of one way."""

    times: dict[str, list[float]] = field(default_factory=dict)
    """Seconds, by scenario."""
    cpu: dict[str, float] = field(default_factory=dict)
    """Processor seconds, by scenario."""
    counts: dict[str, int] = field(default_factory=dict)
    """Requests or chunks of a scenario."""
    lost: dict[str, int] = field(default_factory=dict)
    peak_mb: float = 0.0
    """With streams only, before any large body."""

    def add(self, scenario: str, times: Iterable[float], cpu_s: float = 0.0, count: int = 0) -> None:
        """More of the same."""
        self.times.setdefault(scenario, []).extend(times)
        self.cpu[scenario] = self.cpu.get(scenario, 0.0) + cpu_s
        self.counts[scenario] = self.counts.get(scenario, 0) + count

    def ms(self, scenario: str, part: float = 0.5) -> float:
        """A quantile in milliseconds."""
        return quantile(self.times.get(scenario, ()), part) * 1000

    def cpu_ms(self, scenario: str) -> float:
        """Milliseconds of processor for one of what is counted."""
        count = self.counts.get(scenario, 0)
        return self.cpu.get(scenario, 0.0) * 1000 / count if count else float("nan")


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound, and what was reached."""

    what: str
    reached: float
    bound: float
    unit: str

    @property
    def is_met(self) -> bool:
        return self.reached <= self.bound


def goals(all_of: dict[str, Figures]) -> list[Goal]:
    """What this proxy may cost, by what the floor and the other one cost in the same run."""
    ours, floor, direct = all_of[OURS], all_of.get(FLOOR), all_of["direct"]
    most = [name for name in ours.times if name.startswith("delay")][-1]
    found = [Goal("peak memory with streams", ours.peak_mb, MOST_MB, "MB")]
    if floor is not None:
        for scenario, times in (("GET", 2.0), ("chat 100 kB", 2.0), ("chat 5 MB", 2.5)):
            bound = times * (floor.ms(scenario) - direct.ms(scenario))
            found.append(Goal(f"{scenario}: added, p50", ours.ms(scenario) - direct.ms(scenario), bound, "ms"))
        found.append(Goal(f"{most}, p50", ours.ms(most), 1.5 * floor.ms(most), "ms"))
    if (other := all_of.get(OTHER)) is not None:
        one = next(name for name in other.times if name.startswith("delay"))
        found.append(Goal("cpu a chunk, one stream", ours.cpu_ms(one), other.cpu_ms(one) / 3, "ms"))
    return found
