"""What the child's loop drives: one model, stepped from one thread, told everything by value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from executor.contract import Fault, Ready, Report, Work

Progress = Callable[[str, float | None], None]


class Engine(Protocol):
    """One model, one step at a time. Not thread-safe: the thread that loads it also drives it."""

    def load(self, progress: Progress) -> Ready:
        """Load the weights and warm up; answers what the executor is and how fast it was.

        `progress(stage, fraction)` may be called often; the fraction (0..1) is None where nobody
        knows. Raises ValueError where the settings can never work (a restart cannot help).
        """

    def apply(self, work: Work) -> None:
        """Take submits, releases and limits; they are in force from the next step on."""

    def has_work(self) -> bool:
        """Whether `step` has something to do: a sequence to step, or something to acknowledge."""

    def step(self) -> Report:
        """One iteration, at most.

        What goes wrong inside a step is handled here: everything is given back
        (`Report.returned`) and the engine stays usable.
        """

    def inject(self, fault: Fault) -> None:
        """Misbehave as told, for tests and drills. Raises ValueError where that is impossible."""

    def close(self) -> None:
        """Let go of memory and devices; nothing may be called afterwards."""
