"""The decision: what was proposed, what became of it, and why, kept and told."""

from __future__ import annotations

from dataclasses import dataclass

from policies.contract import Applied, GuardNote, Limits, Signals

_SHORT = {"max_batch_size": "B", "max_batch_tokens": "T", "wait_timeout_s": "W"}


@dataclass(frozen=True, slots=True)
class Decision:
    """One tick. `at` is wall clock (unix seconds); `epoch` is in force after it.

    `error` is what a policy raised, empty when it did not.
    """

    number: int
    at: float
    group: str
    policy: str
    epoch: int
    before: Limits
    proposed: Limits
    after: Limits
    reason: str
    notes: tuple[GuardNote, ...]
    signals: Signals
    duration_s: float
    error: str = ""

    @property
    def moved(self) -> bool:
        """Whether anything changed."""
        return self.before != self.after

    @property
    def applied(self) -> Applied:
        """What the next tick's signals say of it."""
        return Applied(self.proposed, self.after, self.notes)

    def sentence(self) -> str:
        """The decision in one line: the moves, the reason, and what the guard held back."""
        moves = [
            f"{short} {_shown(old)} -> {_shown(new)}"
            for name, short in _SHORT.items()
            if (old := getattr(self.before, name)) != (new := getattr(self.after, name))
        ]
        held = [f"{_SHORT[note.limit]} {note.code}: {note.detail}" for note in self.notes]
        told = f"{', '.join(moves) or 'no change'}: {self.reason}"
        return f"{told} ({'; '.join(held)})" if held else told


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value * 1000:g} ms"
