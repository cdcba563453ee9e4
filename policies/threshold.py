"""Batch size and hold by the operator's rule of thumb: queue length and device utilisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from policies.contract import Limits, Proposal, Signals, Utilization, Verdict
from policies.parameters import parameter
from policies.reading import (
    binding_fraction,
    itl_in_words,
    not_binding,
    queued_per_seat,
    throughput,
    utilization,
    verdicts_on_itl,
    with_size,
)


class Threshold:
    """B and W up while many wait and the device has time to spare, down when latency is near.

    Up: enough wait per seat. Down: few wait and inter-token latency is near its target.

    Regime: batches whose cost is known only roughly, a device that reports its utilisation (the
    executor's busy fraction stands in where there is none, and the reason says so). A device
    counts as busy when it is used to 95 % *and* the last growth brought no throughput: one
    resident kernel alone reads as 100 %. A condition has to hold for several ticks in a row. A
    size that had to be left for its latency is tried again only when latency, at most
    proportional to size, would stay clear of its target: at constant load, no back and forth.
    Source: the operators' rule of thumb; the consecutive-tick counters are those of Ray Serve's
    autoscaler.
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """Ticks are those of the control loop."""

        queue_high: float = parameter(
            1.0, "Waiting requests per seat from which B and W grow.", low=0
        )
        queue_low: float = parameter(
            0.1, "Waiting requests per seat up to which B and W may shrink.", low=0
        )
        busy: float = parameter(0.95, "Utilisation from which a device is busy.", low=0, high=1)
        flat_gain: float = parameter(
            0.02, "Throughput that gained less since the last growth is flat.", low=0, high=1
        )
        near_target: float = parameter(
            0.9, "Inter-token latency is near its target from this fraction on.", low=0.1, high=1
        )
        up_ticks: int = parameter(4, "Ticks in a row before B and W grow.", low=1)
        down_ticks: int = parameter(8, "Ticks in a row before B and W shrink.", low=1)
        step: float = parameter(
            0.1, "B and W move by this fraction, B by 1 at least.", low=0, high=0.5
        )
        wait_step_s: float = parameter(
            0.001, "W moves by this many seconds at least.", low=0, high=1
        )
        binding: float = binding_fraction()

        def __post_init__(self) -> None:
            if self.queue_low >= self.queue_high:
                raise ValueError(
                    f"queue_low {self.queue_low:g} should be below queue_high {self.queue_high:g}"
                )

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._up = 0
        self._down = 0
        self._before_growth: float | None = None
        self._left: int | None = None

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """Count ticks for up and for down, and move when enough came in a row."""
        queued = queued_per_seat(signals, limits)
        if queued is None:
            self._up = self._down = 0
            return Proposal(limits, "no executor is ready")
        if queued >= self._parameters.queue_high:
            return self._long_queue(signals, limits, queued)
        self._up = 0
        if queued <= self._parameters.queue_low:
            self._before_growth = None
            return self._short_queue(signals, limits, queued)
        self._down = 0
        return Proposal(limits, f"{queued:.2f} wait per seat, between the thresholds")

    def _long_queue(self, signals: Signals, limits: Limits, queued: float) -> Proposal:
        self._down = 0
        waiting = f"{queued:.2f} wait per seat"
        size = self._grown(limits.max_batch_size)
        obstacle = self._obstacle(signals, limits.max_batch_size, size)
        if obstacle is not None:
            self._up = 0
            return Proposal(limits, f"{waiting}, but {obstacle}")
        self._up += 1
        why = f"{waiting}, {_in_words(utilization(signals))}"
        if self._up < self._parameters.up_ticks:
            return Proposal(limits, f"{why}, for {self._up} of {self._parameters.up_ticks} ticks")
        self._up = 0
        self._left = None if self._left is not None and size >= self._left else self._left
        self._before_growth = throughput(signals)
        wait = limits.wait_timeout_s + self._wait_step(limits)
        return Proposal(with_size(limits, size, wait_timeout_s=wait), why)

    def _obstacle(self, signals: Signals, size: int, wanted_size: int) -> str | None:
        """Why B must not grow to `wanted_size` although many wait; None when it may."""
        wanted = self._parameters
        used = utilization(signals)
        if used is None:
            return "nothing says how busy the device is"
        if idle := not_binding(signals, wanted.binding):
            return idle
        again = self._left is not None and wanted_size >= self._left
        factor = wanted_size / size if again else 1.0
        for tier, verdict in verdicts_on_itl(signals):
            if verdict.state == "breach" or self._near(verdict, factor):
                return f"{itl_in_words(tier, verdict)}: no room for more"
        now, then = throughput(signals), self._before_growth
        if used.value >= wanted.busy and now is not None and then is not None:
            gain = now / then - 1 if then > 0 else math.inf
            if gain < wanted.flat_gain:
                return f"{_in_words(used)} and throughput is flat ({gain:+.1%} since it grew)"
        return None

    def _short_queue(self, signals: Signals, limits: Limits, queued: float) -> Proposal:
        near = [pair for pair in verdicts_on_itl(signals) if self._near(pair[1], 1.0)]
        if not near:
            self._down = 0
            return Proposal(limits, f"{queued:.2f} wait per seat and latency is not near target")
        self._down += 1
        why = f"{queued:.2f} wait per seat, {itl_in_words(*near[0])}"
        if self._down < self._parameters.down_ticks:
            told = f"{why}, for {self._down} of {self._parameters.down_ticks} ticks"
            return Proposal(limits, told)
        self._down = 0
        before = limits.max_batch_size
        self._left = before
        size = max(1, min(before - 1, round(before * (1 - self._parameters.step))))
        wait = max(0.0, limits.wait_timeout_s - self._wait_step(limits))
        return Proposal(with_size(limits, size, wait_timeout_s=wait), why)

    def _near(self, verdict: Verdict, factor: float) -> bool:
        """Whether latency, were it `factor` times as long, would be near its target."""
        value = verdict.value_s
        return value is not None and value * factor >= (
            self._parameters.near_target * verdict.target_s
        )

    def _grown(self, size: int) -> int:
        return max(size + 1, round(size * (1 + self._parameters.step)))

    def _wait_step(self, limits: Limits) -> float:
        return max(self._parameters.wait_step_s, limits.wait_timeout_s * self._parameters.step)


def _in_words(used: Utilization | None) -> str:
    if used is None:
        return "utilisation unknown"
    if used.source == "busy":
        return f"busy {used.value:.0%} of the time (in place of utilisation)"
    return f"utilisation {used.value:.0%}"
