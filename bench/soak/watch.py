"""Watches the proxy from outside: its process by the kernel, its inside by its own metrics, its files, its log."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import orjson

from bench.soak.house import House

PREFIX = "pi_prefix_cache_"
SAMPLE = re.compile(rf"^{PREFIX}(\w+)(?:{{.*}})? (\S+)$", re.MULTILINE)
COUNTS = (
    "requests|restores|saves|copies|warm_ups|verifications|slot_predictions|claims_failed|checkpoints_deleted|troubles"
)
COUNT = re.compile(rf"^{PREFIX}({COUNTS})_total(?:{{(.*)}})? (\S+)$", re.MULTILINE)
VALUE = re.compile(r'="([^"]*)"')
PATIENCE_S = 5.0
LOUD = {"error", "critical"}
SHOWN = 1500


@dataclass(frozen=True, slots=True)
class Sample:
    """One look."""

    at: float
    rss_mb: float
    fds: int
    threads: int
    cpu_s: float
    metrics: dict[str, float]
    """By name, without our prefix; those of one name added up."""
    temporary: int
    """Files that are being written, or were left so."""
    checkpoints: int

    @property
    def held(self) -> dict[str, float]:
        """What is held for requests: nothing of this when there are none."""
        names = ("queue_length", "requests_running", "places_taken", "slots_leased")
        return {name: self.metrics[name] for name in names if self.metrics[name]}

    @property
    def tasks(self) -> int:
        return int(self.metrics["tasks"])

    @property
    def requests(self) -> int:
        return int(self.metrics.get("requests_total", 0))


@dataclass(slots=True)
class Watcher:
    """Looks at one proxy."""

    house: House
    client: aiohttp.ClientSession
    complaints: list[str] = field(default_factory=list)
    """What the log said that it should never have to say."""
    told: str = ""
    """The metrics as they were last, labels and all."""
    _read: int = 0

    async def look(self) -> Sample | None:
        """How it is now; None where it doesn't tell in time."""
        patience = aiohttp.ClientTimeout(total=PATIENCE_S)
        try:
            async with self.client.get(f"{self.house.admin_url}/metrics", timeout=patience) as answer:
                self.told = text = await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            return None
        process = Path(f"/proc/{self.house.proxy.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        ticks = (process / "stat").read_text().rpartition(")")[2].split()
        files = [path.name for path in (*_names(self.house.slot_dir), *_names(self.house.index_dir))]
        return Sample(
            at=time.monotonic(),
            rss_mb=int(status["VmRSS"].split()[0]) / 1000,
            fds=len(list((process / "fd").iterdir())),
            threads=int(status["Threads"]),
            cpu_s=(int(ticks[11]) + int(ticks[12])) / 100,
            metrics=added_up(text),
            temporary=sum("tmp" in name for name in files),
            checkpoints=sum(name.endswith(".bin") for name in files),
        )

    def read_log(self) -> None:
        """Take what the log has said since: an error of ours is one wherever it ended."""
        with self.house.proxy.log_path.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        self.complaints += loud(whole)


def loud(text: bytes) -> Iterator[str]:
    """The lines of a log that tell of an error, or are no lines of ours at all."""
    for line in text.splitlines():
        told = orjson.loads(line) if line.startswith(b"{") else None
        if told is None or told.get("level", told.get("log_level")) in LOUD:
            yield f"the log: {line[:SHOWN].decode(errors='replace')}"


def added_up(text: str) -> dict[str, float]:
    """Metrics by name, whatever their labels."""
    found: dict[str, float] = {}
    for name, value in SAMPLE.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    return found


def counted(text: str) -> dict[str, int]:
    """What the proxy has counted that was there at all, under its name and its labels' values."""
    found = {}
    for name, labels, value in COUNT.findall(text):
        if float(value):
            found[" ".join([name.replace("_", " "), *VALUE.findall(labels)])] = int(float(value))
    return found


def _names(directory: Path) -> list[Path]:
    return [*directory.iterdir()] if directory.is_dir() else []
