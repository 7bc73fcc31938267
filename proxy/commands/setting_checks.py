"""The doctor's look at the settings alone: slips in them, and what can't be meant."""

from collections.abc import Iterator, Sequence

from proxy.commands.findings import Finding, advice, ok, wrong
from proxy.commands.serve import refuse_self
from proxy.errors import UpstreamIsSelf
from proxy.serving.access import start_refusal
from proxy.settings import Settings


def settings_checks(settings: Settings, warnings: Sequence[str]) -> list[Finding]:
    """All of them; one line where nothing is to be said."""
    found = [*_slips(settings, warnings), *_meant(settings)]
    return found or [ok("settings", f"{len(settings.model_fields_set)} set, all read")]


def _slips(settings: Settings, warnings: Sequence[str]) -> Iterator[Finding]:
    for warning in warnings:
        yield wrong("settings", warning, "correct or remove it: it has no effect as it is")
    try:
        refuse_self(settings)
    except UpstreamIsSelf as error:
        yield wrong("address", str(error), "set BASE_URL to llama-server's address")
    if settings.admin_port is not None:
        refusal = start_refusal(settings.admin_host, settings.admin_token.get_secret_value())
        if refusal:
            yield wrong("admin listener", "it will not open: no status page, no metrics, no commands", refusal)


def _meant(settings: Settings) -> Iterator[Finding]:
    if settings.persist and settings.slot_dir is None:
        yield advice(
            "slot directory",
            "PERSIST=1 without SLOT_DIR: files can't be proven before the server reads them, and nothing is cleaned up",
            "set SLOT_DIR to the server's --slot-save-path as seen from here",
        )
    if settings.slot_dir is not None and not settings.persist:
        yield advice(
            "slot directory", "SLOT_DIR is set, but nothing is saved there", "set PERSIST=1, or leave SLOT_DIR out"
        )
    if settings.observe_only:
        yield advice("settings", "OBSERVE_ONLY=1: nothing is prepared", "set OBSERVE_ONLY=0 when you have seen enough")
