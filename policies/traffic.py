"""What a policy remembers of the traffic: who comes, how long requests are, what steps hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from policies.contract import Signals, TierSignals
from policies.costs import load


@dataclass(slots=True)
class Smooth:
    """An exponential mean over about `memory_s` seconds; None before it has seen anything."""

    memory_s: float
    value: float | None = None

    def follow(self, seen: float | None, passed_s: float) -> None:
        """Take in what was seen for the last `passed_s` seconds; None says nothing."""
        if seen is None:
            return
        keep = math.exp(-passed_s / self.memory_s)
        self.value = seen if self.value is None else keep * self.value + (1 - keep) * seen


@dataclass(slots=True)
class Traffic:
    """Means over the executors of a group and the tiers that are there.

    `rows` in a step, their `context` and the `prompts` that each brings to a step, both in tokens,
    follow within `steps_s` seconds; `prompt` and
    `new` tokens of a request, by arrivals, and arrivals per second of each tier, within
    `requests_s`.
    A tier is there until nobody of it was seen for `absent_s`: bursts have long pauses.
    """

    steps_s: float
    requests_s: float
    absent_s: float
    tiers: list[TierSignals] = field(default_factory=list, init=False)
    rows: Smooth = field(init=False)
    context: Smooth = field(init=False)
    prompts: Smooth = field(init=False)
    prompt: Smooth = field(init=False)
    new: Smooth = field(init=False)
    _rates: dict[str, Smooth] = field(default_factory=dict, init=False)
    _absent: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.rows, self.context = Smooth(self.steps_s), Smooth(self.steps_s)
        self.prompts = Smooth(self.steps_s)
        self.prompt, self.new = Smooth(self.requests_s), Smooth(self.requests_s)

    def see(self, signals: Signals) -> None:
        """Take in a tick."""
        passed_s = signals.interval_s
        self.tiers = [tier for tier in signals.tiers if self._is_there(tier, passed_s)]
        for tier in self.tiers:
            rate = self._rates.setdefault(tier.name, Smooth(self.requests_s))
            rate.follow(tier.arrival_rate, passed_s)
        self.prompt.follow(self._mean([t.passed.prompt_tokens for t in self.tiers]), passed_s)
        self.new.follow(self._mean([t.passed.new_tokens for t in self.tiers]), passed_s)
        if (steps := load(signals)) is not None:
            self.rows.follow(steps.sequences, passed_s)
            self.context.follow(steps.context, passed_s)
            self.prompts.follow(steps.prefill / steps.sequences, passed_s)

    def rate(self, tier: str) -> float:
        """Requests per second of a tier."""
        known = self._rates.get(tier)
        return 0.0 if known is None or known.value is None else known.value

    def _is_there(self, tier: TierSignals, passed_s: float) -> bool:
        if tier.running or tier.queued or tier.arrival_rate:
            self._absent[tier.name] = 0.0
        elif tier.name in self._absent:
            self._absent[tier.name] += passed_s
        return self._absent.get(tier.name, math.inf) <= self.absent_s

    def _mean(self, values: list[float | None]) -> float | None:
        """Over the tiers, by their arrivals; None where no tier knows."""
        pairs = [
            (tier.arrival_rate or 0.0, value)
            for tier, value in zip(self.tiers, values, strict=True)
            if value is not None
        ]
        total = sum(weight for weight, _ in pairs)
        return sum(weight * value for weight, value in pairs) / total if total > 0 else None
