"""BentoML's rule for batch size and wait, for steps in the place of batches."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.baseline_reading import bound_s, step_seen
from policies.contract import Limits, Proposal, Signals
from policies.parameters import parameter
from policies.reading import with_size

KEPT = 50
REFRESH_S = 5.0
SKIPPED = 2
# How often its dispatcher looks, and what of the usual wait it lets pass again.
LOOK_S, DECAY = 0.001, 0.95


class BentoMl:
    """Time of a batch is a*n + b by least squares over the last 50; wait while the batch is small.

    The dispatcher has a fixed largest batch (100). Every 5 s it fits a and b to the last 50 batches
    and averages what their oldest members had waited. The head of the queue is cancelled where its
    wait and a*n + b, n the queue's length, come to the latency that is allowed, so that n hardly
    grows beyond where a*n + b stays under it. Otherwise, with one batch at a time, it waits on
    while n * (time since the newest + 1 ms + a) <= 0.95 * the usual wait, and then takes all that
    is there: past waits feed the next ones.

    Here a batch is a step and what is allowed the tightest inter-token target; a tick gives one
    sample, the inter-token latency of its window at the number of sequences that run. B is the
    largest n with a*n + b under the target, W what the condition allows after the newest of those
    who wait now; who is turned away is the queues' business. Made for `hold: fixed`. T is left as
    it is. The training at the start is left out: two samples are skipped, the next one is fitted.
    Source: bentoml/BentoML, src/bentoml/_internal/marshal/dispatcher.py (7761b87f, Apache-2.0).
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """What an operator can set there."""

        max_batch_size: int = parameter(100, "The largest batch, however fast it is.", low=1)

    def __init__(self, parameters: Parameters) -> None:
        self._most = parameters.max_batch_size
        self._kept: deque[tuple[int, float, float]] = deque(maxlen=KEPT)
        self._skipped = 0
        self._until_refresh_s = 0.0
        self._line: tuple[float, float] | None = None
        self._wait_s = 0.0

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """B from the line that was fitted last, W from the usual wait."""
        target_s, step = bound_s(signals), step_seen(signals)
        if target_s is None or step is None:
            return Proposal(limits, "no steps, or no inter-token target to hold them against")
        if self._line is None:
            # What it assumes before it has seen anything.
            self._line = min(2.0, target_s * 2 / 30), min(1.0, target_s / 30)
        self._until_refresh_s -= signals.interval_s
        if self._skipped < SKIPPED:
            self._skipped += 1
        else:
            self._kept.append((step.rows, step.seconds, _waited_s(signals)))
            if self._until_refresh_s <= 0:
                self._until_refresh_s = REFRESH_S
                self._line = line([(rows, took_s) for rows, took_s, _ in self._kept])
                self._wait_s = sum(wait_s for _, _, wait_s in self._kept) / len(self._kept)
        slope_s, fixed_s = self._line
        size = min(self._most, max(1, math.ceil((target_s - fixed_s) / slope_s) - 1))
        waiting = max(1, sum(tier.queued for tier in signals.tiers))
        wait_s = max(0.0, DECAY * self._wait_s / waiting - LOOK_S - slope_s)
        reason = (
            f"a step of n takes {slope_s * 1e3:.2f} n + {fixed_s * 1e3:.1f} ms of "
            f"{target_s * 1e3:.0f} ms; usual wait {self._wait_s * 1e3:.0f} ms"
        )
        return Proposal(replace(with_size(limits, size), wait_timeout_s=wait_s), reason)


def line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Slope and intercept by least squares, neither below 0 (the slope a millionth at least).

    Where all sizes are the same, the pair of least norm that goes through their mean, as a solver
    by singular values has it.
    """
    count = len(points)
    mean_n = sum(n for n, _ in points) / count
    mean_s = sum(took for _, took in points) / count
    across = sum((n - mean_n) ** 2 for n, _ in points)
    if across:
        slope = sum((n - mean_n) * (took - mean_s) for n, took in points) / across
        fixed = mean_s - slope * mean_n
    else:
        fixed = mean_s / (mean_n * mean_n + 1)
        slope = fixed * mean_n
    return max(1e-6, slope), max(0.0, fixed)


def _waited_s(signals: Signals) -> float:
    """What requests waited before they went, in the mean over tiers by how many came."""
    told = [
        ((tier.passed.queue_s or 0.0) + (tier.passed.hold_s or 0.0), tier.arrival_rate or 0.0)
        for tier in signals.tiers
        if tier.passed.queue_s is not None
    ]
    total = sum(rate for _, rate in told)
    return sum(wait_s * rate for wait_s, rate in told) / total if total else 0.0
