"""Clipper's rule for the batch size as it was released, for steps in the place of batches."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from bench.baseline_reading import bound_s, capacity, step_seen
from policies.contract import Limits, Proposal, Signals
from policies.parameters import parameter
from policies.reading import with_size

# A size counts towards the spread, and is explored no further, once it was seen so many times.
ENOUGH = 5
# Below it exploring adds one; from there on it multiplies.
ADDITIVE_BELOW = 10


@dataclass(slots=True)
class Latency:
    """Running count, mean and variance (of a population) of one batch size, in seconds."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Count one more (Welford)."""
        self.count += 1
        off = value - self.mean
        self.mean += off / self.count
        self.squares += off * (value - self.mean)

    @property
    def variance(self) -> float:
        """Of what was seen."""
        return self.squares / self.count if self.count else 0.0


class Clipper:
    """Explore larger batches until one was too slow; from then on fit size to latency.

    The paper describes additive growth with a back-off of 10 %, and quantile regression as an
    alternative. The released code does neither. It keeps count, mean and spread of the latency of
    each batch size and the longest latency ever. Of the time until the deadline, 0.92 is the
    budget. While no batch ever took longer than it, the size explores: the largest so far again
    while it was seen but less than five times, one more below ten, else times 1 + N(0.1, 0.05).
    After that for ever the size is a linear fit (ridge, of which the penalty is chosen by leaving
    one out; least squares here) of size on latency, at the budget, where the latency of a size is
    its mean and three times the spread pooled over sizes. Nothing is forgotten; no size is held.

    Here a batch is a step and the deadline is the tightest inter-token target; a tick gives one
    sample, the inter-token latency of its window at the number of sequences that run. What counts
    as the largest so far is what was in force, since the guard may refuse. T and W are left alone.
    Source: ucbrise/clipper, `ModelContainer::get_batch_size` in src/libclipper/src/containers.cpp
    (d9391ea1, Apache-2.0); Crankshaw et al., NSDI 2017.
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """The constants of the released code."""

        budget: float = parameter(0.92, "Part of the target that a step may take.", low=0.1, high=1)
        z: float = parameter(3.0, "Pooled spreads above the mean that a size is thought to take.")
        growth: float = parameter(0.1, "Mean of what exploring adds, as a fraction.", low=0)
        growth_spread: float = parameter(0.05, "Its standard deviation.", low=0)
        seed: int = parameter(0, "Of the random growth.")

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._random = random.Random(parameters.seed)
        self._seen: dict[int, Latency] = {}
        self._longest_s = 0.0
        self._largest = 1

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """Explore or estimate, at every tick with steps."""
        self._largest = max(self._largest, limits.max_batch_size)
        target_s, step = bound_s(signals), step_seen(signals)
        if target_s is None or step is None:
            return Proposal(limits, "no steps, or no inter-token target to hold them against")
        self._seen.setdefault(step.rows, Latency()).add(step.seconds)
        self._longest_s = max(self._longest_s, step.seconds)
        budget_s = self._parameters.budget * target_s
        if budget_s > self._longest_s:
            size, how = self._explore(), "exploring"
        else:
            size, how = estimate(self._seen, budget_s, z=self._parameters.z), "estimating"
        size = min(size, capacity(signals) or size)
        longest = f"the longest step took {self._longest_s * 1e3:.0f} ms"
        return Proposal(with_size(limits, size), f"{how}: {longest} of {budget_s * 1e3:.0f} ms")

    def _explore(self) -> int:
        largest = self._largest
        seen = self._seen.get(largest)
        if seen is not None and seen.count < ENOUGH:
            return largest
        if largest < ADDITIVE_BELOW:
            return largest + 1
        drawn = self._random.gauss(self._parameters.growth, self._parameters.growth_spread)
        return int((1 + max(0.0, drawn)) * largest)


def estimate(seen: Mapping[int, Latency], budget_s: float, *, z: float) -> int:
    """The size whose latency fits a budget, by a line of size on latency; at least 1."""
    known = [one for one in seen.values() if one.count >= ENOUGH]
    # The released code takes off one for every size, also for those that are not counted.
    freedom = max(1, sum(one.count for one in known) - len(seen))
    spread_s = math.sqrt(sum((one.count - 1) * one.variance for one in known) / freedom)
    points = [(one.mean + z * spread_s, size) for size, one in seen.items()]
    mean_s = sum(latency for latency, _ in points) / len(points)
    mean_size = sum(size for _, size in points) / len(points)
    across = sum((latency - mean_s) ** 2 for latency, _ in points)
    along = sum((latency - mean_s) * (size - mean_size) for latency, size in points)
    slope = along / across if across else 0.0
    return max(1, math.floor(mean_size + slope * (budget_s - mean_s)))
