"""Additive growth and multiplicative retreat of the batch size, on inter-token latency alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from policies.contract import Cause, Limits, Proposal, Signals, Verdict
from policies.parameters import parameter
from policies.reading import (
    binding_fraction,
    itl_in_words,
    not_binding,
    size_bound,
    verdicts_on_itl,
    with_size,
)


class Aimd:
    """B <- 0.9 B at a breach of inter-token latency, B <- B + max(1, 5 %) while there is room.

    Regime: the step model is unknown or not to be trusted; requests finish often enough for their
    mean inter-token latency to be known within seconds. A breach counts when decode or prefill
    caused it, and retreats by 0.7 when the mean is beyond 1.5 times the target. Growth needs room
    at the tightest target and a limit that binds. It reads nothing of time to first token: that
    grows with the queue, a smaller batch makes the queue longer, and B would collapse.
    Source: Crankshaw et al., "Clipper: a low-latency online prediction serving system", NSDI 2017
    (additive increase, 10 % back-off); Netflix concurrency-limits, `AIMDLimit`.
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """Fractions are of the limit in force or of the target."""

        backoff: float = parameter(0.9, "B is multiplied by this at a breach.", low=0.1, high=0.99)
        severe_backoff: float = parameter(
            0.7, "B is multiplied by this at a severe breach.", low=0.1, high=0.99
        )
        severe: float = parameter(
            1.5, "A breach is severe when the mean is beyond this multiple of the target.", low=1
        )
        growth: float = parameter(
            0.05, "B grows by this fraction, and by 1 at least.", low=0, high=1
        )
        binding: float = binding_fraction()

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._size = math.nan
        self._proposed: int | None = None

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """Shrink at a breach, grow where there is room and B binds, else stay."""
        before = limits.max_batch_size
        # What the guard made of the last proposal is where this one starts, fractions forgotten.
        if self._proposed != before:
            self._size = float(before)
        self._size, why = self._next(signals)
        after = max(1, round(self._size))
        self._proposed = after
        return Proposal(with_size(limits, after), why)

    def _next(self, signals: Signals) -> tuple[float, str]:
        given = list(verdicts_on_itl(signals))
        if not given:
            return self._size, "no inter-token latency to hold against a target"
        breaches = [(tier, v) for tier, v in given if self._shrinks(v)]
        if breaches:
            tier, verdict = max(breaches, key=lambda pair: self._excess(pair[1]))
            severe = self._excess(verdict) > self._parameters.severe
            factor = self._parameters.severe_backoff if severe else self._parameters.backoff
            cause = f"cause {verdict.cause}" if verdict.cause else "cause unknown"
            return max(1.0, self._size * factor), f"{itl_in_words(tier, verdict)}, {cause}"
        tier, tightest = min(given, key=lambda pair: pair[1].target_s)
        if tightest.state != "room":
            cause = f", cause {tightest.cause}" if tightest.cause else ""
            return self._size, f"{itl_in_words(tier, tightest)}{cause}: {tightest.state}"
        if idle := not_binding(signals, self._parameters.binding):
            return self._size, f"room, but {idle}"
        grown = self._size + max(1.0, self._parameters.growth * self._size)
        reached = f"B reached in {size_bound(signals):.0%} of the steps"
        return grown, f"{itl_in_words(tier, tightest)}, {reached}"

    @staticmethod
    def _shrinks(verdict: Verdict) -> bool:
        return verdict.state == "breach" and verdict.cause in (Cause.DECODE, Cause.PREFILL)

    @staticmethod
    def _excess(verdict: Verdict) -> float:
        return 0.0 if verdict.value_s is None else verdict.value_s / verdict.target_s
