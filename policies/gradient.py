"""Batch size by the ratio of the latency that a batch should have to the one that it has."""

from __future__ import annotations

import math
from dataclasses import dataclass

from policies.contract import Limits, Proposal, Signals, StepEstimate
from policies.costs import batch_cost, lengths, load, run_to_completion, step_cost
from policies.parameters import parameter
from policies.reading import binding_fraction, not_binding, with_size


@dataclass(frozen=True, slots=True)
class Compared:
    """Seconds that something should take and that it takes, and what it is."""

    base_s: float
    median_s: float
    what: str


class Gradient:
    """B <- 0.8 B + 0.2 (g B + sqrt(B) if g = 1), g the expected over the measured latency.

    base = hold + 1.5 t(mean batch), g = 1.5 base / median, between 0.5 and 1; t by the step model.

    Regime: a device that others use too, or memory that runs short: what makes steps longer than
    their contents explain is congestion, and B gives way. It knows no target: on a device of its
    own, B grows for as long as it binds, and the envelope is what bounds it.
    Continuous executors: median and t are those of inter-token latency, which has no hold. Run to
    completion: the end-to-end median without the wait in the queue, and t of a whole batch of mean
    lengths. The queue counts in neither: a smaller batch makes it longer, and B would collapse.
    The base is that of the batch as it was: against one base for all sizes, as for calls to a
    service, batching itself would read as congestion.
    Source: Netflix concurrency-limits, `Gradient2Limit` (clamp, smoothing 0.2, no growth below half
    of the limit); Envoy's adaptive concurrency filter (headroom sqrt(B)).
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """Those of the sources, but for the base."""

        tolerance: float = parameter(
            1.5, "So many times the base is no congestion yet.", low=1, high=10, unit="bases"
        )
        base: float = parameter(
            1.5,
            "So many times t are expected: one's own batch, and half of the one before.",
            low=1,
            high=10,
            unit="t",
        )
        least_gradient: float = parameter(
            0.5, "g is never less, whatever an outlier says.", low=0.1, high=1
        )
        smoothing: float = parameter(
            0.2, "So much of the new B is taken over at a time.", low=0.01, high=1, unit="fraction"
        )
        binding: float = binding_fraction()

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._size = math.nan
        self._proposed: int | None = None

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """Shrink where latency is above what the batch explains, else grow while B binds."""
        before = limits.max_batch_size
        # What the guard made of the last proposal is where this one starts, fractions forgotten.
        if self._proposed != before:
            self._size = float(before)
        self._size, why = self._next(signals)
        self._proposed = max(1, round(self._size))
        return Proposal(with_size(limits, self._proposed), why)

    def _next(self, signals: Signals) -> tuple[float, str]:
        wanted = self._parameters
        compared = None if signals.model is None else self._compared(signals, signals.model)
        if compared is None:
            return self._size, "no latency to hold against the step model"
        ratio = wanted.tolerance * compared.base_s / compared.median_s
        gradient = min(1.0, max(wanted.least_gradient, ratio))
        told = (
            f"median {compared.what} {compared.median_s * 1e3:.0f} ms, "
            f"{wanted.tolerance * compared.base_s * 1e3:.0f} ms expected at most"
        )
        target = gradient * self._size
        if gradient == 1.0:
            if idle := not_binding(signals, wanted.binding):
                return self._size, f"{told}, but {idle}"
            target += math.sqrt(self._size)
        size = (1 - wanted.smoothing) * self._size + wanted.smoothing * target
        return max(1.0, size), f"{told}, gradient {gradient:.2f}"

    def _compared(self, signals: Signals, model: StepEstimate) -> Compared | None:
        steps = load(signals)
        if steps is None:
            return None
        if run_to_completion(signals):
            typical = lengths(signals)
            inside = [
                (tier.e2e.p50 - tier.passed.queue_s, tier.passed.hold_s or 0.0, tier.e2e.samples)
                for tier in signals.tiers
                if tier.e2e is not None and tier.passed.queue_s is not None
            ]
            if typical is None or not inside:
                return None
            hold_s = _mean([(hold_s, samples) for _, hold_s, samples in inside])
            batch_s = batch_cost(model, typical).of(steps.sequences)
            median_s = _mean([(median_s, samples) for median_s, _, samples in inside])
            base_s, what = hold_s + self._parameters.base * batch_s, "time from dispatch to end"
        else:
            medians = [(t.itl.p50, t.itl.samples) for t in signals.tiers if t.itl is not None]
            step_s = step_cost(model, context=steps.context, prefill=steps.prefill)
            median_s = _mean(medians) if medians else 0.0
            base_s, what = self._parameters.base * step_s.of(steps.sequences), "ITL"
        # Means over a queue that moves may leave less than nothing: that says nothing.
        return Compared(base_s, median_s, what) if median_s > 0 and base_s > 0 else None


def _mean(weighted: list[tuple[float, int]]) -> float:
    return sum(value * weight for value, weight in weighted) / sum(w for _, w in weighted)
