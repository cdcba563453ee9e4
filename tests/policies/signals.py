"""Signals for tests: short ones to write by hand, and any that a daemon might ever send."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from policies.contract import (
    Applied,
    Cause,
    ExecutorSignals,
    GuardNote,
    Limits,
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

LIMITS = Limits(max_batch_size=16, max_batch_tokens=1024, wait_timeout_s=0.005)


def itl(
    value_s: float,
    *,
    state: str,
    target_s: float = 0.15,
    misses: int = 0,
    samples: int = 40,
    cause: Cause | None = None,
) -> Verdict:
    """A verdict on inter-token latency."""
    verdict = Verdict(
        metric="itl",
        target_s=target_s,
        attainment=0.99,
        samples=samples,
        misses=misses,
        state="unknown",
        value_s=value_s,
        cause=cause,
    )
    return replace(verdict, state=state)  # type: ignore[arg-type]  # tests write it as plain text


def seen(
    *verdicts: Verdict,
    queued: int = 0,
    size_bound: float | None = 0.8,
    utilization: Utilization | None = None,
    tokens_per_s: float | None = 200.0,
    ready: bool = True,
) -> Signals:
    """One tier, one executor."""
    executor = ExecutorSignals(
        name="main",
        ready=ready,
        running=16,
        free_seats=0,
        steps=40,
        size_bound=size_bound,
        tokens_per_s=tokens_per_s,
        utilization=utilization,
    )
    tier = TierSignals(
        name="paid",
        priority=1,
        queued=queued,
        queued_tokens=queued * 100,
        oldest_wait_s=None,
        running=16,
        verdicts=verdicts,
    )
    return Signals(interval_s=0.25, age_s=0.01, tiers=(tier,), executors=(executor,))


CONTINUOUS = Shape(
    max_seqs=256,
    max_step_tokens=8192,
    kv_tokens=66_000,
    runs_to_completion=False,
    splits_prefill=True,
)
WHOLE = replace(CONTINUOUS, runs_to_completion=True, splits_prefill=False)
# A step takes 20 ms, and a sequence with 500 tokens of context 0.5 + 0.5 ms.
MODEL = StepEstimate(
    a=0.02,
    b=1e-6,
    c=5e-4,
    c_above=5e-4,
    knee=1000,
    d=1e-4,
    e=0.0,
    sigma_s=0.0,
    samples=1000,
    identifiable=True,
)


def spread(p50: float, samples: int = 40) -> Quantiles:
    """A distribution of which only the median is of interest."""
    return Quantiles(samples=samples, mean=p50, p50=p50, p90=p50, p99=p50)


def served(
    *tiers: TierSignals,
    model: StepEstimate | None = MODEL,
    shape: Shape | None = CONTINUOUS,
    size_bound: float | None = 0.8,
    running: int = 16,
    mean_batch: float = 16.0,
    mean_context: float = 500.0,
    mean_prefill: float = 0.0,
    kv: float | None = None,
    tokens_per_s: float | None = 200.0,
    interval_s: float = 0.25,
    wall_s: float | None = None,
) -> Signals:
    """Tiers on one executor of which everything is known."""
    executor = ExecutorSignals(
        name="main",
        ready=True,
        running=running,
        free_seats=0,
        steps=40,
        mean_batch=mean_batch,
        mean_context=mean_context,
        mean_prefill=mean_prefill,
        size_bound=size_bound,
        tokens_per_s=tokens_per_s,
        kv=kv,
        shape=shape,
    )
    return Signals(
        interval_s=interval_s,
        age_s=0.01,
        tiers=tiers,
        executors=(executor,),
        model=model,
        wall_s=wall_s,
    )


def tier(
    name: str = "paid",
    *verdicts: Verdict,
    running: int = 16,
    itl: Quantiles | None = None,
    e2e: Quantiles | None = None,
    passed: Passed | None = None,
) -> TierSignals:
    """A tier that runs."""
    return TierSignals(
        name=name,
        priority=1,
        queued=0,
        queued_tokens=0,
        oldest_wait_s=None,
        running=running,
        itl=itl,
        e2e=e2e,
        verdicts=verdicts,
        passed=passed or Passed(),
    )


fractions = st.floats(min_value=0, max_value=1)
seconds = st.floats(min_value=0, max_value=1e4)
counts = st.integers(min_value=0, max_value=100_000)
quantiles = st.builds(
    Quantiles,
    samples=st.integers(1, 1000),
    mean=seconds,
    p50=seconds,
    p90=seconds,
    p99=seconds,
)
tier_limits = st.builds(
    TierLimits,
    max_seats=st.none() | st.integers(1, 256),
    wait_timeout_s=st.none() | st.floats(0, 1),
)
limits = st.integers(1, 512).flatmap(
    lambda size: st.builds(
        Limits,
        max_batch_size=st.just(size),
        max_batch_tokens=st.integers(size, 16384),
        wait_timeout_s=st.floats(0, 1),
        tiers=st.dictionaries(st.sampled_from(["paid", "free"]), tier_limits),
    )
)
verdicts = st.builds(
    Verdict,
    metric=st.sampled_from(["ttft", "itl", "e2e"]),
    target_s=st.floats(min_value=1e-3, max_value=1e3),
    attainment=st.floats(min_value=0.5, max_value=0.999),
    samples=counts,
    misses=counts,
    state=st.sampled_from(["breach", "room", "unknown"]),
    value_s=st.none() | seconds,
    cause=st.none() | st.sampled_from(list(Cause)),
)
tiers = st.builds(
    TierSignals,
    name=st.sampled_from(["paid", "free", "offline"]),
    priority=st.integers(0, 10),
    queued=counts,
    queued_tokens=counts,
    oldest_wait_s=st.none() | seconds,
    running=counts,
    arrival_rate=st.none() | seconds,
    ttft=st.none() | quantiles,
    itl=st.none() | quantiles,
    e2e=st.none() | quantiles,
    verdicts=st.lists(verdicts, max_size=3).map(tuple),
    passed=st.builds(
        Passed,
        prompt_tokens=st.none() | st.floats(1, 1e5),
        queue_s=st.none() | seconds,
        hold_s=st.none() | seconds,
        prefill_s=st.none() | seconds,
        new_tokens=st.none() | st.floats(1, 1e5),
        goodput=st.none() | seconds,
    ),
)
shapes = st.builds(
    Shape,
    max_seqs=st.integers(1, 1024),
    max_step_tokens=st.integers(64, 65_536),
    kv_tokens=st.integers(64, 1_000_000),
    runs_to_completion=st.booleans(),
    splits_prefill=st.booleans(),
)
utilizations = st.builds(
    Utilization, value=fractions, source=st.sampled_from(["nvml", "busy", "simulated"])
)
executors = st.builds(
    ExecutorSignals,
    name=st.sampled_from(["a", "b"]),
    ready=st.booleans(),
    running=counts,
    free_seats=counts,
    steps=counts,
    step_time=st.none() | quantiles,
    mean_batch=st.none() | st.floats(1, 512),
    mean_context=st.none() | seconds,
    mean_prefill=st.none() | seconds,
    fill=st.none() | fractions,
    size_bound=st.none() | fractions,
    tokens_bound=st.none() | fractions,
    tokens_per_s=st.none() | seconds,
    utilization=st.none() | utilizations,
    memory=st.none() | fractions,
    kv=st.none() | fractions,
    stalled=counts,
    returned=counts,
    shape=st.none() | shapes,
)
coefficients = st.floats(min_value=0, max_value=1)
estimates = st.builds(
    StepEstimate,
    a=coefficients,
    b=coefficients,
    c=coefficients,
    c_above=coefficients,
    knee=st.integers(1, 1000),
    d=coefficients,
    e=coefficients,
    sigma_s=coefficients,
    samples=counts,
    identifiable=st.booleans(),
)
notes = st.builds(
    GuardNote,
    limit=st.sampled_from(["max_batch_size", "max_batch_tokens", "wait_timeout_s"]),
    code=st.sampled_from(["thin", "cooldown", "envelope"]),
    detail=st.just("as it was"),
)
signals = st.builds(
    Signals,
    interval_s=st.floats(min_value=0.01, max_value=10),
    age_s=st.none() | seconds,
    tiers=st.lists(tiers, max_size=3).map(tuple),
    executors=st.lists(executors, max_size=2).map(tuple),
    model=st.none() | estimates,
    last=st.none()
    | st.builds(
        Applied, proposed=limits, applied=limits, notes=st.lists(notes, max_size=2).map(tuple)
    ),
)
