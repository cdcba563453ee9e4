"""What may be written about the limits, their envelope, and the loop that sets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, Strict

from controller.config_types import Count, Fraction, Section
from controller.units import Duration


class LimitsConfig(Section):
    """The limits in force at start, and for ever with policy `static`."""

    max_batch_size: Count = 16
    """Sequences at once on one executor."""
    max_batch_tokens: Count = 1024
    """Tokens in one step. Never below `max_batch_size`."""
    wait_timeout: Duration = 0.005
    """How long an admissible request may be held for company."""


T = TypeVar("T")


def _ascending(pair: tuple[T, T]) -> tuple[T, T]:
    low, high = pair
    if low > high:  # type: ignore[operator]  # only ever numbers; a bound on T would say less
        raise ValueError(f"should be [low, high], and {low} is above {high}")
    return pair


Range = Annotated[tuple[T, T], AfterValidator(_ascending)]


class EnvelopeConfig(Section):
    """The range that no policy and no operator leaves: [low, high] of each limit."""

    max_batch_size: Range[Count] = (1, 64)
    """Range of `max_batch_size`; high is at most the executor's `max_seqs`."""
    max_batch_tokens: Range[Count] = (64, 2048)
    """Range of `max_batch_tokens`; high is at most the executor's `max_step_tokens`."""
    wait_timeout: Range[Duration] = (0.0, 0.05)
    """Range of `wait_timeout`."""


class PolicyConfig(Section):
    """Which rule proposes limits."""

    type: Annotated[str, Field(min_length=1)] = "slo"
    """A name that `headway policies list` shows, or `module:Class`."""
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    """The policy's own parameters; `headway policies show TYPE` prints them."""


class OwnPolicyConfig(Section):
    """Which rule proposes limits for something of its own: a tier, or only the record."""

    type: Annotated[str, Field(min_length=1)]
    """A name that `headway policies list` shows, or `module:Class`."""
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    """The policy's own parameters; `headway policies show TYPE` prints them."""


class GuardConfig(Section):
    """What every proposal passes before it is applied. All but the clamps hold back growth only."""

    stale_ticks: Count = 3
    """Nothing grows on figures older than this many ticks."""
    binding: Fraction = 0.5
    """A limit grows only when it was reached in at least this fraction of the steps."""
    cooldown: Duration = 1.0
    """Shortest time between a move and the next growth."""
    cooldown_steps: Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)] = 2.0
    """The same in predicted steps; the longer of the two holds."""
    slew: Fraction = 0.25
    """Largest growth in one tick, as a fraction (never less than one unit). `max_batch_size` may
    double where the step model is sure that targets are kept."""
    gpu_busy: Fraction = 0.95
    """Device utilisation from which growth needs a gain in throughput."""
    flat_gain: Fraction = 0.02
    """Throughput that rose by less than this fraction since the last growth counts as flat."""
    kv_high: Fraction = 0.9
    """Fraction of KV memory held by requests from which nothing grows."""
    oom_keep: Fraction = 0.8
    """After running out of memory, this fraction of the tokens that failed is the ceiling."""
    oom_probe_after: Duration = 600.0
    """For this long the ceiling stays; then it is probed again, by small steps."""
    oom_probe_step: Fraction = 0.05
    """By this fraction of itself the ceiling then rises every minute."""
    reversals: Count = 3
    """More changes of direction than this in the last `reversal_moves` moves halve the gain."""
    reversal_moves: Count = 6
    """How many applied moves the count of reversals looks at."""
    least_batch_size: Count = 1
    """Smallest move of `max_batch_size`."""
    least_batch_tokens: Count = 64
    """Smallest move of `max_batch_tokens`."""
    least_wait: Duration = 0.001
    """Smallest move of `wait_timeout`."""


class ControlConfig(Section):
    """The control loop: what it looks at, how often, and who decides."""

    interval: Duration = 0.25
    """Time between two ticks."""
    policy: PolicyConfig = PolicyConfig()
    """The rule that proposes limits."""
    mode: Literal["apply", "observe"] = "apply"
    """`observe`: the policy is asked and its answers are recorded, and nothing of it is applied."""
    decide_timeout: Annotated[Duration, Field(gt=0)] = 1.0
    """A policy that is not one of Headway's own and does not answer for this long is replaced."""
    shadows: tuple[OwnPolicyConfig, ...] = ()
    """List of `{type, parameters}`: policies that are asked the same at every tick, and only
    recorded."""
    hold: Literal["join_gain", "fixed"] = "join_gain"
    """When an idle executor waits for company, at most `wait_timeout`: `join_gain` as long as those
    who may be expected save more than the wait costs, `fixed` always, until the batch is full."""
    fallback: Annotated[str, Field(min_length=1)] = "static"
    """Policy that takes over from one that raised three times in a row or does not answer, where
    none before it was good."""
    fast_window: Duration = 3.0
    """What steps say: inter-token latency, step times, fill."""
    slow_window: Duration = 30.0
    """What requests say: time to first token and to the end, per tier."""
    min_samples: Count = 20
    """A window with fewer samples reaches further back."""
    max_window: Annotated[Duration, Field(gt=0, le=60)] = 60.0
    """How far back a thin window may reach."""
    history: Annotated[Count, Field(le=100_000)] = 1000
    """Decisions that are kept for `/admin/decisions`."""
    guard: GuardConfig = GuardConfig()
    """What a proposal must pass."""
    state_file: Annotated[str, Field(min_length=1)] | None = None
    """File in which step model, limits and memory ceilings outlive a restart; null: none does."""
