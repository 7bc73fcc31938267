"""What the engine tells people: one line for each thing that happened, one canonical line for each request.

Owns the words. Decides nothing, and never sees a prompt's text: fingerprints, counts and reasons only. Troubles are
said once per reason, then at most every hour, with how often they came.
"""

import time
from collections.abc import Sequence

from proxy.llama.replies import SlotFile, Warmed
from proxy.logs import SaidOnce, get_logger
from proxy.request.fingerprint import shown
from proxy.serving.events import (
    Anchored,
    CheckpointRestored,
    CheckpointSaved,
    CheckpointsDeleted,
    CheckpointUnfit,
    CheckpointVerified,
    ClaimFailed,
    Eased,
    Event,
    Left,
    Listener,
    Proceeded,
    ServerMet,
    Settled,
    SlotCopied,
    SlotPredicted,
    Troubled,
    WarmedUp,
)
from proxy.serving.model import Model
from proxy.serving.ticket import Ticket
from proxy.slots.capabilities import Capabilities
from proxy.slots.plan import Source

UNREACHABLE, NOT_PROBED = "unreachable", "not_probed"
FLICKERING = ("control:0", "control:503")
"""A server that answers one question may fail at the next: that fills no log."""
SILENCE = (UNREACHABLE, *FLICKERING)
"""Reasons that end when the server answers."""
MAY_END = frozenset({*SILENCE, NOT_PROBED})

log = get_logger()


