"""The instruments of one tier, executor or group, with its label filled in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import Gauge

from metrics.tally import Count, Tally

Source = Literal["nvml", "busy", "simulated"]


@dataclass(frozen=True, slots=True)
class TierInstruments:
    """What is counted for one tier, its label filled in. Times are seconds from arrival."""

    offered: Count
    prompt_tokens: Count
    generated_tokens: Count
    preemptions: Count
    resumes: Count
    queue_requests: Gauge
    queue_tokens: Gauge
    queue_oldest_s: Gauge
    queue_late: Gauge
    owed_tokens: Gauge
    shed_ratio: Gauge
    queue_wait_s: Tally
    hold_s: Tally
    ttft_s: Tally
    itl_s: Tally
    e2e_s: Tally


@dataclass(frozen=True, slots=True)
class ExecutorInstruments:
    """What is counted for one executor, its label filled in.

    What begins with `dispatch` is observed once for each batch that goes.
    """

    dispatch_size: Tally
    dispatch_depth: Tally
    dispatch_oldest_s: Tally
    dispatch_hold_s: Tally
    dispatch_padding: Tally
    step_batch_size: Tally
    step_duration_s: Tally
    step_fill: Tally
    kv_usage: Gauge
    kv_tokens: Gauge
    ready: Gauge
    restarts: Count
    running: Mapping[str, Gauge]
    utilization: Mapping[Source, Gauge]

    def show_utilization(self, value: float | None, source: Source | None) -> None:
        """Show utilisation (0..1) under its source, and nothing under the others."""
        for name, gauge in self.utilization.items():
            show(gauge, value if name == source else None)


@dataclass(frozen=True, slots=True)
class GroupInstruments:
    """The limits of one group of executors, its label filled in. Envelopes are [low, high].

    What begins with `judged` is what the last decision came to; `tiers` has what is in force for
    each tier.
    """

    batch_size: Gauge
    batch_tokens: Gauge
    wait_s: Gauge
    envelope_batch_size: tuple[Gauge, Gauge]
    envelope_batch_tokens: tuple[Gauge, Gauge]
    envelope_wait_s: tuple[Gauge, Gauge]
    epoch: Gauge
    judged_batch_size: Gauge
    judged_batch_tokens: Gauge
    judged_wait_s: Gauge
    observing: Gauge
    tiers: Mapping[str, TierLimitInstruments]


@dataclass(frozen=True, slots=True)
class TierLimitInstruments:
    """The limits of one tier in one group, its labels filled in."""

    seats: Gauge
    wait_s: Gauge


@dataclass(frozen=True, slots=True)
class ShadowInstruments:
    """What one shadow in one group says, its labels filled in."""

    batch_size: Gauge
    batch_tokens: Gauge
    wait_s: Gauge
    answers: Count
    differences: Count
    errors: Count


@dataclass(frozen=True, slots=True)
class UpstreamInstruments:
    """What one engine behind HTTP says of itself, its label filled in."""

    age_s: Gauge
    running: Gauge
    waiting: Gauge
    foreign: Gauge


def show(gauge: Gauge, value: float | None) -> None:
    """Set a gauge; what is not known is NaN, never 0."""
    gauge.set(math.nan if value is None else value)
