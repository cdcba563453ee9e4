"""The frozen picture of a tick: what windows, queues, ledger and device know, and how well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.batcher import Batcher
from controller.ledger import ExecutorSeats
from controller.observer import Observer
from controller.records import ExecutorRecord, Passage, StepTotals, TierRecord, Windows
from controller.tier_signals import alone
from controller.tiers import Tier
from controller.verdicts import TierView, verdicts
from executor.contract import Capacity
from metrics.window import Summary
from policies.contract import (
    Applied,
    ExecutorSignals,
    Passed,
    Quantiles,
    Shape,
    Signals,
    StepEstimate,
    TierSignals,
    Utilization,
)


@dataclass(frozen=True, slots=True)
class Device:
    """What a device says of itself, fractions 0..1; None where it says nothing."""

    utilization: float | None = None
    memory: float | None = None


class SignalSource:
    """Freezes the signals of one group of executors."""

    def __init__(self, batcher: Batcher, observer: Observer, group: str, windows: Windows) -> None:
        self._batcher = batcher
        self._observer = observer
        self._group = group
        self.windows = windows
        # What the steps came to, of each executor, when the signals were frozen last.
        self._seen: list[tuple[ExecutorSeats, StepTotals]] = []

    def freeze(
        self,
        now: float,
        *,
        wall_s: float,
        interval_s: float,
        devices: Mapping[str, Device],
        last: Applied | None,
    ) -> Signals:
        """Everything that was seen, with the number of samples behind it."""
        members = [s for s in self._batcher.executors.values() if s.group == self._group]
        totals = {seats.name: self._totals(seats, now) for seats in members}
        self._seen = [(seats, totals[seats.name]) for seats in members]
        model = self._model(members)
        executors = tuple(
            self._executor(seats, totals[seats.name], now, device=devices.get(seats.name, Device()))
            for seats in members
        )
        pooled = StepTotals()
        for part in totals.values():
            pooled.merge(part)
        records = [self._observer.executors[seats.name] for seats in members]
        reports = [record.last_report for record in records if record.last_report is not None]
        return Signals(
            interval_s=interval_s,
            age_s=max(0.0, now - max(reports)) if reports else None,
            tiers=tuple(
                self._tier(record, now, pooled=pooled, model=model, epoch=members[0].epoch)
                for record in self._observer.tiers.values()
            ),
            executors=executors,
            model=model,
            last=last,
            wall_s=wall_s,
        )

    def alone(self, signals: Signals, tier: Tier, *, last: Applied | None) -> Signals:
        """The signals that were frozen last, as the tier's own policy sees them; `last` is what
        became of its last proposal."""
        return alone(signals, tier, self._seen, last=last)

    def _totals(self, seats: ExecutorSeats, now: float) -> StepTotals:
        """Steps under the limits in force: those before a change say nothing about it."""
        windows = self.windows
        return self._observer.executors[seats.name].totals(
            now - windows.fast_s,
            reach=now - windows.at_most_s,
            at_least=windows.min_samples,
            epoch=seats.epoch,
        )

    def _model(self, members: list[ExecutorSeats]) -> StepEstimate | None:
        """The best known of the group: its executors are alike."""
        estimates = [self._observer.executors[seats.name].model.estimate() for seats in members]
        known = [estimate for estimate in estimates if estimate is not None]
        return max(known, key=lambda estimate: estimate.samples, default=None)

    def _executor(
        self, seats: ExecutorSeats, totals: StepTotals, now: float, *, device: Device
    ) -> ExecutorSignals:
        record, windows = self._observer.executors[seats.name], self.windows
        span_s = max(min(windows.fast_s, now - record.started), 1e-9)
        recent = record.totals(now - span_s, reach=now - span_s, at_least=0)
        times = record.times.last(
            windows.fast_s, now, at_least=windows.min_samples, at_most_s=windows.at_most_s
        )
        n, with_prompts = totals.steps, totals.steps - totals.pure_steps
        batches = seats.capacity is not None and seats.capacity.runs_to_completion
        return ExecutorSignals(
            name=seats.name,
            ready=seats.ready,
            running=len(seats.seats),
            free_seats=seats.room(),
            steps=n,
            step_time=_quantiles(times),
            mean_batch=totals.rows / n if n else None,
            mean_context=totals.context / totals.rows if totals.rows else None,
            mean_prefill=totals.prefill / n if n else None,
            fill=totals.fill / n if n else None,
            size_bound=_part(totals.size_bound, with_prompts if batches else n),
            tokens_bound=_part(totals.tokens_bound, with_prompts),
            tokens_per_s=recent.tokens / span_s,
            utilization=_utilization(record, device, busy=min(1.0, recent.step_s / span_s)),
            memory=device.memory,
            kv=record.kv,
            stalled=totals.stalled,
            returned=recent.returned,
            shape=_shape(seats.capacity),
        )

    def _tier(
        self,
        record: TierRecord,
        now: float,
        *,
        pooled: StepTotals,
        model: StepEstimate | None,
        epoch: int,
    ) -> TierSignals:
        tier, windows = record.tier, self.windows
        queue = self._batcher.queues[tier.name]
        oldest = queue.oldest()
        passed = record.passed(now - windows.slow_s)
        view = TierView(
            record=record,
            passed=passed,
            late=queue.late(now),
            queued=len(queue),
            steps=pooled,
            model=model,
            epoch=epoch,
        )
        shown = {
            metric: _quantiles(
                measured.values.last(
                    windows.fast_s if metric == "itl" else windows.slow_s,
                    now,
                    at_least=windows.min_samples,
                    at_most_s=windows.at_most_s,
                )
            )
            for metric, measured in record.metrics.items()
        }
        return TierSignals(
            name=tier.name,
            priority=tier.priority,
            queued=len(queue),
            queued_tokens=queue.tokens,
            oldest_wait_s=None if oldest is None else max(0.0, now - oldest.arrival),
            running=sum(s.by_tier.get(tier.name, 0) for s in self._batcher.executors.values()),
            arrival_rate=record.arrivals.rate(now, windows.slow_s),
            ttft=shown["ttft"],
            itl=shown["itl"],
            e2e=shown["e2e"],
            verdicts=verdicts(view, now, windows=windows),
            passed=_means(passed, min(windows.slow_s, max(now - self._observer.started, 1e-9))),
        )


def _means(sums: Passage, span_s: float) -> Passed:
    """What the requests of `span_s` seconds came to in the mean."""
    sent, begun, ended = sums.dispatched, sums.begun, sums.finished
    return Passed(
        prompt_tokens=sums.prompt_tokens / sent if sent else None,
        queue_s=sums.queue_s / sent if sent else None,
        hold_s=sums.hold_s / sent if sent else None,
        prefill_s=sums.prefill_s / begun if begun else None,
        new_tokens=sums.new_tokens / ended if ended else None,
        goodput=sums.met / span_s if ended else None,
    )


def _part(some: int, of: int) -> float | None:
    return some / of if of else None


def _shape(capacity: Capacity | None) -> Shape | None:
    if capacity is None:
        return None
    return Shape(
        max_seqs=capacity.max_seqs,
        max_step_tokens=capacity.max_step_tokens,
        kv_tokens=capacity.kv_tokens,
        runs_to_completion=capacity.runs_to_completion,
        splits_prefill=capacity.splits_prefill,
    )


def _quantiles(summary: Summary | None) -> Quantiles | None:
    if summary is None:
        return None
    return Quantiles(summary.samples, summary.mean, summary.p50, summary.p90, summary.p99)


def _utilization(record: ExecutorRecord, device: Device, *, busy: float) -> Utilization | None:
    """The device's own word if it has one; else how much of the time steps ran, labelled so."""
    if record.utilization is not None:
        return Utilization(record.utilization, "simulated")
    if device.utilization is not None:
        return Utilization(device.utilization, "nvml")
    return None if record.last_report is None else Utilization(busy, "busy")
