"""What is remembered of the recent past: a listener that keeps what the signals are made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from controller.errors import Draining, NotReady
from controller.ledger import ExecutorSeats
from controller.listener import Listener
from controller.records import ExecutorRecord, TierRecord
from controller.request import Ended, Outcome, Request
from controller.tiers import Tier
from executor.contract import Report, StepSample
from policies.contract import StepEstimate

# A request's mean inter-token latency is sampled about every so many steps, so that it is known
# while the request runs; a mean, because the target speaks of the mean of a request.
SEGMENT_TOKENS = 8
# A warm-up step is a clean measurement of one size: it outweighs a few steps of traffic.
WARMUP_WEIGHT = 5.0

# Turned away because nobody serves: no limit of a batch would change that.
_NOT_FOR_CAPACITY = (NotReady.code, Draining.code)
# What an engine does not take is its client's mistake.
_REFUSED = "refused"
# What an engine does not take is its client's mistake.
_REFUSED = "refused"
_FOR_CAPACITY = (Outcome.EXPIRED, Outcome.REJECTED, Outcome.FAILED)


@dataclass(slots=True)
class _Mark:
    """How far a completion was at the last visit; `at` None: its gaps count from its next token."""

    tokens: int
    at: float | None


class Observer(Listener):
    """Keeps windows per tier and executor. Bounded in memory, whatever the traffic.

    Inter-token latency carries the epoch of its steps, what is counted once a request that of
    its dispatch. Seats are counted for the tiers in `watched`.
    """

    def __init__(
        self,
        tiers: Iterable[Tier],
        executors: Iterable[str],
        *,
        started: float,
        watched: Collection[str] = (),
    ) -> None:
        self.tiers = {tier.name: TierRecord(tier, started) for tier in tiers}
        self.executors = {name: ExecutorRecord(started) for name in executors}
        self.started = started
        self._marks: dict[str, _Mark] = {}
        self._out_of_memory: dict[str, int] = {}
        self.watch(watched)

    def retier(self, tiers: Iterable[Tier]) -> None:
        """Count misses against these targets from now on; what is known of the others stays."""
        for tier in tiers:
            self.tiers[tier.name].retier(tier)
        self.watch(self._watched)

    def watch(self, tiers: Collection[str]) -> None:
        """Count the seats of these tiers from now on."""
        self._watched = tiers
        counted = [record.tier for name, record in self.tiers.items() if name in tiers]
        for record in self.executors.values():
            record.watched = counted

    def warmed_up(self, executor: str, samples: Iterable[StepSample]) -> None:
        """Begin the step model of an executor with what it measured before it was ready.

        Its process is new: it holds nothing of what the one before it held.
        """
        self.executors[executor].kv = None
        for sample in samples:
            self.executors[executor].model.learn(sample, weight=WARMUP_WEIGHT)

    def take_out_of_memory(self, executor: str) -> int | None:
        """Tokens held when the executor last ran out of memory, told once."""
        return self._out_of_memory.pop(executor, None)

    def estimate(self, executor: str) -> StepEstimate | None:
        """The step model of an executor as it lately was; see `StepModel.lately`."""
        return self.executors[executor].model.lately()

    def offered(self, request: Request, now: float) -> None:
        self.tiers[request.tier].arrivals.add(1, now)

    def rejected(self, tier: str, requests: int, reason: str, now: float) -> None:
        record = self.tiers[tier]
        record.arrivals.add(requests, now)
        if reason in _NOT_FOR_CAPACITY:
            return
        for metric in record.targets:
            if metric != "itl":
                record.metrics[metric].lost.add(requests, now)

    def dispatched(self, request: Request, now: float) -> None:
        if request.attempt == 1:
            passing = self.tiers[request.tier].passing(now)
            passing.dispatched += 1
            passing.prompt_tokens += len(request.prompt)
            passing.queue_s += now - request.arrival - request.hold_s
            passing.hold_s += request.hold_s

    def first_token(self, request: Request, now: float) -> None:
        record = self.tiers[request.tier]
        ttft_s = now - request.arrival
        target = record.targets.get("ttft")
        record.metrics["ttft"].add(ttft_s, now, epoch=request.epoch or 0, target=target)
        self._marks[request.id] = _Mark(len(request.tokens), now)
        assert request.times.dispatched is not None
        passing = record.passing(now)
        passing.begun += 1
        passing.prefill_s += now - request.times.dispatched

    def stepped(self, seats: ExecutorSeats, report: Report, now: float) -> None:
        record = self.executors[seats.name]
        if report.steps and report.epoch != record.epoch:
            # What was measured under two limits says nothing about either.
            for seat in seats.running():
                self._marks.pop(seat.request.id, None)
        record.stepped(seats, report, now)
        record.until_visit -= report.steps
        if record.until_visit <= 0:
            record.until_visit = SEGMENT_TOKENS
            for seat in seats.running():
                self._visit(seat.request, record.epoch, now)
        if any(returned.reason == "out_of_memory" for returned in report.returned):
            held = (seat.request for seat in seats.seats.values())
            self._out_of_memory[seats.name] = sum(len(r.prompt) + len(r.tokens) for r in held)

    def given_back(self, request: Request, reason: str, now: float) -> None:
        # The pause until it runs again is no step of anybody's.
        self._marks[request.id] = _Mark(len(request.tokens), None)

    def ended(self, ended: Ended, now: float) -> None:
        request, record = ended.request, self.tiers[ended.request.tier]
        if request.executor is not None:
            self._visit(request, self.executors[request.executor].epoch, now)
            self._marks.pop(request.id, None)
        if ended.outcome is Outcome.FINISHED:
            e2e_s = now - request.arrival
            target = record.targets.get("e2e")
            record.metrics["e2e"].add(e2e_s, now, epoch=request.epoch or 0, target=target)
            passing = record.passing(now)
            passing.finished += 1
            passing.new_tokens += len(request.tokens)
            itl_s = _mean_itl_s(request)
            if itl_s is not None:
                bound_s, epoch = record.targets.get("itl"), request.epoch or 0
                record.request_itl.add(itl_s, now, epoch=epoch, target=bound_s)
            first = request.times.first_token
            ttft_s = e2e_s if first is None else first - request.arrival
            passing.met += record.tier.targets.met(ttft_s=ttft_s, itl_s=itl_s or 0.0, e2e_s=e2e_s)
        elif ended.outcome in _FOR_CAPACITY and ended.reason != _REFUSED:
            began = request.times.first_token is not None
            for metric in record.targets:
                if metric == "e2e" or (metric == "ttft" and not began):
                    record.metrics[metric].lost.add(1, now)

    def _visit(self, request: Request, epoch: int, now: float) -> None:
        """Take the mean gap between the tokens since the last visit as one sample."""
        tokens, last = len(request.tokens), request.times.last_token
        mark = self._marks.get(request.id)
        if mark is None or mark.at is None or last is None:
            if last is not None and (mark is None or tokens > mark.tokens):
                self._marks[request.id] = _Mark(tokens, last)
            return
        if tokens > mark.tokens:
            record = self.tiers[request.tier]
            mean_s = max(0.0, (last - mark.at) / (tokens - mark.tokens))
            target = record.targets.get("itl")
            record.metrics["itl"].add(mean_s, now, epoch=epoch, target=target)
            mark.tokens, mark.at = tokens, last


def _mean_itl_s(request: Request) -> float | None:
    """A request's mean inter-token latency; None for a single token."""
    first, last, gaps = request.times.first_token, request.times.last_token, len(request.tokens) - 1
    return None if first is None or last is None or gaps < 1 else (last - first) / gaps
