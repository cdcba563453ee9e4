"""Limits that are known beforehand to be best for each phase of a workload."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from policies.contract import Limits, Proposal, Signals
from policies.parameters import parameter


class PhaseOracle:
    """The limits of the phase that is on, from its first tick.

    It knows what no policy can: when traffic changes, and what is best then (`evaluate_oracle`
    finds that in hindsight). It counts the time by the intervals between its ticks, the first of
    which is at the start of the run.
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """`phases` has no default: an oracle is of one workload."""

        phases: Sequence[Sequence[float]] = parameter(
            (), "Of each phase its start in seconds, B, T and W (s), in order, the first at 0."
        )

        def __post_init__(self) -> None:
            starts = [phase[0] for phase in self.phases]
            if not starts or starts[0] != 0 or starts != sorted(starts):
                raise ValueError("phases should be in order, the first at 0")
            if any(len(phase) != 4 for phase in self.phases):
                raise ValueError("each phase should be [start_s, B, T, W]")

    def __init__(self, parameters: Parameters) -> None:
        self._phases = parameters.phases
        self._starts = [phase[0] for phase in parameters.phases]
        self._now_s = 0.0

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """What is best now."""
        self._now_s += signals.interval_s
        # Intervals are floats: a sum of them may be a hair before the instant that it stands for.
        index = bisect_right(self._starts, self._now_s + 1e-6) - 1
        start_s, size, tokens, wait_s = self._phases[index]
        wanted = replace(
            limits,
            max_batch_size=round(size),
            max_batch_tokens=round(tokens),
            wait_timeout_s=wait_s,
        )
        return Proposal(wanted, f"phase {index + 1} of {len(self._starts)}, since {start_s:.0f} s")
