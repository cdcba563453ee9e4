"""What is kept of the recent past of a tier and of an executor, in slots of time and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from controller.ledger import ExecutorSeats
from controller.step_model import StepModel
from controller.tiers import Tier, seat_cap
from executor.contract import Report
from metrics.window import RollingSum, Slots, Window
from policies.contract import Metric

# Steps and gaps are told apart to a tenth of a second, requests to a second: well under the
# windows that look at them (3 s and 30 s).
FAST_S, SLOW_S = 0.1, 1.0
HORIZON_S = 60.0


@dataclass(frozen=True, slots=True)
class Windows:
    """How far back the signals look, in seconds, and how many samples they look for."""

    fast_s: float = 3.0
    slow_s: float = 30.0
    at_most_s: float = 60.0
    min_samples: int = 20


@dataclass(slots=True)
class Measured:
    """One metric of one tier: its values, how many missed the target, and how many were `lost`:
    requests that never came to a value, every one a miss."""

    values: Window
    misses: RollingSum
    lost: RollingSum

    @classmethod
    def build(cls, resolution_s: float, started: float) -> Measured:
        """Empty windows."""
        return cls(
            Window(resolution_s=resolution_s, horizon_s=HORIZON_S),
            RollingSum(resolution_s=resolution_s, horizon_s=HORIZON_S, started=started),
            RollingSum(resolution_s=resolution_s, horizon_s=HORIZON_S, started=started),
        )

    def add(self, value: float, now: float, *, epoch: int, target: float | None) -> None:
        """Count a value, and a miss if it is above the target."""
        self.values.add(value, now, epoch=epoch)
        if target is not None and value > target:
            self.misses.add(1, now, epoch=epoch)


@dataclass(slots=True)
class Passage:
    """Sums over requests: seconds before their first token by what they waited for, tokens, and
    how many of those that `finished` `met` every target."""

    dispatched: int = 0
    prompt_tokens: int = 0
    queue_s: float = 0.0
    hold_s: float = 0.0
    begun: int = 0
    prefill_s: float = 0.0
    finished: int = 0
    new_tokens: int = 0
    met: int = 0

    def merge(self, other: Passage) -> None:
        """Add the sums of other requests."""
        self.dispatched += other.dispatched
        self.prompt_tokens += other.prompt_tokens
        self.queue_s += other.queue_s
        self.hold_s += other.hold_s
        self.begun += other.begun
        self.prefill_s += other.prefill_s
        self.finished += other.finished
        self.new_tokens += other.new_tokens
        self.met += other.met


class TierRecord:
    """The recent past of one tier; a sample's epoch says under which limits it came about."""

    def __init__(self, tier: Tier, started: float) -> None:
        self.tier = tier
        self.targets = tier.targets.named()
        self._started = started
        self.metrics: dict[Metric, Measured] = {
            "ttft": Measured.build(SLOW_S, started),
            "itl": Measured.build(FAST_S, started),
            "e2e": Measured.build(SLOW_S, started),
        }
        # The mean of each request that finished: what the target speaks of.
        self.request_itl = Measured.build(SLOW_S, started)
        self.arrivals = RollingSum(resolution_s=SLOW_S, horizon_s=HORIZON_S, started=started)
        self._passages = Slots(Passage, resolution_s=SLOW_S, horizon_s=HORIZON_S)

    def retier(self, tier: Tier) -> None:
        """Take other promises. Where a target is another one, its metric starts again: the misses
        were counted against the old one."""
        before, self.tier, self.targets = self.targets, tier, tier.targets.named()
        for metric, target_s in self.targets.items():
            if before.get(metric) != target_s:
                resolution_s = FAST_S if metric == "itl" else SLOW_S
                self.metrics[metric] = Measured.build(resolution_s, self._started)

    def passing(self, now: float) -> Passage:
        """Where to add what happens to requests now."""
        return self._passages.at(now, 0)

    def passed(self, since: float) -> Passage:
        """What happened to requests since an instant."""
        merged = Passage()
        for slot in self._passages.since(since, None):
            merged.merge(slot)
        return merged


@dataclass(slots=True)
class SeatTotals:
    """Sums over steps of one tier: its seats taken, what part that was of those it may have, and
    the steps in which it had all of these."""

    taken: int = 0
    fill: float = 0.0
    bound: int = 0


