"""The largest batch that keeps its latency target by the step model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from policies.contract import Limits, Proposal, Signals, StepEstimate, TierSignals
from policies.costs import batch_cost, lengths, load, run_to_completion, seats, step_cost
from policies.parameters import parameter
from policies.reading import binding_fraction, not_binding, present, tightest_itl, with_size


@dataclass(frozen=True, slots=True)
class Wanted:
    """The batch size that keeps a target, as a fraction of a sequence, and why."""

    size: float
    why: str


_UNBOUNDED = Wanted(math.inf, "no target that bounds B")


class LatencyModel:
    """B = floor((ITL - z sigma - a - d P) / (c + b context)), from the step model, at once.

    P is what steps prefill in the mean; ITL is the shortest target of the tiers that run or wait.
    Run to completion: B = floor((0.92 E2E - W - z sigma - 2 alpha) / (2 beta)), since who just
    missed a batch waits for that one and for its own; a batch of n takes alpha + beta n.

    Regime: the step model fits and traffic is alike for longer than its window; needs no latency
    samples, so it follows a change at once. It reckons with means, so where lengths vary much a
    batch that runs to completion lasts longer than it says. It knows no queue: where decode has
    time to spare it does nothing against others' prefills. Where sizes have not varied enough to
    tell the coefficients apart, B moves by 1 at a time. Without a target B grows for as long as it
    binds. Within the dead band B stays, and means of context and prefill reach back some 30 ticks:
    with half the band and 10 ticks, where chat and code alternate, B turned 7.4 times a minute and
    2.8 % less was served in target than by a fixed 256; so it is 3.1 times and 0.3 % (simulated,
    E3, two seeds).
    Source: BentoML's adaptive batching (the linear model of a batch); Crankshaw et al., "Clipper",
    NSDI 2017 (the largest batch that keeps the objective).
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """Where the formula has figures."""

        z: float = parameter(
            1.28, "Spreads of the model that are kept free, 1.28 for 90 %.", low=0, high=5
        )
        share: float = parameter(
            0.92,
            "So much of a target on the whole is used, for batches run to completion.",
            low=0.1,
            high=1,
            unit="fraction",
        )
        dead_band: float = parameter(
            0.2,
            "B stays while the size wanted is nearer than this.",
            low=0,
            high=0.5,
            unit="fraction of B",
        )
        memory: float = parameter(
            0.97,
            "How much of the means of context and prefill is kept from tick to tick.",
            low=0,
            high=0.99,
            unit="fraction",
        )
        binding: float = binding_fraction()

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._context: float | None = None
        self._prefill: float | None = None

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """Go to the size that the model affords; up only while B binds."""
        before = limits.max_batch_size
        wanted = self._wanted(signals, limits)
        if wanted is None:
            return Proposal(limits, "no step model, or nothing to reckon with yet")
        size, why = max(1, math.floor(wanted.size)), wanted.why
        if abs(size - before) <= self._parameters.dead_band * before:
            return Proposal(limits, f"{why}: B {size} is near enough")
        if size > before and (idle := not_binding(signals, self._parameters.binding)):
            return Proposal(limits, f"{why}: B {size}, but {idle}")
        if signals.model is not None and not signals.model.identifiable:
            size = before + (1 if size > before else -1)
            why = f"{why}; sizes have not varied enough to be sure, so a step of 1"
        return Proposal(with_size(limits, size), why)

    def _wanted(self, signals: Signals, limits: Limits) -> Wanted | None:
        model, here = signals.model, present(signals)
        if model is None or not here:
            return None
        if run_to_completion(signals):
            found = self._whole(signals, limits, model, here)
        else:
            found = self._steps(signals, model)
        if found is None or math.isfinite(found.size):
            return found
        most = seats(signals)
        return None if most is None else Wanted(most, found.why)

    def _steps(self, signals: Signals, model: StepEstimate) -> Wanted | None:
        tightest, steps = tightest_itl(signals), load(signals)
        if tightest is None:
            return _UNBOUNDED
        if steps is None:
            return None
        keep = self._parameters.memory
        self._context = _smoothed(self._context, steps.context, keep)
        self._prefill = _smoothed(self._prefill, steps.prefill, keep)
        tier, verdict = tightest
        cost = step_cost(model, context=self._context, prefill=self._prefill)
        budget_s = verdict.target_s - self._parameters.z * model.sigma_s
        why = (
            f"{tier} ITL {verdict.target_s * 1e3:.0f} ms, {cost.fixed * 1e3:.1f} ms a step and "
            f"{cost.each * 1e3:.2f} ms a sequence of {self._context:.0f} tokens"
        )
        return Wanted(cost.affordable(budget_s), why)

    def _whole(
        self, signals: Signals, limits: Limits, model: StepEstimate, here: list[TierSignals]
    ) -> Wanted | None:
        typical = lengths(signals)
        if typical is None:
            return None
        promised = [
            (verdict.target_s, tier.name)
            for tier in here
            for verdict in tier.verdicts
            if verdict.metric == "e2e"
        ]
        if not promised:
            return _UNBOUNDED
        target_s, tier = min(promised)
        cost = batch_cost(model, typical)
        # The spread of one step, over as many as a batch has.
        spread_s = self._parameters.z * model.sigma_s * math.sqrt(typical.new)
        budget_s = self._parameters.share * target_s - limits.wait_timeout_s - spread_s
        why = (
            f"{tier} E2E {target_s:.1f} s, twice {cost.fixed:.2f} s a batch and "
            f"{cost.each * 1e3:.0f} ms a sequence"
        )
        return Wanted(cost.affordable(budget_s / 2), why)


def _smoothed(before: float | None, now: float, keep: float) -> float:
    return now if before is None else keep * before + (1 - keep) * now
