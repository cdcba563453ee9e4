"""What the daemon needs of an executor, be it a process, or an engine somewhere behind HTTP."""

from __future__ import annotations

from typing import Any, Protocol

from executor.contract import Fault, Work
from executor.process import State


class Executor(Protocol):
    """One executor over all of its incarnations. Everything is called on the event loop."""

    name: str
    state: State
    words: str
    incarnation: int

    @property
    def ready(self) -> bool:
        """Whether it takes work now."""

    @property
    def pid(self) -> int | None:
        """The process id while there is a living process of ours."""

    @property
    def restarts(self) -> int:
        """How often it came back."""

    def start(self) -> None:
        """Begin to bring it up; harmless when that was begun before."""

    def send(self, work: Work) -> None:
        """Hand over work at once; dropped when it is not ready."""

    def fault(self, fault: Fault) -> None:
        """Misbehave, where it can do that on demand."""

    async def stop(self, grace_s: float) -> None:
        """End it for good, by force after `grace_s`."""

    def check_progress(self, now: float, in_flight: int) -> None:
        """Take it out if it is stuck with the sequences that it holds; called at every tick."""

    def view(self, now: float) -> dict[str, Any]:
        """What it has to say of itself beyond its state, as JSON."""
