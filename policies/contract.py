"""What a policy sees, what it answers, and nothing else: no clock, no input, no output.

A policy is asked once a tick. It gets what was seen (`Signals`) and what is in force (`Limits`)
and proposes limits with a reason. It enforces nothing: the guard decides what becomes of it.
Times are seconds, rates are per second, fractions are 0..1. A figure that is not known is None,
never 0 and never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, Protocol

LimitName = Literal["max_batch_size", "max_batch_tokens", "wait_timeout_s"]
Metric = Literal["ttft", "itl", "e2e"]


class Cause(StrEnum):
    """Where the time of a breach went; it decides which limit may move."""

    QUEUE = "queue"  # waited although decode had time to spare: B up
    DECODE = "decode"  # decode steps too long: B down
    PREFILL = "prefill"  # other requests' prefills in the step: T down
    HOLD = "hold"  # deliberately held for company: W down
    MEMORY = "memory"  # KV ran out: admit fewer
    OVERLOAD = "overload"  # queue and decode both over target: shed, B stays


@dataclass(frozen=True, slots=True)
class TierLimits:
    """What the controller sets for one tier; None leaves the common limit in force."""

    max_seats: int | None = None
    wait_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the controller sets at runtime.

    `max_batch_size` sequences at once on one executor, `max_batch_tokens` tokens in one step
    (never below `max_batch_size`), `wait_timeout_s` how long an admissible request may be held
    for company.
    """

    max_batch_size: int
    max_batch_tokens: int
    wait_timeout_s: float
    tiers: Mapping[str, TierLimits] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution as people read it, with the number of samples behind it (at least 1)."""

    samples: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the counted misses of one tier's target say, at 90 % confidence.

    `state`: `breach` when the lower bound of the miss fraction is above what the target allows,
    `room` when the upper bound is below it, else `unknown`. `value_s` is the mean of the metric in
    the window, `target_s` its target.
    """

    metric: Metric
    target_s: float
    attainment: float
    samples: int
    misses: int
    state: Literal["breach", "room", "unknown"]
    value_s: float | None = None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """Means over the requests of one tier in the slow window; None where there were none.

    `prompt_tokens`, `queue_s` and `hold_s` (held for company on purpose) of those that were
    dispatched for the first time, `prefill_s` from there to the first token of those that began,
    `new_tokens` of those that finished. `goodput` counts requests per second that finished with
    every target met.
    """

    prompt_tokens: float | None = None
    queue_s: float | None = None
    hold_s: float | None = None
    prefill_s: float | None = None
    new_tokens: float | None = None
    goodput: float | None = None


@dataclass(frozen=True, slots=True)
class TierSignals:
    """One tier in the last window. `priority`: higher goes first.

    `verdicts` has one for each target of the tier, with samples or without.
    """

    name: str
    priority: int
    queued: int
    queued_tokens: int
    oldest_wait_s: float | None
    running: int
    arrival_rate: float | None = None
    ttft: Quantiles | None = None
    itl: Quantiles | None = None
    e2e: Quantiles | None = None
    verdicts: tuple[Verdict, ...] = ()
    passed: Passed = field(default_factory=Passed)


@dataclass(frozen=True, slots=True)
class Utilization:
    """How busy the device is, 0..1, and who says so.

    `nvml` counts time with any kernel resident; `busy` is step time over wall time and stands in
    where there is no such counter; `simulated` is a simulated device's own figure.
    """

    value: float
    source: Literal["nvml", "busy", "simulated"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What an executor is: seats, tokens in one step, tokens of KV memory for all sequences, and
    whether it runs a batch to its end and splits prompts over steps."""

    max_seqs: int
    max_step_tokens: int
    kv_tokens: int
    runs_to_completion: bool
    splits_prefill: bool


@dataclass(frozen=True, slots=True)
class ExecutorSignals:
    """One executor in the last (fast) window. `fill` is rows over limit, averaged over steps.

    `shape` is None until it was ready once.

    `size_bound` is the fraction of steps (of batches, where they run to their end) in which
    `max_batch_size` was reached, `tokens_bound` that of the steps with prompts in which
    `max_batch_tokens` was. `stalled` sequences stood still for want of KV. `returned` requests were
    given back in the window (errors, memory).
    """

    name: str
    ready: bool
    running: int
    free_seats: int
    steps: int = 0
    step_time: Quantiles | None = None
    mean_batch: float | None = None
    mean_context: float | None = None
    mean_prefill: float | None = None
    fill: float | None = None
    size_bound: float | None = None
    tokens_bound: float | None = None
    tokens_per_s: float | None = None
    utilization: Utilization | None = None
    memory: float | None = None
    kv: float | None = None
    stalled: int = 0
    returned: int = 0
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """The step model, frozen: seconds of a step of n sequences.

    `time = a + b*context_tokens + c(n) + d*prefill_tokens + e*prefill_squares`, c(n) in two
    segments with a knee. `sigma_s` is the spread of its residuals; `identifiable` says whether
    sizes varied enough to tell the coefficients apart.
    """

    a: float
    b: float
    c: float
    c_above: float
    knee: int
    d: float
    e: float
    sigma_s: float
    samples: int
    identifiable: bool

    def predict(
        self, sequences: float, context_tokens: float, *, prefill: float = 0.0, squares: float = 0.0
    ) -> float:
        """Seconds of one step with these contents."""
        above = max(0.0, sequences - self.knee)
        rows = self.c * (sequences - above) + self.c_above * above
        return self.a + self.b * context_tokens + rows + self.d * prefill + self.e * squares


@dataclass(frozen=True, slots=True)
class GuardNote:
    """What the guard did to one limit of a proposal, and why. `code` is a `guard.Code` value."""

    limit: LimitName
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Applied:
    """The last decision as a policy may see it: what was proposed, what became of it."""

    proposed: Limits
    applied: Limits
    notes: tuple[GuardNote, ...]


@dataclass(frozen=True, slots=True)
class Signals:
    """Everything that was seen in the last window, once a tick.

    `interval_s` is the time since the previous tick. `age_s` is the age of the newest executor
    report (None: there never was one). `tiers` come highest priority first. `wall_s` is the time of
    day, as Unix seconds: for rules that go by the calendar, never for measuring.
    """

    interval_s: float
    age_s: float | None
    tiers: tuple[TierSignals, ...] = ()
    executors: tuple[ExecutorSignals, ...] = ()
    model: StepEstimate | None = None
    last: Applied | None = None
    wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """The limits that a policy wants, and why, in one sentence with the figures."""

    limits: Limits
    reason: str


class Policy(Protocol):
    """A rule. Private state is allowed; then the same sequence of signals gives the same answers.

    The class attribute `Parameters` is a frozen dataclass; an instance is built as
    `Class(Class.Parameters(**yaml))`.
    """

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """Propose limits. Must not mutate its arguments. May raise: that costs one tick."""
        ...
