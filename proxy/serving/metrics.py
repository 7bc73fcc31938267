"""Metrics for Prometheus: counts of what happened, histograms of how long it took, gauges of how it is now.

Owns names, labels and buckets. Labels have a fixed few values each, whatever clients send. Token counts come from
answers only. Its own registry, so that two proxies in one process don't meet. Listens to the reporter.
"""

import platform
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from proxy import __version__
from proxy.serving.events import (
    Anchored,
    CheckpointRestored,
    CheckpointSaved,
    CheckpointsDeleted,
    CheckpointUnfit,
    CheckpointVerified,
    ClaimFailed,
    Event,
    Left,
    Settled,
    SlotCopied,
    SlotPredicted,
    Troubled,
    WarmedUp,
)
from proxy.serving.history import outcome, saved_tokens
from proxy.serving.ticket import Ticket
from proxy.slots.plan import Source

PREFIX = "pi_prefix_cache"
PREPARATION_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25)
OVERHEAD_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1)
QUEUE_S = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 25, 60)
FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120)
MAX_KINDS = 64
NOT_VERIFIED = "verification failed"
TROUBLES = {
    "restore_failed": ("restores", "failed"),
    "suspect": ("restores", "server_died"),
    "not_saved": ("saves", "failed"),
    "restore_useless": ("verifications", "failed"),
    "warm_up_too_slow": ("warm_ups", "too_slow"),
}
"""Troubles that are the outcome of something counted: what, and which outcome."""


class Metrics:
    """What `/metrics` shows."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # twice as many lines, for what a scraper knows anyway
        self.registry = CollectorRegistry()
        self._kinds: set[str] = set()
        self.requests = self._counter("requests", "Chat requests that are over.", "source", "outcome")
        self.prefilled = self._counter("prompt_tokens_prefilled", "Prompt tokens prefilled, by answers' own figures.")
        self.reused = self._counter("prompt_tokens_reused", "Prompt tokens reused, by answers' own figures.")
        self.saved = self._counter(
            "prompt_tokens_saved", "Of those reused: thanks to what the proxy had prepared (hit, restore, resume)."
        )
        self.saved_s = self._counter(
            "prefill_saved_seconds", "Estimated time that prefilling these would have taken at the measured rate."
        )
        self.warm_up_tokens = self._counter(
            "warm_up_tokens_prefilled", "Prompt tokens prefilled by warm-ups and for anchors."
        )
        self.anchors = self._counter("anchors", "Prompts of first turns kept in the server's host memory.")
        self.actions = {
            "restores": self._counter("restores", "Checkpoints restored into a slot.", "outcome"),
            "saves": self._counter("saves", "Checkpoints saved.", "outcome"),
            "copies": self._counter("copies", "Slots copied to the server's host memory.", "outcome"),
            "warm_ups": self._counter("warm_ups", "Prefixes prefilled ahead of a request.", "outcome"),
            "verifications": self._counter("verifications", "Restored checkpoints verified on the server.", "outcome"),
        }
        self.predictions = self._counter("slot_predictions", "Whether the server chose the expected slot.", "outcome")
        self.claims = self._counter("claims_failed", "Requests that reused less than was promised.", "source")
        self.deleted = self._counter("checkpoints_deleted", "Checkpoints that clean-up deleted.")
        self.troubles = self._counter("troubles", "What did not work as it could.", "kind")
        self.preparation = self._histogram(
            "preparation_seconds",
            "What a request waited for steps such as warm-up or restore.",
            PREPARATION_S,
            "source",
        )
        self.overhead = self._histogram(
            "overhead_seconds", "What the proxy added to a request for which no step was needed.", OVERHEAD_S
        )
        self.queue_wait = self._histogram("queue_wait_seconds", "What a request waited for a free slot.", QUEUE_S)
        self.first_token = self._histogram(
            "first_token_seconds", "From a request's arrival to the first piece of its answer.", FIRST_TOKEN_S
        )
        build = self._gauge("build_info", "Always 1; the versions are in the labels.", "version", "python")
        build.labels(__version__, platform.python_version()).set(1)
        for action, good in (
            ("restores", "restored"), ("saves", "saved"), ("copies", "copied"), ("warm_ups", "done"),
            ("verifications", "good"),
        ):  # fmt: skip
            self.actions[action].labels(good)
            self.actions[action].labels("failed")
        for source in Source:
            self.requests.labels(str(source), "answered")

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(name, words, labels, namespace=PREFIX, registry=self.registry)

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, words, labels, namespace=PREFIX, registry=self.registry, buckets=buckets)

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(name, words, labels, namespace=PREFIX, registry=self.registry)

    def watch(self, name: str, words: str, read: Callable[[], float]) -> None:
        """One more gauge, read whenever somebody looks."""
        self._gauge(name, words).set_function(read)

    def text(self, accept: str) -> tuple[bytes, str]:
        """All of it, and its content type, in the format that is asked for."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def __call__(self, event: Event) -> None:
        """Hear what happened."""
        if (told := action(event)) is not None:
            self.actions[told[0]].labels(told[1]).inc()
        match event:
            case Settled(ticket, ms_per_token):
                self._settled(ticket, ms_per_token)
            case Left(ticket) if not ticket.has_begun:
                self._count(ticket)
            case WarmedUp(prompt_n):
                self.warm_up_tokens.inc(prompt_n)
            case Anchored(prompt_n):
                self.anchors.inc()
                self.warm_up_tokens.inc(prompt_n)
            case CheckpointsDeleted(count):
                self.deleted.inc(count)
            case SlotPredicted(is_right):
                self.predictions.labels("right" if is_right else "wrong").inc()
            case ClaimFailed(source):
                self.claims.labels(source).inc()
            case Troubled():
                self._troubled(event.kind)

    def _settled(self, ticket: Ticket, ms_per_token: float) -> None:
        self._count(ticket)
        if ticket.first_token_ms:
            self.first_token.observe(ticket.first_token_ms / 1000)
        if (figures := ticket.figures) is not None:
            self.prefilled.inc(figures.prompt_n or 0)
            self.reused.inc(figures.cache_n or 0)
        saved = saved_tokens(ticket)
        self.saved.inc(saved)
        self.saved_s.inc(saved * ms_per_token / 1000)

    def _count(self, ticket: Ticket) -> None:
        source, waited_s = str(ticket.plan.source), max(0.0, ticket.ours_ms - ticket.queued_ms) / 1000
        self.requests.labels(source, outcome(ticket)).inc()
        self.queue_wait.observe(ticket.queued_ms / 1000)
        if ticket.plan.steps:
            self.preparation.labels(source).observe(waited_s)
        else:
            self.overhead.observe(waited_s)

    def _troubled(self, kind: str) -> None:
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            kind = "other"
        self._kinds.add(kind)
        self.troubles.labels(kind).inc()


def action(event: Event) -> tuple[str, str] | None:
    """What was done to a slot or a checkpoint, and its outcome; None for any other event."""
    match event:
        case WarmedUp():
            return "warm_ups", "done"
        case CheckpointSaved():
            return "saves", "saved"
        case CheckpointRestored():
            return "restores", "restored"
        case CheckpointVerified():
            return "verifications", "good"
        case CheckpointUnfit(_, verdict):
            return ("verifications", "failed") if verdict == NOT_VERIFIED else ("restores", "unfit")
        case SlotCopied(has_worked):
            return "copies", "copied" if has_worked else "failed"
        case Troubled():
            return TROUBLES.get(event.kind)
    return None
