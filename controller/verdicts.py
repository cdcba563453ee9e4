"""Whether a tier's targets are met, by counted misses, and where the time of a breach went."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from controller.gates import ROOM_SIGMAS
from controller.records import Measured, Passage, StepTotals, TierRecord, Windows
from metrics.window import Histogram, miss_bounds
from policies.contract import Cause, Metric, Signals, StepEstimate, Verdict

State = Literal["breach", "room", "unknown"]
# Sequences share their steps, so few samples are less than they seem: one slow step is no breach.
_LEAST_FOR_BREACH = 5


@dataclass(frozen=True, slots=True)
class TierView:
    """What the verdicts on one tier are made from: its record, what passed lately, what waits, and
    the steps."""

    record: TierRecord
    passed: Passage
    late: int
    queued: int
    steps: StepTotals
    model: StepEstimate | None
    epoch: int


def verdicts(view: TierView, now: float, *, windows: Windows) -> tuple[Verdict, ...]:
    """One verdict for each target of the tier.

    Inter-token latency is judged on steps under the limits in force only, so that a decision
    never looks back over the one before it; what is counted once a request likewise.
    """
    found: dict[Metric, Verdict] = {}
    for metric, target_s in view.record.targets.items():
        if metric == "itl":
            found[metric] = _judge_itl(view, target_s, now=now, windows=windows)
        else:
            measured = view.record.metrics[metric]
            seen = _count(view, measured, now=now, span_s=windows.slow_s, windows=windows)
            lost = round(measured.lost.total(seen.since)) + view.late
            found[metric] = _judge(view, metric, target_s, seen.and_lost(lost))
    return tuple(_explain(verdict, found, view) for verdict in found.values())


def excess(signals: Signals) -> dict[str, float]:
    """By how much more than allowed tiers miss a target for certain, as a fraction of requests."""
    found: dict[str, float] = {}
    for tier in signals.tiers:
        for verdict in tier.verdicts:
            if verdict.state == "breach" and verdict.samples:
                more = verdict.misses / verdict.samples - (1.0 - verdict.attainment)
                found[tier.name] = max(found.get(tier.name, 0.0), more)
    return found


def _judge_itl(view: TierView, target_s: float, *, now: float, windows: Windows) -> Verdict:
    """The few latest tokens of those that run say within seconds that decoding is slow. Where it is
    only prompts that make some steps long, they say too much: a mean over a whole request bears a
    long step now and then, so those that have ended are the judges."""
    record = view.record
    seen = _count(view, record.metrics["itl"], now=now, span_s=windows.fast_s, windows=windows)
    verdict = _judge(view, "itl", target_s, seen)
    if verdict.state == "room" or _step_cause(view.steps, target_s) is not Cause.PREFILL:
        return verdict
    whole = _count(view, record.request_itl, now=now, span_s=windows.slow_s, windows=windows)
    return _judge(view, "itl", target_s, whole)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Samples of a window that begins at `since`, and how many of them missed."""

    samples: int
    misses: int
    mean_s: float | None
    since: float

    def and_lost(self, lost: int) -> _Seen:
        """With so many more that never came to a value."""
        return replace(self, samples=self.samples + lost, misses=self.misses + lost)


def _count(
    view: TierView, measured: Measured, *, now: float, span_s: float, windows: Windows
) -> _Seen:
    values, since = _values(measured, now, span_s=span_s, windows=windows, epoch=view.epoch)
    misses = round(measured.misses.total(since, epoch=view.epoch))
    mean_s = values.total / values.samples if values.samples else None
    return _Seen(values.samples, min(misses, values.samples), mean_s, since)


def _judge(view: TierView, metric: Metric, target_s: float, seen: _Seen) -> Verdict:
    attainment = view.record.tier.targets.attainment
    low, high = miss_bounds(seen.misses, seen.samples)
    state: State = "unknown"
    if seen.samples >= _LEAST_FOR_BREACH and low > 1 - attainment:
        state = "breach"
    elif high < 1 - attainment or (seen.misses == 0 and _predicts_room(view, metric, target_s)):
        state = "room"
    return Verdict(
        metric=metric,
        target_s=target_s,
        attainment=attainment,
        samples=seen.samples,
        misses=seen.misses,
        state=state,
        value_s=seen.mean_s,
    )


def _values(
    measured: Measured, now: float, *, span_s: float, windows: Windows, epoch: int
) -> tuple[Histogram, float]:
    """Samples of this epoch in the window; where it is thin, twice as far back, and again."""
    while True:
        values = measured.values.since(now - span_s, epoch=epoch)
        if values.samples >= windows.min_samples or span_s >= windows.at_most_s:
            return values, now - span_s
        span_s = min(windows.at_most_s, 2 * span_s)


def _predicts_room(view: TierView, metric: Metric, target_s: float) -> bool:
    """With too few samples to tell, whether the step model says that the target is met.

    For inter-token latency: the steps as they are, with their spread. For the rest: nobody waits,
    so a request begins with the next step.
    """
    model, steps = view.model, view.steps
    if model is None or not steps.steps:
        return False
    n = steps.steps
    step_s = model.predict(steps.rows / n, steps.context / n, prefill=steps.prefill / n)
    likely_s = step_s + ROOM_SIGMAS * model.sigma_s
    if metric == "itl":
        return likely_s <= target_s
    return view.queued == 0 and 2 * likely_s <= target_s


def _explain(verdict: Verdict, found: dict[Metric, Verdict], view: TierView) -> Verdict:
    if verdict.state != "breach":
        return verdict
    if verdict.metric == "itl":
        return replace(verdict, cause=_step_cause(view.steps, verdict.target_s))
    return replace(verdict, cause=_start_cause(found, view))


def _step_cause(steps: StepTotals, target_s: float) -> Cause:
    """Why tokens came slowly: no memory, other requests' prefills, or decoding itself."""
    if steps.stalled:
        return Cause.MEMORY
    pure_s = steps.pure_s / steps.pure_steps if steps.pure_steps else None
    return Cause.PREFILL if pure_s is not None and pure_s <= target_s else Cause.DECODE


def _start_cause(found: dict[Metric, Verdict], view: TierView) -> Cause:
    """Why requests began or ended late: where most of their time went."""
    if view.steps.stalled:
        return Cause.MEMORY
    passed = view.passed
    mean = {
        Cause.QUEUE: passed.queue_s / max(1, passed.dispatched),
        Cause.HOLD: passed.hold_s / max(1, passed.dispatched),
        Cause.PREFILL: passed.prefill_s / max(1, passed.begun),
    }
    # Who waits beyond the target by now has lost all of it in the queue.
    cause = Cause.QUEUE if view.late else max(mean, key=lambda key: mean[key])
    itl = found.get("itl")
    if cause is Cause.QUEUE and itl is not None and itl.state == "breach":
        # Decoding has nothing to spare: a smaller batch would serve fewer and queue more.
        return Cause.OVERLOAD
    return cause
