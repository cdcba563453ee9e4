"""Batch size by trying: a step, a look at goodput, and on or back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from policies.contract import Limits, Proposal, Signals
from policies.parameters import parameter
from policies.reading import binding_fraction, not_binding, throughput, with_size

Kind = Literal["goodput", "tokens"]


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a batch size, per second: requests that met every target, or tokens."""

    kind: Kind
    value: float


class HillClimb:
    """B moves a step; goodput gained: on in that direction, else back with half the step.

    The step doubles from the second gain in a row on. Before each look the window of what requests
    came to holds requests under the new B only, so a move takes as long as that window.

    Regime: nothing is known of the executor and no target can be predicted, but demand exceeds what
    is served for minutes on end. Slow: one move in 30 s. Goodput also moves with the traffic, and
    it takes that for its own doing, so it wanders around the best size and never rests. While B
    does not bind it is frozen, and forgets what it saw. Where no tier finished a request, tokens
    per second stand in. Batches that run to completion are no different to it.
    Source: TensorFlow Serving's adaptive shared batch scheduler (one direction, a step multiplier
    that doubles and halves).
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """Steps are fractions of B, and 1 sequence at least."""

        window_s: float = parameter(
            30.0, "A size is judged after this long: `control.slow_window`.", low=1, high=600
        )
        step: float = parameter(0.25, "The first step.", low=0.01, high=1, unit="fraction of B")
        largest_step: float = parameter(
            0.5, "No step is larger.", low=0.01, high=1, unit="fraction of B"
        )
        smallest_step: float = parameter(
            0.02, "No step is smaller.", low=0.001, high=1, unit="fraction of B"
        )
        gain: float = parameter(
            0.01, "Less than this is none.", low=0, high=0.5, unit="fraction of what was seen"
        )
        binding: float = binding_fraction(
            "B moves when it was reached in this fraction of the steps."
        )

        def __post_init__(self) -> None:
            if not self.smallest_step <= self.step <= self.largest_step:
                raise ValueError(
                    f"step {self.step:g} should be between smallest_step {self.smallest_step:g} "
                    f"and largest_step {self.largest_step:g}"
                )

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._size: int | None = None
        self._waited_s = 0.0
        self._before: Seen | None = None
        self._direction = 1
        self._step = parameters.step
        self._gains = 0

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """Wait until the window is full, then move on or turn."""
        size = limits.max_batch_size
        if idle := not_binding(signals, self._parameters.binding):
            # What is served now is what comes, whatever B is.
            self._size, self._before, self._gains = None, None, 0
            return Proposal(limits, f"frozen: {idle}")
        if size != self._size:
            self._size, self._waited_s = size, 0.0
        self._waited_s += signals.interval_s
        if self._waited_s < self._parameters.window_s:
            waited = f"{self._waited_s:.0f} of {self._parameters.window_s:.0f} s"
            return Proposal(limits, f"looks at B {size} for {waited}")
        seen = _seen(signals)
        if seen is None:
            return Proposal(limits, "nothing was finished and no throughput is known")
        why = self._judge(seen)
        self._size = self._moved(size)
        self._waited_s, self._before = 0.0, seen
        return Proposal(with_size(limits, self._size), why)

    def _judge(self, seen: Seen) -> str:
        """Set step and direction by what the last move brought."""
        wanted, before = self._parameters, self._before
        unit = "requests/s in target" if seen.kind == "goodput" else "tokens/s"
        if before is None or before.kind != seen.kind:
            return f"{seen.value:.3g} {unit}, tries a step of {self._step:.0%}"
        told = f"{before.value:.3g} -> {seen.value:.3g} {unit}"
        if seen.value > before.value * (1 + wanted.gain):
            self._gains += 1
            if self._gains >= 2:
                self._step = min(wanted.largest_step, 2 * self._step)
            return f"{told}: on by {self._step:.0%}"
        self._gains = 0
        self._step = max(wanted.smallest_step, self._step / 2)
        self._direction = -self._direction
        return f"{told}: no gain, back by {self._step:.0%}"

    def _moved(self, size: int) -> int:
        if size == 1:
            self._direction = 1
        return max(1, size + self._direction * max(1, round(self._step * size)))


def _seen(signals: Signals) -> Seen | None:
    known = [t.passed.goodput for t in signals.tiers if t.passed.goodput is not None]
    if known:
        return Seen("goodput", sum(known))
    tokens = throughput(signals)
    return None if tokens is None else Seen("tokens", tokens)
