"""Limits that are known beforehand to be best for each phase of a workload."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from policies.contract import Limits, Proposal, Signals
from policies.parameters import parameter


@dataclass(frozen=True, slots=True)
class Phase:
    """Limits from an instant on."""

    start_s: float = parameter(doc="From the start of the run.", low=0)
    max_batch_size: int = parameter(doc="B.", low=1)
    max_batch_tokens: int = parameter(doc="T.", low=1)
    wait_timeout_s: float = parameter(0.0, "W.", low=0)


class PhaseOracle:
    """The limits of the phase that is on, from its first tick.

    It knows what no policy can: when traffic changes, and what is best then (`evaluate_oracle`
    finds that in hindsight). It counts the time by the intervals between its ticks, the first of
    which is at the start of the run.
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """There is no default: an oracle is of one workload."""

        phases: tuple[Phase, ...] = parameter(doc="In order, the first from 0 on.")

        def __post_init__(self) -> None:
            starts = [phase.start_s for phase in self.phases]
            if not starts or starts[0] != 0 or starts != sorted(starts):
                raise ValueError("phases should be in order, the first from 0 on")

    def __init__(self, parameters: Parameters) -> None:
        self._phases = parameters.phases
        self._starts = [phase.start_s for phase in parameters.phases]
        self._now_s = 0.0

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """What is best now."""
        self._now_s += signals.interval_s
        # Intervals are floats: a sum of them may be a hair before the instant that it stands for.
        index = bisect_right(self._starts, self._now_s + 1e-6) - 1
        phase = self._phases[index]
        wanted = replace(
            limits,
            max_batch_size=phase.max_batch_size,
            max_batch_tokens=phase.max_batch_tokens,
            wait_timeout_s=phase.wait_timeout_s,
        )
        return Proposal(wanted, f"phase {index + 1} of {len(self._phases)}")