class Reporter:
    """Writes the engine's lines."""

    def __init__(self) -> None:
        self._said = SaidOnce()
        self._open: set[str] = set()
        """Troubles that may be over one day."""
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Have all that happens from now on told to one more listener."""
        self._listeners.append(listener)

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as error:
                log.error("listener_failed", error=type(error).__name__, exc_info=error)

    def met(self, model: Model) -> None:
        """A server process was met for the first time."""
        self._tell(ServerMet(model))
        told = model.process
        if told is not None:
            words = f"server: {told.total_slots} slot(s) of {told.n_ctx} tokens, {told.build or 'unknown build'}"
            log.info("server", line=words, slots=told.total_slots, n_ctx=told.n_ctx, build=told.build)

    def planned(self, ticket: Ticket) -> None:
        """A plan was made."""
        plan, name = ticket.plan, shown(ticket.fingerprint)
        fields = {
            "fingerprint": name,
            "checkpoint": ticket.need.prefix_key,
            "source": str(plan.source),
            "reason": plan.reason,
        }
        if name and ticket.need.prefix_key:
            log.info("plan", line=f"fingerprint={name} checkpoint={ticket.need.prefix_key}", **fields)
        if plan.source is Source.HIT and plan.slot is not None:
            log.info(
                "hit",
                line=f"cache=HIT (slot {plan.slot} already warmed for this fingerprint)",
                slot=plan.slot,
                **fields,
            )
        elif plan.source is Source.WARM_UP:
            log.info("miss", line="no checkpoint → cold build", **fields)

    def warming(self, n_tokens: int, slot: int) -> None:
        """A warm-up starts."""
        log.info("warming", line=f"cache=MISS → warming slot={slot} (cold)", slot=slot, n_tokens=n_tokens)

    def warmed(self, slot: int, told: Warmed) -> None:
        """A warm-up has ended well."""
        self._tell(WarmedUp(told.prompt_n))
        words = f"warm-up done: HTTP 200 prompt_n={told.prompt_n} cache_n={told.cache_n}"
        log.info(
            "warmed", line=words, slot=slot, prompt_n=told.prompt_n, cache_n=told.cache_n, prompt_ms=told.prompt_ms
        )

    def anchored(self, slot: int, told: Warmed) -> None:
        """A first turn's prompt was prefilled, to be kept in host memory."""
        self._tell(Anchored(told.prompt_n))
        words = f"anchor: prompt_n={told.prompt_n} cache_n={told.cache_n}"
        log.info("anchored", line=words, slot=slot, prompt_n=told.prompt_n, cache_n=told.cache_n)

    def saved(self, name: str, told: SlotFile) -> None:
        """A checkpoint was saved."""
        self._tell(CheckpointSaved(name))
        log.info(
            "saved",
            line=f"SAVED {name}: n_saved={told.n_tokens}",
            file=name,
            n_saved=told.n_tokens,
            size_bytes=told.n_bytes,
        )

    def restored(self, name: str, told: SlotFile, slot: int) -> None:
        """A checkpoint was restored."""
        self._tell(CheckpointRestored(name))
        log.info(
            "restored",
            line=f"RESTORE {name}: n_restored={told.n_tokens}",
            file=name,
            n_restored=told.n_tokens,
            slot=slot,
        )

    def verified(self, name: str, cache_n: int, n_tokens: int, off_by: float | None) -> None:
        """A restored checkpoint was verified."""
        self._tell(CheckpointVerified(name))
        moved = "no log-probabilities recorded" if off_by is None else f"log-probabilities within {off_by:.1e}"
        words = f"RESTORE verified: cache_n={cache_n} of {n_tokens}, {moved}"
        log.info("verified", line=words, file=name, cache_n=cache_n, n_tokens=n_tokens, off_by=off_by)

    def unfit(self, name: str, verdict: str, detail: str) -> None:
        """A checkpoint can't be handed to the server."""
        self._tell(CheckpointUnfit(name, verdict))
        words = f"{name} is not restored: {verdict}{f' ({detail})' if detail else ''} → cold build"
        log.warning("unfit", line=words, file=name, verdict=verdict, detail=detail)

    def cleaned(self, keys: Sequence[str]) -> None:
        """Checkpoints were deleted."""
        self._tell(CheckpointsDeleted(len(keys)))
        log.info("cleaned", line=f"cleaned up {len(keys)} checkpoint(s): {' '.join(keys[:8])}", n_deleted=len(keys))

    def probed(self, able: Capabilities) -> None:
        """The server was probed."""
        self.eased(NOT_PROBED)
        log.info("probed", line=f"server probed: {_can(able)}", **_three(able), acts_on_slots=able.acts_on_slots)

    def recalled(self, able: Capabilities) -> None:
        """What the server can do is known from an earlier run."""
        self.eased(NOT_PROBED)
        log.info("recalled", line=f"server known from before: {_can(able)}", **_three(able))

    def proceeding(self, ticket: Ticket) -> None:
        """The request is forwarded now."""
        self._tell(Proceeded(ticket))
        plan = ticket.plan
        words = f"normal request proceeding (source={plan.source})"
        if plan.source is Source.NONE:
            words = f"normal request proceeding (source=none reason={plan.reason})"
        log.debug("proceeding", line=words, source=str(plan.source), reason=plan.reason)

    def settled(self, ticket: Ticket, model: Model, method: str = "POST") -> None:
        """The canonical line of a request."""
        self._tell(Settled(ticket, model.prompt_ms_per_token))
        self._request(ticket, ticket.status, method)

    def _request(self, ticket: Ticket, status: int, method: str = "POST") -> None:
        figures, plan = ticket.figures, ticket.plan
        tokens = figures.prompt_tokens if figures else None
        cached = figures.cache_n if figures else None
        reuse = cached / tokens if tokens and cached is not None else None
        words = (
            f"observed normal request: prompt_n={_shown(tokens)} cache_n={_shown(cached)} "
            f"(reuse {'?' if reuse is None else f'{reuse:.0%}'}) source={plan.source} reason={plan.reason} "
            f"status={status} ours={ticket.ours_ms:.1f}ms"
        )
        log.info(
            "request",
            line=words,
            method=method,
            path=ticket.path,
            status=status,
            complete=ticket.is_whole,
            model=ticket.visit.model,
            fingerprint=shown(ticket.fingerprint),
            source=str(plan.source),
            reason=plan.reason,
            prompt_tokens=tokens,
            prompt_n=figures.prompt_n if figures else None,
            cache_n=cached,
            reuse=None if reuse is None else round(reuse, 4),
            figures=figures.source if figures else "none",
            slot=ticket.slot,
            ours_ms=round(ticket.ours_ms, 2),
            first_byte_ms=round(ticket.first_byte_ms, 1),
        )

    def left(self, ticket: Ticket, own_status: int = 0) -> None:
        """The request has gone its way; the server's answer has its canonical line, an error of ours has it here."""
        self._tell(Left(ticket))
        if own_status and not ticket.has_begun:
            self._request(ticket, own_status)

    def copied(self, slot: int, *, has_worked: bool = True) -> None:
        """A slot's content is in the server's host memory now, or could not be brought there."""
        self._tell(SlotCopied(has_worked))
        log.debug("copied", slot=slot, has_worked=has_worked)

    def predicted(self, ticket: Ticket, slot: int) -> None:
        """A request landed in a slot; was it the one that was prepared?"""
        if ticket.plan.slot is not None:
            self._tell(SlotPredicted(ticket.plan.slot == slot))
        if ticket.plan.slot not in (None, slot):
            self.trouble("mispredicted", f"the server chose slot {slot}, not {ticket.plan.slot} as expected")

    def claim_failed(self, ticket: Ticket, reason: str) -> None:
        """Less was reused than was claimed."""
        self._tell(ClaimFailed(str(ticket.plan.source)))
        cached = ticket.figures.cache_n if ticket.figures else None
        self.trouble(
            f"claim:{ticket.plan.source}",
            f"reuse is below what source={ticket.plan.source} promised: cache_n={cached} of "
            f"{ticket.plan.expected_cache_n}; likely: {reason}",
        )

    def surprised(self, slots: Sequence[int]) -> None:
        """Beliefs were given up."""
        log.info(
            "surprised",
            line=f"slot(s) {', '.join(map(str, slots))} changed without us; taken as unknown",
            slots=list(slots),
        )

    def trouble(self, reason: str, words: str) -> None:
        """Something does not work as it could; said once per reason."""
        self._tell(Troubled(reason, words))
        if reason in MAY_END:
            self._open.add(reason)
        held_back = self._said.due(reason, time.monotonic())
        if held_back is not None:
            more = f" ({held_back} more since)" if held_back else ""
            log.warning("trouble", line=f"{words}{more}", reason=reason, held_back=held_back)

    def eased(self, reason: str) -> None:
        """A trouble is over: no advice any more, and said again when it comes again, unless that is all the time."""
        if reason in self._open:
            self._open.discard(reason)
            self._tell(Eased(reason))
            if reason not in FLICKERING:
                self._said.forget(reason)

    def answers_again(self) -> None:
        """The server answers: what was said of its silence is over."""
        for reason in SILENCE:
            self.eased(reason)

    def bug(self, error: BaseException) -> None:
        """An error of ours, whose request went on all the same."""
        words = f"unexpected {type(error).__name__}; requests go on unprepared"
        self._tell(Troubled(f"bug:{type(error).__name__}", words, is_bug=True))
        held_back = self._said.due(f"bug:{type(error).__name__}", time.monotonic())
        if held_back is not None:
            log.error("bug", line=words, exc_info=error)


def _three(able: Capabilities) -> dict[str, bool | None]:
    return {"rolls_back": able.rolls_back, "restores": able.restores, "keeps_copies": able.keeps_copies}


def _can(able: Capabilities) -> str:
    return ", ".join(f"{name.replace('_', ' ')}: {_YES_NO[value]}" for name, value in _three(able).items())


_YES_NO = {True: "yes", False: "no", None: "not known"}


def _shown(count: int | None) -> str:
    return "?" if count is None else str(count)
