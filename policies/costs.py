"""What a step and a batch cost by the step model, and how many sequences a budget pays for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from policies.contract import ExecutorSignals, Signals, StepEstimate


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of n sequences together: `fixed + each*n`, of those beyond `knee` `each_above`."""

    fixed: float
    each: float
    each_above: float
    knee: int

    def of(self, sequences: float) -> float:
        """Seconds of so many."""
        above = max(0.0, sequences - self.knee)
        return self.fixed + self.each * (sequences - above) + self.each_above * above

    def affordable(self, budget_s: float) -> float:
        """How many a budget in seconds pays for: 0 where not even one, infinite where they cost
        nothing."""
        left_s = budget_s - self.fixed
        if left_s < 0:
            return 0.0
        at_knee_s = self.each * self.knee
        if left_s < at_knee_s:
            return left_s / self.each
        if self.each_above <= 0:
            return math.inf
        return self.knee + (left_s - at_knee_s) / self.each_above


@dataclass(frozen=True, slots=True)
class Load:
    """Means over steps: sequences, tokens of context of each, tokens prefilled."""

    sequences: float
    context: float
    prefill: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """Means over requests, in tokens."""

    prompt: float
    new: float


def step_cost(model: StepEstimate, *, context: float, prefill: float) -> Cost:
    """Of a step whose sequences have so much context, beside so many tokens of prefill."""
    reading_s = model.b * context
    return Cost(
        fixed=model.a + model.d * prefill,
        each=model.c + reading_s,
        each_above=model.c_above + reading_s,
        knee=model.knee,
    )


def batch_cost(model: StepEstimate, lengths: Lengths) -> Cost:
    """Of a batch that runs to its end: every prompt, and a step for every new token."""
    prompt, new = lengths.prompt, lengths.new
    prefill_s = model.d * prompt + model.e * prompt**2
    # Half of what it says is behind a sequence in the mean of its steps.
    reading_s = model.b * (prompt + new / 2)
    return Cost(
        fixed=new * model.a,
        each=prefill_s + new * (model.c + reading_s),
        each_above=prefill_s + new * (model.c_above + reading_s),
        knee=model.knee,
    )


def load(signals: Signals) -> Load | None:
    """What the steps held in the mean, of all executors together; None where there were none."""
    steps = [e for e in signals.executors if e.ready and e.steps and e.mean_batch]
    count = sum(e.steps for e in steps)
    rows = sum(e.steps * (e.mean_batch or 0.0) for e in steps)
    if not count or not rows:
        return None
    context = sum(e.steps * (e.mean_batch or 0.0) * (e.mean_context or 0.0) for e in steps)
    prefill = sum(e.steps * (e.mean_prefill or 0.0) for e in steps)
    return Load(rows / count, context / rows, prefill / count)


def lengths(signals: Signals) -> Lengths | None:
    """How long requests lately were, each tier by how often its requests come; None where no
    request was both begun and finished."""
    known = [
        (tier.arrival_rate or 0.0, tier.passed.prompt_tokens, tier.passed.new_tokens)
        for tier in signals.tiers
        if tier.passed.prompt_tokens is not None and tier.passed.new_tokens is not None
    ]
    if not known:
        return None
    weights = [rate for rate, _, _ in known]
    if not sum(weights):
        weights = [1.0] * len(known)
    total = sum(weights)
    prompt = sum(weight * prompt for weight, (_, prompt, _) in zip(weights, known, strict=True))
    new = sum(weight * new for weight, (_, _, new) in zip(weights, known, strict=True))
    return Lengths(prompt / total, new / total)


def run_to_completion(signals: Signals) -> bool:
    """Whether the executors run a batch to its end before they take the next."""
    return any(e.shape.runs_to_completion for e in _shaped(signals) if e.shape is not None)


def seats(signals: Signals) -> int | None:
    """The seats of the smallest executor; None until one has said."""
    return min((e.shape.max_seqs for e in _shaped(signals) if e.shape is not None), default=None)


def _shaped(signals: Signals) -> list[ExecutorSignals]:
    return [e for e in signals.executors if e.ready and e.shape is not None]
