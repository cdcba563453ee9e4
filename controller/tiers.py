"""The tier: what a class of customer is promised, what it may take, and what it must leave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from policies.contract import Limits, Metric

Order = Literal["edf", "fcfs", "shortest"]
Late = Literal["last", "drop"]


@dataclass(frozen=True, slots=True)
class Targets:
    """What a tier is promised, in seconds; None is no promise.

    `attainment` is the fraction of requests that must meet every target. `itl_s` is held against
    the mean inter-token latency of each request.
    """

    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    attainment: float = 0.99

    def named(self) -> dict[Metric, float]:
        """The targets that exist, by metric."""
        pairs: list[tuple[Metric, float | None]] = [
            ("ttft", self.ttft_s),
            ("itl", self.itl_s),
            ("e2e", self.e2e_s),
        ]
        return {name: value for name, value in pairs if value is not None}

    def met(self, *, ttft_s: float, itl_s: float, e2e_s: float) -> bool:
        """Whether a request that took so long met all of them."""
        return (
            (self.ttft_s is None or ttft_s <= self.ttft_s)
            and (self.itl_s is None or itl_s <= self.itl_s)
            and (self.e2e_s is None or e2e_s <= self.e2e_s)
        )

    @property
    def start_s(self) -> float | None:
        """How long a request may wait before it has missed a target already."""
        bounds = [value for value in (self.ttft_s, self.e2e_s) if value is not None]
        return min(bounds, default=None)


@dataclass(frozen=True, slots=True)
class Tier:
    """A class of customer. Higher `priority` goes first.

    `min_share` of all tokens is guaranteed while the tier has work waiting. A tier that waited
    `max_starvation_s` without progress gets one seat. The queue is bounded by requests, tokens
    and bytes. `max_seats` and `wait_timeout_s` None leave the common limits in force.
    Where executors cannot resume what they let go, `restart_unstreamed` gives higher tiers the
    seats of requests that have sent nothing yet.
    `order` is who goes first within the tier: `edf` whose target is due first, `fcfs` who came
    first, `shortest` who wants least, older ones being thought shorter. Who can no longer meet the
    targets goes `last`, or is turned away where `late` is `drop`. `sheddable` traffic is turned
    away by lot while a higher tier misses its targets.
    A request expires when it has not begun `start_within_s` after its arrival, and is ended when it
    is not done within `finish_within_s`; None is never.
    """

    name: str
    priority: int
    targets: Targets = field(default_factory=Targets)
    min_share: float = 0.0
    max_starvation_s: float = 30.0
    order: Order = "edf"
    late: Late = "last"
    sheddable: bool = False
    restart_unstreamed: bool = False
    max_queue_requests: int = 1000
    max_queue_tokens: int = 1_000_000
    max_queue_bytes: int = 64 * 1024 * 1024
    max_seats: int | None = None
    wait_timeout_s: float | None = None
    start_within_s: float | None = None
    finish_within_s: float | None = None


def seat_cap(tier: Tier, limits: Limits) -> int | None:
    """A tier's seats on one executor: what the controller set, else what is configured."""
    override = limits.tiers.get(tier.name)
    return tier.max_seats if override is None or override.max_seats is None else override.max_seats


def wait_of(tier: Tier, limits: Limits) -> float:
    """How long a request of this tier may be held, in seconds: the tier's own bound, else W."""
    override = limits.tiers.get(tier.name)
    if override is not None and override.wait_timeout_s is not None:
        return override.wait_timeout_s
    return limits.wait_timeout_s if tier.wait_timeout_s is None else tier.wait_timeout_s
