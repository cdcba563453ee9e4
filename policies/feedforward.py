"""What the step model says about limits: how many rows, how many tokens of prompts, which batch.

Pure functions of a `StepEstimate` and of what requests come to; seconds and tokens throughout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from policies.contract import StepEstimate
from policies.costs import Cost, Lengths, batch_cost, step_cost

# More batches than this cannot be told apart, and no executor has as many seats.
MOST_ROWS = 65_536
# Of what a batch size could serve, arrivals that come in bursts leave about so much to be used.
_USABLE = 0.7
# Where no size lets more than this part begin in time there is nothing to win by small batches.
_HOPELESS = 0.1
# Sizes that come so close to the best are as good.
_AS_GOOD = 0.97


def largest_size(model: StepEstimate, context: float, step_s: float) -> int:
    """The most sequences of `context` tokens each that decode together within `step_s`.

    0: not even one does. `MOST_ROWS`: rows cost nothing.
    """
    most = step_cost(model, context=context, prefill=0.0).affordable(step_s)
    # Floats make 39.999 of 40.
    return math.floor(min(most + 1e-9, MOST_ROWS))


def largest_shared(
    model: StepEstimate, context: float, step_s: float, *, prompts: float, share: float
) -> int:
    """The same where each row brings `prompts` tokens of prompts a step, in the mean: those who
    decode wait for them too. At most the part `share` of the time is kept for prompts: where they
    would take more, they are let in at a pace, and fewer rows would not make them fewer.
    """
    beside = replace(
        model, c=model.c + model.d * prompts, c_above=model.c_above + model.d * prompts
    )
    alone = largest_size(model, context, (1 - share) * step_s)
    return max(alone, largest_size(beside, context, step_s))


def prompt_tokens(model: StepEstimate, seconds: float) -> float:
    """Tokens of prompts that are computed within so much of a step; infinite where they cost
    nothing. A chunk attends to itself: `d*p + e*p^2`."""
    if seconds <= 0:
        return 0.0
    if model.e <= 0:
        return seconds / model.d if model.d > 0 else math.inf
    root = math.sqrt(model.d * model.d + 4 * model.e * seconds)
    return (root - model.d) / (2 * model.e)


@dataclass(frozen=True, slots=True)
class Demand:
    """What one tier asks of an executor that runs batches to their end: requests per second, and
    seconds until the first token."""

    rate: float
    ttft_s: float


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Seconds of batches that run to their end, by their size: `whole` from start to end, `begun`
    to the first tokens."""

    whole: Cost
    begun: Cost

    @classmethod
    def of(cls, model: StepEstimate, lengths: Lengths) -> BatchTimes:
        """Of requests of these lengths, all alike."""
        return cls(batch_cost(model, lengths), batch_cost(model, replace(lengths, new=1.0)))


def batch_size(
    times: BatchTimes, demands: Sequence[Demand], *, rate: float, most: int
) -> int | None:
    """The batch with which most requests begin in time, where batches run to their end; `rate` is
    that of all requests, those without such a target included.

    Who comes finds a batch under way, waits for what is left of it (uniform), then for the prefill
    of its own. None: no tier can wait for a whole batch of one before its own begins, or hardly
    anybody who comes would begin in time with any size, so that whoever waits is better off in the
    next batch than in the one after it.
    *Ours*; the batch time linear in its size is Clipper's (Crankshaw et al., NSDI 2017).
    """
    if not any(times.whole.of(1) + times.begun.of(1) <= one.ttft_s for one in demands):
        return None

    def met(size: int) -> float:
        whole_s, begun_s = times.whole.of(size), times.begun.of(size)
        in_time = sum(
            one.rate * min(1.0, max(0.0, (one.ttft_s - begun_s) / whole_s)) for one in demands
        )
        return in_time * min(1.0, _USABLE * size / whole_s / rate) if rate > 0 else in_time

    by_size = [met(size) for size in range(1, most + 1)]
    best = max(by_size)
    if best < _HOPELESS * sum(one.rate for one in demands):
        return None
    enough = _AS_GOOD * best
    # Of sizes that are as good the largest: bursts need it.
    return max(size for size, value in enumerate(by_size, 1) if value >= enough)
