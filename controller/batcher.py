"""When requests go: formed late, held for company within bounds, and counted until they end.

`Batcher` is a plain object without clock, sockets or tasks: everything reaches it as a call with
`now` (monotonic seconds), everything it wants done comes back as a `Plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller.admission import Admission
from controller.book import Book
from controller.company import AllComers
from controller.errors import CapacityError, Unavailable
from controller.forecast import Estimate, Forecast
from controller.forming import Former
from controller.hold import Holder, HoldRule
from controller.ledger import ExecutorSeats, SeatState
from controller.lengths import LengthHistory
from controller.listener import Audience, Listener
from controller.pacing import Pace
from controller.places import Permit
from controller.plan import Plan
from controller.preemption import Preemptor
from controller.queues import TierQueue
from controller.request import Outcome, Request, State
from controller.returns import Returns
from controller.scheduler import Scheduler
from controller.tiers import Tier
from controller.triage import Triage
from executor.contract import Capacity, Key, Report, Submit, Tokens, Work
from policies.contract import Limits

# Timers tell milliseconds, and who is dropped does not mind one.
DROP_LATER_S = 0.001


class Batcher:
    """Tier queues, scheduler and the ledger of what runs, behind one door.

    `groups` maps each executor to its group; executors of a group share limits. `estimate` answers
    the step model of an executor as far as it is known. Every offered request ends exactly once,
    and `offered = sum(outcomes) + queued + running` always holds.
    """

    def __init__(
        self,
        tiers: Iterable[Tier],
        groups: Mapping[str, str],
        limits: Limits,
        *,
        listeners: Sequence[Listener] = (),
        estimate: Estimate = lambda executor: None,
        hold: HoldRule = "fixed",
    ) -> None:
        tiers = tuple(tiers)
        self.executors = {
            name: ExecutorSeats(name, group, limits) for name, group in groups.items()
        }
        self._lengths = {tier.name: LengthHistory() for tier in tiers}
        self.forecast = Forecast(self.executors, estimate, self._lengths)
        self.queues = {tier.name: TierQueue(tier, judge=self.forecast.need) for tier in tiers}
        self.scheduler = Scheduler(self.queues.values())
        self.admission = Admission(self.queues, self.executors, self.forecast, evict=self._evict)
        comers = AllComers(self.executors)
        self._audience = Audience((*listeners, comers))
        self.book = Book(self._audience)
        self._returns = Returns(
            self.queues, self.book, self.scheduler, lengths=self._lengths, audience=self._audience
        )
        self._paces = {name: Pace(tiers) for name in groups}
        self._preemptor = Preemptor(self.queues, self.executors, self.forecast)
        self._holder = Holder(hold, self.forecast, comers)
        self._former = Former(
            self.queues,
            self.scheduler,
            self.executors,
            forecast=self.forecast,
            preemptor=self._preemptor,
            paces=self._paces,
            holder=self._holder,
            audience=self._audience,
        )
        self._triage = Triage(tuple(self.queues.values()), self.forecast)
        self._release: dict[str, list[Key]] = {}
        # Executors that are owed a message although nothing may be for them in it: the limits.
        self._owed_answer: set[str] = set()
        # Executors that know that their steps are waited for.
        self._awaited: set[str] = set()

    # --- requests ---------------------------------------------------------------------------

    def reserve(
        self,
        tier: str,
        *,
        requests: int,
        tokens: int,
        size: int,
        now: float,
        start_by: float | None = None,
        client: str = "",
    ) -> Permit:
        """Take places in a tier's queue before costly work; `tokens` estimated, `size` in bytes,
        `start_by` the instant by which they have to begin to be of any use, `client` who asks.

        Raises QueueFull, Infeasible, Shed, NotReady, Draining: what is turned away here counts as
        rejected.
        """
        try:
            return self.admission.reserve(
                tier, requests, tokens=tokens, size=size, now=now, start_by=start_by, client=client
            )
        except (CapacityError, Unavailable) as error:
            self.book.reject(tier, requests, reason=str(error.code), now=now)
            raise

    def give_back(self, permit: Permit) -> None:
        """Return what is left of a permit."""
        self.queues[permit.tier].give_back(permit)

    def offer(self, request: Request, permit: Permit, now: float) -> None:
        """Let a request wait for a seat.

        Raises ContextLengthExceeded when no executor could ever hold it, ValueError when its id
        is in use.
        """
        if request.id in self.book.requests:
            raise ValueError(f"request id {request.id} is in use")
        self.admission.check_fits(request)
        if request.expected_new_tokens is not None:
            most = request.max_new_tokens
            known = self._lengths[request.tier].expected(0, at_most=most)
            if known is not None:
                request.expect(known)
        self.queues[request.tier].offer(request, permit)
        self.book.enter(request, now)

    def cancel(self, request_id: str, now: float, outcome: Outcome, reason: str) -> bool:
        """End a request wherever it is; False when it is unknown or over.

        It ends at once. The seat of one that runs stays taken until its executor acknowledges.
        """
        request = self.book.requests.get(request_id)
        if request is None:
            return False
        if request.state is State.QUEUED:
            self.queues[request.tier].take(request)
        else:
            seats = self.executors[str(request.executor)]
            seat = seats.find(request.id, request.attempt)
            assert seat is not None
            if seat.state is SeatState.RUNNING:
                self._release.setdefault(seats.name, []).append(seat.key)
            seat.state = SeatState.RELEASING
            self._returns.settle(seat)
        self.book.end(request, now, outcome, reason=reason)
        return True

    # --- executors --------------------------------------------------------------------------

    def on_ready(self, executor: str, incarnation: int, capacity: Capacity, now: float) -> None:
        """An executor takes work from now on."""
        seats = self.executors[executor]
        seats.incarnation, seats.back_at = incarnation, None
        seats.bound(capacity=capacity)
        self._owed_answer.add(executor)
        seats.note_room(now)

    def on_lost(
        self, executor: str, incarnation: int, now: float, *, back_at: float | None
    ) -> None:
        """An executor is gone; its requests wait again with the tokens they have.

        `back_at` is when it is expected to be ready again, None: never. When none comes back,
        every request fails.
        """
        seats = self.executors[executor]
        seats.back_at = back_at
        if incarnation >= seats.incarnation and seats.capacity is not None:
            resumes = seats.capacity.can_resume
            self._release.pop(executor, None)
            self._owed_answer.discard(executor)
            self._returns.lost(seats.clear(), now, resumes=resumes)
        if all(other.back_at is None and not other.ready for other in self.executors.values()):
            for request_id in list(self.book.requests):
                self.cancel(request_id, now, Outcome.FAILED, "executor_lost")

    def on_report(
        self, executor: str, incarnation: int, report: Report, now: float
    ) -> list[tuple[Request, list[Any]]]:
        """Book what a step did; answers the tokens to stream, in the order of the report: their
        ids, or what an engine that writes text by itself said.

        A report of an earlier incarnation, or of an attempt that was given up, changes nothing.
        """
        seats = self.executors[executor]
        if incarnation != seats.incarnation or not seats.ready:
            return []
        for tell in self._audience.stepped:
            tell(seats, report, now)
        seats.note_step(report)
        self._paces[executor].stepped(seats, report)
        if executor in self._awaited or self._former.waiting_for_steps:
            # It gives the answer a moment, so there is one, whatever it says.
            self._owed_answer.add(executor)
        streamed: list[tuple[Request, list[Any]]] = []
        for told in report.prompts:
            if (seat := seats.find(told.request_id, told.attempt)) is not None:
                seat.request.learn_prompt(told.tokens)
        for tokens in report.tokens:
            seat = seats.seats.get((tokens.request_id, tokens.attempt))
            if seat is not None and seat.state is not SeatState.RELEASING:
                if not seat.moved:
                    seats.note_moved(seat)
                    seat.request.suspects = 0
                ids = self._advance(seat.request, tokens, now)
                # Text with a hole is nobody's.
                if ids is not None and (what := tokens.said or ids):
                    streamed.append((seat.request, what))
        for tier in {request.tier for request, _ in streamed}:
            self.scheduler.progressed(tier, now)
        if report.finished or report.released or report.returned:
            self._returns.free(seats, report, now)
            self._owed_answer.add(seats.name)
        return streamed

    def set_limits(self, group: str, limits: Limits, epoch: int) -> None:
        """New limits for a group: for its next batch and step; what runs goes on."""
        for seats in self.executors.values():
            if seats.group == group:
                seats.bound(limits=limits, epoch=epoch)
                if seats.ready:
                    self._owed_answer.add(seats.name)

    def retier(self, tiers: Iterable[Tier]) -> None:
        """Put other promises and bounds of the tiers in force, for who comes from now on.

        Who waits or runs goes on as it was promised when it came: nobody loses a place, a seat or
        time. Raises ValueError where names or priorities are not those there are.
        """
        given = {tier.name: tier for tier in tiers}
        here = {name: queue.tier.priority for name, queue in self.queues.items()}
        if {name: tier.priority for name, tier in given.items()} != here:
            raise ValueError("tiers should have the names and priorities that they have")
        running: dict[str, list[Request]] = {name: [] for name in given}
        for request in self.book.requests.values():
            if request.state is State.RUNNING:
                running[request.tier].append(request)
        for name, tier in given.items():
            if tier != self.queues[name].tier:
                self.queues[name].retier(tier, running[name])
        self.scheduler.retier()
        self.admission.retier()
        self._preemptor.retier()
        self._former.retier()
        for pace in self._paces.values():
            pace.retier(given.values())

    def hold_by(self, rule: HoldRule) -> None:
        """Hold for company by another rule, from the next look on."""
        self._holder.rule = rule

    def drain(self) -> None:
        """Take nothing new, and hold nothing for company any more."""
        self.admission.draining = True

    # --- the plan ---------------------------------------------------------------------------

    def poll(self, now: float) -> Plan:
        """Expire, dispatch, and answer what is to be done."""
        waiting = [queue for queue in self.queues.values() if queue.waiting]
        self._expire(waiting, now)
        self.scheduler.note_waiting(now)
        formed = self._former.form(now, draining=self.admission.draining)
        look_at = self._preempt(now) if waiting else None
        release, self._release = self._release, {}
        awaited = self._former.waiting_for_steps
        told = {*formed.submit, *release, *self._owed_answer, *(awaited - self._awaited)}
        self._owed_answer.clear()
        self._awaited = (self._awaited - told) | (awaited & told)
        work = {
            name: self._work(name, formed.submit.get(name, []), release.get(name, []))
            for name in told
        }
        bounds = [*formed.held_until, look_at, self.book.next_finish()]
        for queue in waiting:
            bounds.append(queue.next_deadline())
            # Late is who has passed it, so it is looked at just after.
            if queue.tier.late == "drop" and (drop_at := queue.next_drop()) is not None:
                bounds.append(max(drop_at, now) + DROP_LATER_S)
        wake_at = min((bound for bound in bounds if bound is not None), default=None)
        return Plan(work, self.book.take_ended(), tuple(formed.dispatches), wake_at)

    def has_news(self) -> bool:
        """Whether a poll would have more to say than the one before, time aside."""
        return bool(self._owed_answer or self._release or self.book.has_ended())

    def queued(self) -> int:
        """How many requests wait, over all tiers."""
        return sum(len(queue) for queue in self.queues.values())

    def running(self) -> int:
        """How many requests have a seat and go on."""
        return len(self.book.requests) - self.queued()

    # --- inside -----------------------------------------------------------------------------

    def _advance(self, request: Request, tokens: Tokens, now: float) -> list[int] | None:
        """Append what is new; what was sent before (`index` below) is not. None: some are missing,
        and the request has ended."""
        known = len(request.tokens) - tokens.index
        if known < 0:
            # Text with a hole must never come to a clean end.
            self.cancel(request.id, now, Outcome.FAILED, "tokens_missing")
            return None
        ids = tokens.ids[known:] if known else tokens.ids
        if not ids:
            return []
        request.tokens += ids
        times = request.times
        previous, times.last_token = times.last_token, now
        if previous is None:
            times.first_token = now
            for tell in self._audience.first_token:
                tell(request, now)
        return ids

    def _expire(self, waiting: list[TierQueue], now: float) -> None:
        for queue in waiting:
            for request in queue.expired(now):
                self.cancel(request.id, now, Outcome.EXPIRED, "start_by")
            queue.too_late(now)
            if queue.tier.late == "drop":
                for request in queue.dropped(now):
                    self.cancel(request.id, now, Outcome.EXPIRED, "late")
        self._triage.look(now)
        for request in self.book.overdue(now):
            self.cancel(request.id, now, Outcome.EXPIRED, "finish_by")

    def _evict(self, request: Request, now: float) -> None:
        self.cancel(request.id, now, Outcome.REJECTED, "evicted")

    def _preempt(self, now: float) -> float | None:
        """Ask for the seats that higher tiers need now; answers when to look again."""
        verdict = self._preemptor.look(now)
        for seats, seat in verdict.seats:
            seat.state = SeatState.RETURNING
            self._release.setdefault(seats.name, []).append(seat.key)
        return verdict.look_at

    def _work(self, name: str, submit: list[Submit], release: list[Key]) -> Work:
        seats = self.executors[name]
        wait = name in self._awaited
        return Work(seats.epoch, seats.step_tokens, submit, release, wait)
