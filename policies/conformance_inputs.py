"""Made-up signals for the conformance suite: for a seed the same ones on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, get_args

from policies.contract import (
    Applied,
    Cause,
    ExecutorSignals,
    GuardNote,
    LimitName,
    Limits,
    Metric,
    Passed,
    Quantiles,
    Shape,
    Signals,
    StepEstimate,
    TierLimits,
    TierSignals,
    Utilization,
    Verdict,
)

T = TypeVar("T")
_MASK = (1 << 64) - 1
_STATES: tuple[Literal["breach", "room", "unknown"], ...] = ("breach", "room", "unknown")
_SOURCES: tuple[Literal["nvml", "busy", "simulated"], ...] = ("nvml", "busy", "simulated")
_NAMES: tuple[LimitName, ...] = get_args(LimitName)
_METRICS: tuple[Metric, ...] = get_args(Metric)
_TIERS = ("paid", "free", "offline")


def sequence(seed: int, *, ticks: int = 6) -> list[tuple[Signals, Limits]]:
    """What a policy might be asked tick by tick: signals, and the limits in force.

    Figures of all sizes, and each that may be missing is missing now and then. What an executor is
    stays the same; nothing else has to agree with anything.
    """
    dice = Dice(seed)
    shape = _shape(dice)
    return [(_signals(dice, shape), _limits(dice)) for _ in range(ticks)]


class Dice:
    """A random source that is the same everywhere (SplitMix64: Steele et al., OOPSLA 2014)."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def fraction(self) -> float:
        """From 0 to below 1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)

    def whole(self, low: int, high: int) -> int:
        """From `low` to `high`, both among them."""
        return low + int(self.fraction() * (high - low + 1))

    def scaled(self, low: float, high: float) -> float:
        """As often between 1 and 10 as between 10 and 100; now and then exactly 0."""
        if self.chance(0.05):
            return 0.0
        return math.exp(math.log(low) + self.fraction() * (math.log(high) - math.log(low)))

    def count(self, high: int) -> int:
        """From 0 to `high`, small ones as often as large ones."""
        return int(self.scaled(1, high + 1))

    def chance(self, probability: float) -> bool:
        """Whether something of this probability happens."""
        return self.fraction() < probability

    def pick(self, choices: Sequence[T]) -> T:
        """One of these."""
        return choices[self.whole(0, len(choices) - 1)]

    def maybe(self, make: Callable[[], T]) -> T | None:
        """A value, or None one time in five."""
        return None if self.chance(0.2) else make()


def _seconds(dice: Dice) -> float:
    return dice.scaled(1e-4, 1e3)


def _signals(dice: Dice, shape: Shape) -> Signals:
    return Signals(
        interval_s=dice.scaled(0.01, 10),
        age_s=dice.maybe(lambda: _seconds(dice)),
        tiers=tuple(_tier(dice, name, 20 - n) for n, name in enumerate(_TIERS[: dice.whole(0, 3)])),
        executors=tuple(_executor(dice, f"e{n}", shape) for n in range(dice.whole(0, 2))),
        model=dice.maybe(lambda: _model(dice)),
        last=dice.maybe(lambda: _applied(dice)),
        # Within two years from 2025 on: every hour of every day of the week.
        wall_s=dice.maybe(lambda: float(dice.whole(1_735_689_600, 1_798_761_600))),
    )


def _limits(dice: Dice) -> Limits:
    size = dice.whole(1, 256)
    named = [name for name in _TIERS if dice.chance(0.3)]
    return Limits(
        max_batch_size=size,
        max_batch_tokens=size + dice.count(8192),
        wait_timeout_s=dice.scaled(1e-4, 1),
        # A plain mapping, so that writing to it is seen.
        tiers={
            name: TierLimits(
                dice.maybe(lambda: dice.whole(1, 64)), dice.maybe(lambda: dice.scaled(1e-4, 1))
            )
            for name in named
        },
    )


def _quantiles(dice: Dice) -> Quantiles:
    p50 = _seconds(dice)
    p90 = p50 * (1 + dice.fraction())
    return Quantiles(
        samples=dice.whole(1, 1000), mean=p50, p50=p50, p90=p90, p99=p90 * (1 + dice.fraction())
    )


def _verdict(dice: Dice, metric: Metric) -> Verdict:
    samples = dice.count(1000)
    return Verdict(
        metric=metric,
        target_s=max(1e-3, dice.scaled(1e-2, 1e3)),
        attainment=0.5 + dice.fraction() * 0.499,
        samples=samples,
        misses=dice.whole(0, samples),
        state=dice.pick(_STATES),
        value_s=dice.maybe(lambda: _seconds(dice)) if samples else None,
        cause=dice.maybe(lambda: dice.pick(list(Cause))),
    )


def _tier(dice: Dice, name: str, priority: int) -> TierSignals:
    queued = dice.count(10_000)
    return TierSignals(
        name=name,
        priority=priority,
        queued=queued,
        queued_tokens=queued * dice.count(1000),
        oldest_wait_s=dice.maybe(lambda: _seconds(dice)) if queued else None,
        running=dice.count(512),
        arrival_rate=dice.maybe(lambda: dice.scaled(1e-2, 1e3)),
        ttft=dice.maybe(lambda: _quantiles(dice)),
        itl=dice.maybe(lambda: _quantiles(dice)),
        e2e=dice.maybe(lambda: _quantiles(dice)),
        verdicts=tuple(_verdict(dice, metric) for metric in _METRICS if dice.chance(0.6)),
        passed=Passed(
            prompt_tokens=dice.maybe(lambda: max(1.0, dice.scaled(1, 1e5))),
            queue_s=dice.maybe(lambda: _seconds(dice)),
            hold_s=dice.maybe(lambda: dice.scaled(1e-4, 1)),
            prefill_s=dice.maybe(lambda: _seconds(dice)),
            new_tokens=dice.maybe(lambda: max(1.0, dice.scaled(1, 1e5))),
            goodput=dice.maybe(lambda: dice.scaled(1e-2, 1e3)),
        ),
    )


def _shape(dice: Dice) -> Shape:
    whole = dice.chance(0.3)
    return Shape(
        max_seqs=dice.whole(1, 512),
        max_step_tokens=dice.whole(64, 16_384),
        kv_tokens=dice.whole(1_000, 1_000_000),
        runs_to_completion=whole,
        splits_prefill=not whole and dice.chance(0.5),
    )


def _executor(dice: Dice, name: str, shape: Shape) -> ExecutorSignals:
    running = dice.count(shape.max_seqs)
    return ExecutorSignals(
        name=name,
        ready=dice.chance(0.9),
        running=running,
        free_seats=shape.max_seqs - running,
        steps=dice.count(1000),
        step_time=dice.maybe(lambda: _quantiles(dice)),
        mean_batch=dice.maybe(lambda: 1 + dice.scaled(1, 256)),
        mean_context=dice.maybe(lambda: dice.scaled(1, 1e5)),
        mean_prefill=dice.maybe(lambda: dice.scaled(1, 1e4)),
        fill=dice.maybe(dice.fraction),
        size_bound=dice.maybe(dice.fraction),
        tokens_bound=dice.maybe(dice.fraction),
        tokens_per_s=dice.maybe(lambda: dice.scaled(1, 1e5)),
        utilization=dice.maybe(lambda: Utilization(dice.fraction(), dice.pick(_SOURCES))),
        memory=dice.maybe(dice.fraction),
        kv=dice.maybe(dice.fraction),
        stalled=dice.count(3),
        returned=dice.count(3),
        shape=dice.maybe(lambda: shape),
    )


def _model(dice: Dice) -> StepEstimate:
    return StepEstimate(
        a=dice.scaled(1e-4, 1),
        b=dice.scaled(1e-8, 1e-3),
        c=dice.scaled(1e-6, 1e-1),
        c_above=dice.scaled(1e-6, 1e-1),
        knee=dice.whole(1, 200),
        d=dice.scaled(1e-7, 1e-2),
        e=dice.scaled(1e-12, 1e-6),
        sigma_s=dice.scaled(1e-5, 1e-1),
        samples=dice.whole(1, 100_000),
        identifiable=dice.chance(0.7),
    )


def _applied(dice: Dice) -> Applied:
    note = GuardNote(dice.pick(_NAMES), dice.pick(["thin", "cooldown", "envelope"]), "as it was")
    return Applied(_limits(dice), _limits(dice), (note,) * dice.whole(0, 2))
