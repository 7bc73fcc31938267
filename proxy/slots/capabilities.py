"""What this server was seen to do, as a record; finding out is `llama.probe`'s and the engine's part.

Every field has three values: seen to work, seen not to work, and not known yet (None). Nothing here is derived from a
version number or a model's name.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Of one server process and model."""

    total_slots: int = 1
    n_ctx: int = 0
    """Context size of a slot in tokens; 0 when unknown."""
    window: int | None = None
    """Tokens of the model's sliding window, by its file; 0 for none, None where the file does not tell."""
    shows_slots: bool | None = None
    """`GET /slots` answers (no `--no-slots`)."""
    acts_on_slots: bool | None = None
    """Save, restore and erase are allowed (`--slot-save-path`)."""
    rolls_back: bool | None = None
    """Any token of a slot can be gone back to: dense models, a sliding window with `--swa-full`."""
    restores: bool | None = None
    """A restored prefix is reused."""
    keeps_copies: bool | None = None
    """Displaced conversations come back from host memory (`--cache-ram`)."""
    copy_tokens: int = 0
    """As many tokens as are prefilled in the time that a copy to host memory takes at least; 0 until both are known."""
    has_room: bool | None = None
    """False where host memory had lost what was copied there: it is too small for more than conversations."""
    copies_roll_back: bool | None = None
    """False where what came back from there can't be gone back in, though a slot can: of a sliding window, with
    `--swa-full` too, only the window is copied."""
    clears_idle: bool | None = None
    """A task that begins in one slot empties all idle ones into host memory (default flags)."""
    reuses: bool | None = None
    """A request that says nothing of caching gets what a slot holds (no `--no-cache-prompt`)."""
    finds_alike: bool | None = None
    """A request is put into the slot that shares most with it (no `--slot-prompt-similarity 0`)."""
    mark_distance: int | None = None
    """Where a slot can't be rolled back: how many tokens before the end of the first prompt in a slot the in-memory
    checkpoint lies that outlives later turns; 0 where one at the end of a prefix outlives them too."""
    keeps_questions: bool | None = None
    """False where a slot was seen to have no in-memory checkpoint where a first question begins."""
    keeps_heads: bool | None = None
    """False where a slot was seen to have no in-memory checkpoint between the exact prefix's end and the head's."""
    is_windowed: bool | None = None
    """A slot goes on some tokens before its end, and can be gone back in by a few: a sliding window."""
    window_reach: int | None = None
    """So many tokens, and no more, a slot with a sliding window was seen to be gone back in; None before it failed."""
    format_version: int | None = None
    """Version of the state files this build writes."""

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether the in-memory checkpoints of all turns stay, where a model can't roll back and has state files.

        Other servers keep one of several that lie near each other; a sliding window is in a slot for a while only.
        """
        return bool(self.restores) and self.mark_distance == 0

    @property
    def has_window(self) -> bool:
        """Whether the model is known to have a sliding window, by its file or as it was seen to behave."""
        return bool(self.window) or bool(self.is_windowed)

    @property
    def truncates(self) -> bool:
        """What comes back from host memory or a file has the model's window only, and is gone back in all the same.

        So it is with `--swa-full`: the server believes that a slot has everything, and attends to what is not there. A
        server that was not probed tells by a restored prefix: of the smaller window cache none is ever reused.
        """
        is_full = self.restores if self.rolls_back is None else self.rolls_back
        return bool(is_full) and bool(self.window)

    @property
    def is_untried(self) -> bool:
        """Whether nobody has tried what its slots can be gone back in to: they were in use when it was met."""
        return not self.rolls_back and self.is_windowed is None

    @property
    def may_restore(self) -> bool:
        """Whether a checkpoint is worth a try: not where a sliding window may reuse nothing of it."""
        is_hopeful = not (self.is_untried and self.has_window) if self.restores is None else self.restores
        return is_hopeful and self.acts_on_slots is not False

    @property
    def may_keep_questions(self) -> bool:
        """Whether a slot that can't be rolled back may have an in-memory checkpoint where a first question begins."""
        has_marks = self.is_windowed is False and self.mark_distance is not None
        return self.keeps_questions is not False and (has_marks or self.is_untried)

    @property
    def goes_back_freely(self) -> bool:
        """Whether any token can be gone back to, in a slot and in what came back from host memory."""
        return bool(self.rolls_back) and not self.truncates

    @property
    def needs_anchors(self) -> bool:
        """Whether a later turn can't be gone back in to where a first one could.

        With `--ctx-checkpoints 0` there is nowhere to go back to: no distance is seen then.
        """
        forgets = bool(self.mark_distance) or (self.mark_distance == 0 and bool(self.is_windowed))
        return self.truncates or (self.rolls_back is False and forgets)