@dataclass(slots=True)
class StepTotals:
    """Sums over steps. `size_bound` and `tokens_bound` count the steps that reached a limit, the
    latter of those with prompts; `pure_steps` and `pure_s` those that prefilled nothing, `of_tier`
    the seats of tiers that somebody watches."""

    steps: int = 0
    step_s: float = 0.0
    rows: int = 0
    context: int = 0
    prefill: int = 0
    fill: float = 0.0
    size_bound: int = 0
    tokens_bound: int = 0
    tokens: int = 0
    returned: int = 0
    stalled: int = 0
    pure_steps: int = 0
    pure_s: float = 0.0
    of_tier: dict[str, SeatTotals] = field(default_factory=dict)

    def merge(self, other: StepTotals) -> None:
        """Add the sums of other steps."""
        # Written out: a tick merges dozens of these, and a loop over fields took most of it.
        self.steps += other.steps
        self.step_s += other.step_s
        self.rows += other.rows
        self.context += other.context
        self.prefill += other.prefill
        self.fill += other.fill
        self.size_bound += other.size_bound
        self.tokens_bound += other.tokens_bound
        self.tokens += other.tokens
        self.returned += other.returned
        self.stalled += other.stalled
        self.pure_steps += other.pure_steps
        self.pure_s += other.pure_s
        for tier, seats in other.of_tier.items():
            mine = self.of_tier.setdefault(tier, SeatTotals())
            mine.taken += seats.taken
            mine.fill += seats.fill
            mine.bound += seats.bound


class ExecutorRecord:
    """The recent past of one executor, and its step model. `watched` are the tiers whose seats are
    counted."""

    def __init__(self, started: float) -> None:
        self.watched: Sequence[Tier] = ()
        self.model = StepModel()
        self.times = Window(resolution_s=FAST_S, horizon_s=HORIZON_S)
        self.started = started
        self.last_report: float | None = None
        self.epoch = 0
        # Steps until the next look at how fast each running completion goes.
        self.until_visit = 0
        self.utilization: float | None = None
        self.kv: float | None = None
        self._totals = Slots(StepTotals, resolution_s=FAST_S, horizon_s=HORIZON_S)

    def stepped(self, seats: ExecutorSeats, report: Report, now: float) -> None:
        """Count a step, as many times as the report stands for."""
        if seats.capacity is not None:
            held = report.kv_tokens
            self.kv = None if held is None else held / seats.capacity.kv_tokens
        sample, k = report.sample, report.steps
        if sample is None or k == 0 or seats.capacity is None:
            # Engines behind HTTP tell tokens as they come, and of a step when it is over.
            if report.tokens and seats.capacity is not None:
                totals = self._totals.at(now, report.epoch)
                totals.tokens += sum(len(tokens.ids) for tokens in report.tokens)
            return
        self.last_report, self.epoch, self.utilization = now, report.epoch, report.utilization
        self.times.add(sample.duration_s / k, now, epoch=report.epoch)
        self.model.learn(sample, steps=k)
        limit = seats.size_limit
        totals = self._totals.at(now, report.epoch)
        totals.steps += k
        totals.step_s += sample.duration_s
        totals.rows += k * sample.sequences
        totals.context += k * sample.context_tokens
        totals.prefill += k * sample.prefill_tokens
        totals.fill += k * min(1.0, sample.sequences / limit)
        # A batch that runs to its end is as large as it was when it began.
        if sample.prefill_tokens or not seats.capacity.runs_to_completion:
            totals.size_bound += k * (len(seats.seats) >= limit)
        if sample.prefill_tokens:
            reached = sample.prefill_tokens + sample.decodes >= seats.step_tokens
            totals.tokens_bound += k * reached
        totals.tokens += sum(len(tokens.ids) for tokens in report.tokens)
        totals.returned += len(report.returned)
        totals.stalled += len(report.stalled) + report.paused
        if sample.prefill_tokens == 0:
            totals.pure_steps += k
            totals.pure_s += sample.duration_s
        for tier in self.watched:
            cap = seat_cap(tier, seats.limits)
            most = limit if cap is None else min(cap, limit)
            taken = seats.by_tier.get(tier.name, 0)
            of_tier = totals.of_tier.setdefault(tier.name, SeatTotals())
            of_tier.taken += k * taken
            of_tier.fill += k * min(1.0, taken / most)
            of_tier.bound += k * (taken >= most)

    def totals(
        self, since: float, *, reach: float, at_least: int, epoch: int | None = None
    ) -> StepTotals:
        """Sums since an instant; where that holds fewer than `at_least` steps, further back slot
        by slot, but not beyond `reach`."""
        merged, recent = StepTotals(), StepTotals()
        for slot in self._totals.since(since, epoch):
            recent.merge(slot)
        if recent.steps >= at_least:
            return recent
        for slot in self._totals.since(reach, epoch):
            if merged.steps >= at_least:
                break
            merged.merge(slot)
        return merged
