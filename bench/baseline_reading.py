"""What the baselines take for a batch, its latency and its bound, where their sources know only
batches that run to their ends."""

from __future__ import annotations

from dataclasses import dataclass

from policies.contract import Signals
from policies.reading import verdicts_on_itl


@dataclass(frozen=True, slots=True)
class StepSeen:
    """Sequences that run, and the seconds from token to token of those who have a target there."""

    rows: int
    seconds: float


def step_seen(signals: Signals) -> StepSeen | None:
    """What the executors are doing; None where nothing was measured under these limits.

    The time is that which targets speak of, in the mean over requests of all tiers, rather than
    that of single steps: a step that only prefills is as long as many that decode, it is of few
    rows, and the rules would learn from it that small batches are slow.
    """
    given = [v for _, v in verdicts_on_itl(signals) if v.value_s is not None]
    running = max((one.running for one in signals.executors if one.ready), default=0)
    samples = sum(verdict.samples for verdict in given)
    if not samples or not running:
        return None
    total_s = sum((verdict.value_s or 0.0) * verdict.samples for verdict in given)
    return StepSeen(running, total_s / samples)


def bound_s(signals: Signals) -> float | None:
    """What a step may take: the tightest inter-token latency that a tier was promised."""
    targets = [v.target_s for tier in signals.tiers for v in tier.verdicts if v.metric == "itl"]
    return min(targets, default=None)


def capacity(signals: Signals) -> int | None:
    """How many sequences the smallest executor can hold."""
    known = [executor.shape.max_seqs for executor in signals.executors if executor.shape]
    return min(known, default=None)
