"""One simulated executor under the simulator: when its step ends, and what waits for that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from executor.contract import Report, SimulatedSettings, Work
from executor.simulated_leaps import LeapingSimulation

# Running rows show their tokens at least this often: tiers that wait are measured against progress.
TELL_S = 1.0

# A model of an executor, from its settings and the lengths of completions by request.
Make = Callable[[SimulatedSettings, Mapping[str, int]], LeapingSimulation]


class Pretended:
    """An executor as its process would be: it takes messages between steps only.

    `due` is when the step under way ends, or when a process that died is back; infinite when
    nothing is under way. What is done before `blind_until` is not measured.
    """

    def __init__(
        self,
        name: str,
        settings: SimulatedSettings,
        lengths: Mapping[str, int],
        *,
        make: Make = LeapingSimulation,
    ) -> None:
        self._make = make
        self.name = name
        self.settings = settings
        self.incarnation = 0
        self.due = math.inf
        self.blind_until = -math.inf
        self.simulation = make(settings, lengths)
        self._lengths = lengths
        self._inbox: list[Work] = []
        self._report: Report | None = None
        self._told_at = 0.0

    def take(self, work: Work) -> None:
        """A message; it is read when the step under way is over."""
        self._inbox.append(work)

    def idle(self) -> bool:
        """Whether a step could begin: none is under way, and there may be something to do."""
        return self.due == math.inf and (bool(self._inbox) or self.simulation.has_work())

    def begin_step(self, now: float, *, until: float, end_by: float, tell: bool) -> None:
        """Read the messages and begin to step: one step, or all equal ones that begin before
        `until` and end by `end_by`. `tell` has every token told with its step."""
        for work in self._inbox:
            self.simulation.limit(work.epoch, work.max_batch_tokens)
            self.simulation.begin(work.submit)
            self.simulation.release(work.release)
        self._inbox.clear()
        if not self.simulation.has_work():
            return
        if now < self.blind_until:
            end_by = min(end_by, self.blind_until)
        tell_at = now if tell else self._told_at + TELL_S
        seconds, report = self.simulation.leap(
            begin_within_s=until - now, end_within_s=end_by - now, tell_after_s=tell_at - now
        )
        if now + seconds >= tell_at:
            self._told_at = now + seconds
        self.due, self._report = now + seconds, report

    def end_step(self, now: float) -> Report | None:
        """The report of the step that is over; None: a process that died is back."""
        report, self._report, self.due = self._report, None, math.inf
        if report is not None and now < self.blind_until:
            return msgspec.structs.replace(report, steps=0, sample=None, utilization=None)
        return report

    def die(self, back_at: float) -> None:
        """The process is gone, with all that it held."""
        self._report, self.due = None, back_at
        self._inbox.clear()

    def revive(self) -> None:
        """A new process, which holds nothing."""
        self.incarnation += 1
        self.simulation = self._make(self.settings, self._lengths)
        self._inbox.clear()
