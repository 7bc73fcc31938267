"""What is counted, under names that a scraper's owner expects."""

import re
import shutil
import subprocess

from proxy.serving.events import CheckpointUnfit, ClaimFailed, Left, Settled, SlotCopied, SlotPredicted, Troubled
from proxy.serving.metrics import MAX_KINDS, Metrics
from proxy.slots.plan import Source
from tests.serving.admin.tickets import ticket

UNITS = ("_seconds", "_bytes", "_info", "_tokens", "_per_token")
BARE_GAUGES = {"upstream_up", "queue_length", "requests_running", "places_taken", "slots", "slots_leased", "tasks"}
BARE_GAUGES |= {"checkpoints"}


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"pi_prefix_cache_{name}", labels) or 0.0


def full() -> Metrics:
    """With every kind of event heard."""
    metrics = Metrics()
    metrics.watch("queue_length", "Requests that wait.", lambda: 3)
    for source in Source:
        metrics(Settled(ticket(source, steps=1), 0.5))
        metrics(ClaimFailed(str(source)))
    metrics(SlotPredicted(is_right=False))
    metrics(SlotCopied(has_worked=True))
    return metrics


def test_tokens_come_from_answers_only() -> None:
    """An answer without figures counts as a request and as no tokens."""
    metrics = Metrics()
    metrics(Settled(ticket(Source.RESTORE), 0.5))
    metrics(Settled(ticket(Source.RESTORE, status=500), 0.5))
    assert 30 == value(metrics, "prompt_tokens_prefilled_total")
    assert 2800 == value(metrics, "prompt_tokens_reused_total")
    assert 2800 == value(metrics, "prompt_tokens_saved_total")
    assert 1.4 == value(metrics, "prefill_saved_seconds_total")
    assert 1 == value(metrics, "requests_total", source="restore", outcome="answered")
    assert 1 == value(metrics, "requests_total", source="restore", outcome="refused")


def test_overhead_is_what_a_request_without_steps_waits() -> None:
    """One with steps counts as preparation; waiting for a slot is neither."""
    metrics = Metrics()
    metrics(Settled(ticket(), 0.5))
    metrics(Settled(ticket(Source.WARM_UP, steps=2), 0.5))
    assert 0.010 == value(metrics, "overhead_seconds_sum")
    assert 0.010 == value(metrics, "preparation_seconds_sum", source="warm-up")
    assert 0.008 == value(metrics, "queue_wait_seconds_sum")


def test_a_request_that_nobody_answered_is_counted_once() -> None:
    """When it leaves; an answered one when it is accounted for."""
    metrics = Metrics()
    metrics(Left(ticket(status=0)))
    metrics(Left(ticket()))
    assert 1 == value(metrics, "requests_total", source="hit", outcome="unanswered")
    assert 0 == value(metrics, "requests_total", source="hit", outcome="answered")


def test_a_failed_verification_is_told_from_a_file_that_is_not_fit() -> None:
    """One was found on the server, the other before it was handed over."""
    metrics = Metrics()
    metrics(CheckpointUnfit("f", "verification failed"))
    metrics(CheckpointUnfit("f", "cut short"))
    metrics(Troubled("suspect:0123456789abcdef", "the server died"))
    assert 1 == value(metrics, "verifications_total", outcome="failed")
    assert 1 == value(metrics, "restores_total", outcome="unfit")
    assert 1 == value(metrics, "restores_total", outcome="server_died")


def test_labels_have_a_bounded_number_of_values() -> None:
    """Whatever a reason is about is left out, and kinds beyond a limit are one."""
    metrics = Metrics()
    for number in range(1000):
        metrics(Troubled(f"suspect:{number:016x}", "words"))
        metrics(Troubled(f"kind{number}", "words"))
    kinds = {s.labels["kind"] for m in metrics.registry.collect() for s in m.samples if "kind" in s.labels}
    assert MAX_KINDS + 1 == len(kinds)
    assert 1000 == value(metrics, "troubles_total", kind="suspect")


def test_names_are_as_prometheus_wants_them() -> None:
    """One prefix, base units, totals for counters only, a help text each; its own linter says so too where it is."""
    metrics = full()
    text = metrics.text("")[0].decode()
    for family in metrics.registry.collect():
        name = family.name.removeprefix("pi_prefix_cache_")
        assert name != family.name, f"{family.name} has not our prefix"
        assert re.fullmatch(r"[a-z_]+", name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|milliseconds|mb|kb|percent|total|count|sum|bucket)$", name)
        assert family.type != "histogram" or name.endswith("_seconds")
        assert family.type != "gauge" or name.endswith(UNITS) or name in BARE_GAUGES, name
        assert family.type != "counter" or f"pi_prefix_cache_{name}_total" in text
    if (linter := shutil.which("promtool")) is not None:
        told = subprocess.run([linter, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (0, "") == (told.returncode, told.stdout + told.stderr)


def test_two_proxies_in_one_process_do_not_meet() -> None:
    """Each has a registry of its own."""
    one, other = Metrics(), Metrics()
    one(Settled(ticket(), 0.5))
    assert 0 == value(other, "prompt_tokens_reused_total")
