"""What becomes of events and state in Prometheus: a listener, and a look at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from controller.batcher import Batcher
from controller.decision import CHANGE_REASONS, Decision, DecisionCode, TierDecision
from controller.gates import Code
from controller.guard import Guard
from controller.ledger import ExecutorSeats
from controller.listener import Listener
from controller.loop import ControlLoop
from controller.observer import Observer
from controller.plan import Dispatch, Why
from controller.request import Ended, Outcome, Request
from controller.shadows import Shadowed
from controller.tiers import seat_cap, wait_of
from executor.contract import Report
from executor.face import Executor
from metrics.gpu import GpuSample
from metrics.instruments import Instruments
from metrics.series import show
from policies.contract import Limits

# How requests end when nothing goes wrong here, so that these series exist from the start.
ENDS = (
    (Outcome.FINISHED, "stop"),
    (Outcome.FINISHED, "length"),
    (Outcome.REJECTED, "rate_limit_exceeded"),
    (Outcome.REJECTED, "infeasible"),
    (Outcome.REJECTED, "shed"),
    (Outcome.REJECTED, "evicted"),
    (Outcome.REJECTED, "not_ready"),
    (Outcome.REJECTED, "draining"),
    (Outcome.EXPIRED, "start_by"),
    (Outcome.EXPIRED, "late"),
    (Outcome.EXPIRED, "finish_by"),
    (Outcome.CANCELLED, "disconnect"),
    (Outcome.FAILED, "executor_failed"),
)


def build_instruments(
    batcher: Batcher,
    *,
    version: str,
    policies: Iterable[str],
    shadows: Iterable[str] = (),
    upstreams: Iterable[str] = (),
) -> Instruments:
    """Instruments for the tiers, executors and groups of this batcher.

    `policies` are those that may come into force, `shadows` the labels of those that are
    only asked, `upstreams` the executors that are engines behind HTTP.
    """
    return Instruments(
        version=version,
        tiers=list(batcher.queues),
        executors=list(batcher.executors),
        groups=sorted({seats.group for seats in batcher.executors.values()}),
        ends=ENDS,
        policies=sorted(set(policies)),
        decision_codes=list(DecisionCode),
        guard_codes=list(Code),
        dispatch_reasons=list(Why),
        change_reasons=CHANGE_REASONS,
        shadows=list(shadows),
        upstreams=list(upstreams),
    )


class Meter(Listener):
    """Counts what happens. Bound to its instruments once the batcher that tells it exists."""

    def __init__(self) -> None:
        self.instruments: Instruments
        self._restarts: Counter[str] = Counter()

    def offered(self, request: Request, now: float) -> None:
        self.instruments.tiers[request.tier].offered.inc()

    def rejected(self, tier: str, requests: int, reason: str, now: float) -> None:
        self.instruments.tiers[tier].offered.inc(requests)
        self.instruments.ended.labels(tier, Outcome.REJECTED, reason).inc(requests)

    def dispatched(self, request: Request, now: float) -> None:
        tier = self.instruments.tiers[request.tier]
        if request.attempt > 1:
            tier.resumes.inc()
        else:
            tier.queue_wait_s.observe(now - request.arrival)
            tier.hold_s.observe(request.hold_s)
            tier.prompt_tokens.inc(len(request.prompt))

    def batch(self, dispatch: Dispatch, now: float) -> None:
        self.instruments.dispatches.labels(dispatch.executor, dispatch.why).inc()
        executor = self.instruments.executors[dispatch.executor]
        executor.dispatch_size.observe(dispatch.size)
        executor.dispatch_depth.observe(dispatch.depth)
        executor.dispatch_oldest_s.observe(dispatch.oldest_s)
        executor.dispatch_hold_s.observe(dispatch.held_s)
        if dispatch.padding is not None:
            executor.dispatch_padding.observe(dispatch.padding)

    def given_back(self, request: Request, reason: str, now: float) -> None:
        if reason == "preempted":
            self.instruments.tiers[request.tier].preemptions.inc()

    def first_token(self, request: Request, now: float) -> None:
        self.instruments.tiers[request.tier].ttft_s.observe(now - request.arrival)

    def stepped(self, seats: ExecutorSeats, report: Report, now: float) -> None:
        executor = self.instruments.executors[seats.name]
        if report.sample is not None and report.steps:
            executor.step_batch_size.observe(report.sample.sequences)
            executor.step_duration_s.observe(report.sample.duration_s / report.steps)
            executor.step_fill.observe(min(1.0, report.sample.sequences / seats.size_limit))

    def ended(self, ended: Ended, now: float) -> None:
        request, tier = ended.request, self.instruments.tiers[ended.request.tier]
        self.instruments.ended.labels(request.tier, ended.outcome, ended.reason).inc()
        tier.generated_tokens.inc(len(request.tokens))
        times = request.times
        if ended.outcome is Outcome.FINISHED:
            tier.e2e_s.observe(now - request.arrival)
            if times.first_token is not None and times.last_token and len(request.tokens) > 1:
                decode_s = times.last_token - times.first_token
                tier.itl_s.observe(max(0.0, decode_s / (len(request.tokens) - 1)))

    def decided(self, decision: Decision) -> None:
        """A tick came to an end."""
        instruments = self.instruments
        instruments.decisions.labels(decision.policy, decision.code).inc()
        every: tuple[Decision | TierDecision, ...] = (decision, *decision.tiers)
        for told in every:
            if told.error:
                instruments.policy_errors.labels(told.policy).inc()
            if told.successor:
                instruments.replacements.labels(told.policy, told.state).inc()
            for note in told.notes:
                instruments.refusals.labels(note.limit, note.code).inc()
        for change in decision.changes():
            if change.tier is None:
                counted = instruments.changes
                counted.labels(decision.group, change.limit, change.direction, change.reason).inc()
            else:
                tier_changes = instruments.tier_changes
                tier_changes.labels(change.tier, change.limit, change.direction).inc()
        for shadowed in decision.shadows:
            self._shadowed(decision.group, shadowed)
        group = instruments.groups[decision.group]
        group.judged_batch_size.set(decision.judged.max_batch_size)
        group.judged_batch_tokens.set(decision.judged.max_batch_tokens)
        group.judged_wait_s.set(decision.judged.wait_timeout_s)
        group.observing.set(decision.mode == "observe")
        instruments.tick_s.observe(decision.duration_s)
        for executor in decision.signals.executors:
            seen = executor.utilization
            instruments.executors[executor.name].show_utilization(
                None if seen is None else seen.value, None if seen is None else seen.source
            )

    def _shadowed(self, group: str, shadowed: Shadowed) -> None:
        shadow, proposed = self.instruments.shadow(group, shadowed.name), shadowed.proposed
        shadow.answers.inc(proposed is not None)
        shadow.differences.inc(shadowed.differs)
        shadow.errors.inc(bool(shadowed.error))
        if proposed is not None:
            shadow.batch_size.set(proposed.max_batch_size)
            shadow.batch_tokens.set(proposed.max_batch_tokens)
            shadow.wait_s.set(proposed.wait_timeout_s)
        elif shadowed.error:
            for gauge in (shadow.batch_size, shadow.batch_tokens, shadow.wait_s):
                show(gauge, None)

    def look(
        self,
        batcher: Batcher,
        observer: Observer,
        loops: Mapping[str, ControlLoop],
        *,
        executors: Mapping[str, Executor],
        now: float,
        ready: bool,
        gpu: GpuSample | None,
        abandoned: int,
    ) -> None:
        """Set the gauges to what is the case now; called at each scrape.

        `abandoned` are the policies whose threads nobody waits for any more.
        """
        instruments = self.instruments
        owed = batcher.scheduler.owed()
        for name, queue in batcher.queues.items():
            tier, oldest = instruments.tiers[name], queue.oldest()
            tier.queue_requests.set(len(queue))
            tier.queue_tokens.set(queue.tokens)
            tier.queue_oldest_s.set(0.0 if oldest is None else now - oldest.arrival)
            tier.queue_late.set(queue.late(now))
            tier.owed_tokens.set(owed[name])
            tier.shed_ratio.set(batcher.admission.shed.get(name, 0.0))
        for seats in batcher.executors.values():
            executor = instruments.executors[seats.name]
            executor.ready.set(seats.ready)
            held = observer.executors[seats.name].kv
            show(executor.kv_usage, held)
            in_all = None if seats.capacity is None else seats.capacity.kv_tokens
            show(executor.kv_tokens, None if held is None or in_all is None else held * in_all)
            restarts = executors[seats.name].restarts
            executor.restarts.inc(restarts - self._restarts[seats.name])
            self._restarts[seats.name] = restarts
            if not seats.ready:
                show(executor.kv_usage, None)
                show(executor.kv_tokens, None)
            for tier_name, gauge in executor.running.items():
                gauge.set(seats.by_tier.get(tier_name, 0))
            group = instruments.groups[seats.group]
            group.batch_size.set(seats.limits.max_batch_size)
            group.batch_tokens.set(seats.limits.max_batch_tokens)
            group.wait_s.set(seats.limits.wait_timeout_s)
            group.epoch.set(seats.epoch)
        for name, upstream in instruments.upstreams.items():
            scrape = executors[name].view(now).get("scrape") or {}
            show(upstream.age_s, scrape.get("age_s"))
            show(upstream.running, scrape.get("running"))
            show(upstream.waiting, scrape.get("waiting"))
            show(upstream.foreign, scrape.get("foreign"))
        for name, loop in loops.items():
            self._show_envelope(name, loop.guard)
            self._show_tiers(name, loop.limits, batcher)
        # What an executor held that is gone, nobody holds.
        used = [observer.executors[s.name].kv for s in batcher.executors.values() if s.ready]
        show(instruments.kv_usage, max((kv for kv in used if kv is not None), default=None))
        instruments.waiting.set(batcher.queued())
        instruments.ready.set(ready)
        instruments.abandoned.set(abandoned)
        show(instruments.device_memory_used, None if gpu is None else gpu.memory_used)
        show(instruments.device_memory, None if gpu is None else gpu.memory_size)

    def _show_tiers(self, group: str, limits: Limits, batcher: Batcher) -> None:
        for name, shown in self.instruments.groups[group].tiers.items():
            tier = batcher.queues[name].tier
            show(shown.seats, seat_cap(tier, limits))
            shown.wait_s.set(wait_of(tier, limits))

    def _show_envelope(self, group: str, guard: Guard) -> None:
        shown, envelope = self.instruments.groups[group], guard.envelope
        for pair, low, high in (
            (
                shown.envelope_batch_size,
                envelope.low.max_batch_size,
                _lower(envelope.high.max_batch_size, envelope.capacity_seqs),
            ),
            (
                shown.envelope_batch_tokens,
                envelope.low.max_batch_tokens,
                _lower(envelope.high.max_batch_tokens, envelope.capacity_tokens),
            ),
            (shown.envelope_wait_s, envelope.low.wait_timeout_s, envelope.high.wait_timeout_s),
        ):
            pair[0].set(low)
            pair[1].set(high)


def _lower(high: int, capacity: int | None) -> int:
    return high if capacity is None else min(high, capacity)
