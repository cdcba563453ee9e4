"""Which gate holds growth back, and why: nothing grows on old, thin or idle figures."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from controller.config_control import GuardConfig
from policies.contract import ExecutorSignals, LimitName, Signals

# One-sided 90 %, as the bounds of the miss fraction.
ROOM_SIGMAS = 1.2816


class Code(StrEnum):
    """What the guard did, as it stands in logs, metrics and answers."""

    INVALID = "invalid"
    CAPACITY = "capacity"
    ENVELOPE = "envelope"
    OUT_OF_MEMORY = "out_of_memory"
    STALE = "stale"
    THIN = "thin"
    NOT_BINDING = "not_binding"
    DRAINING = "draining"
    MEMORY = "memory"
    COOLDOWN = "cooldown"
    GPU_VETO = "gpu_veto"
    SLEW = "slew"
    OSCILLATION = "oscillation"
    DEAD_BAND = "dead_band"
    PINNED = "pinned"


@dataclass(slots=True)
class Memory:
    """What the guard remembers of the moves that were applied.

    `moved_at` is the instant of the last move. `grew_from` is the throughput (tokens/s) before the
    last growth of the batch size, None when it has shrunk since. `signs` are the directions of the
    last moves of each limit.
    """

    moved_at: float | None = None
    grew_from: float | None = None
    signs: dict[LimitName, deque[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates for growth, in their order. A shrink passes none of them."""

    config: GuardConfig
    min_samples: int

    def refusal(
        self, name: LimitName, old: float, signals: Signals, *, memory: Memory, now: float
    ) -> tuple[Code, str] | None:
        """The first gate that is shut, if any."""
        config, executors = self.config, signals.executors
        steps = [e for e in executors if e.steps]
        slowest = max((e.step_time.p90 for e in steps if e.step_time is not None), default=0.0)
        # A report comes once a step: where steps are slower than ticks, they set the pace.
        fresh_s = config.stale_ticks * max(signals.interval_s, slowest)
        if signals.age_s is None or signals.age_s > fresh_s:
            seen = "never" if signals.age_s is None else f"{signals.age_s:.1f} s ago"
            return Code.STALE, f"the last step was {seen}, {fresh_s:.1f} s ago at most"
        count = sum(e.steps for e in executors)
        if count < self.min_samples:
            return Code.THIN, f"{count} steps under these limits, {self.min_samples} needed"
        bound = self._binding(name, steps, count)
        if bound is not None and bound < config.binding:
            return Code.NOT_BINDING, f"reached in {bound:.0%} of {count} steps"
        crowded = [e for e in executors if name == "max_batch_size" and e.running > old]
        if crowded:
            return Code.DRAINING, f"{crowded[0].running} still run at a limit of {old:g}"
        held = max((e.kv for e in executors if e.kv is not None), default=0.0)
        stalled = sum(e.stalled for e in executors)
        if name != "wait_timeout_s" and (held > config.kv_high or stalled):
            return Code.MEMORY, f"{held:.0%} of KV memory held, {stalled} sequences stalled"
        pause_s = max(config.cooldown, config.cooldown_steps * slowest)
        moved = memory.moved_at
        if moved is not None and now - moved < pause_s:
            return Code.COOLDOWN, f"{now - moved:.2f} s after a move, {pause_s:.2f} s needed"
        return self._veto(name, signals, memory)

    def _binding(self, name: LimitName, steps: list[ExecutorSignals], count: int) -> float | None:
        """In what fraction of the steps the limit was reached; None where that is not counted."""
        if name == "wait_timeout_s":
            return None
        if name == "max_batch_size":
            return sum((e.size_bound or 0.0) * e.steps for e in steps) / count
        # Decoding alone comes nowhere near it: what counts are the steps with prompts.
        return max((e.tokens_bound for e in steps if e.tokens_bound is not None), default=0.0)

    def _veto(self, name: LimitName, signals: Signals, memory: Memory) -> tuple[Code, str] | None:
        """A busy device that did not serve more after the last growth will not after the next."""
        before = memory.grew_from
        busy = [
            e.utilization.value
            for e in signals.executors
            # The stand-in is near 1 whenever there is work: it says nothing about saturation.
            if e.utilization is not None and e.utilization.source != "busy"
        ]
        if name == "wait_timeout_s" or before is None or not busy:
            return None
        now = throughput(signals)
        flat = now < before * (1 + self.config.flat_gain)
        if min(busy) >= self.config.gpu_busy and flat:
            detail = f"{min(busy):.0%} busy, {before:.0f} tokens/s before the last growth"
            return Code.GPU_VETO, f"{detail}, {now:.0f} after"
        return None


def throughput(signals: Signals) -> float:
    """Tokens per second of all executors together."""
    return sum(e.tokens_per_s or 0.0 for e in signals.executors)


def has_room(signals: Signals, size: float) -> bool:
    """Whether a step model that can be trusted says that the inter-token targets of all tiers that
    run are kept with so many sequences, its spread included."""
    model = signals.model
    contexts = [e.mean_context for e in signals.executors if e.mean_context is not None]
    if model is None or not model.identifiable or not contexts:
        return False
    step_s = model.predict(size, size * max(contexts)) + ROOM_SIGMAS * model.sigma_s
    return all(
        step_s <= verdict.target_s
        for tier in signals.tiers
        for verdict in tier.verdicts
        if verdict.metric == "itl" and tier.running
    )
