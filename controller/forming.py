"""Which requests share a batch: whoever is next takes the free seat where the least work waits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.forecast import Forecast
from controller.grouping import Company, padding
from controller.hold import Hold, Holder
from controller.ledger import ExecutorSeats
from controller.listener import Audience
from controller.pacing import Pace
from controller.plan import Dispatch, Why
from controller.preemption import Preemptor
from controller.queues import TierQueue
from controller.request import Request
from controller.scheduler import Scheduler, Turn
from controller.sparing import Sparing, can_wait_until, pause_s, would_doom
from controller.tiers import seat_cap
from executor.contract import Submit
from policies.contract import StepEstimate


@dataclass(slots=True)
class Formed:
    """What goes now, by executor, and the instants until which other batches are held."""

    submit: dict[str, list[Submit]]
    dispatches: list[Dispatch]
    held_until: list[float]


@dataclass(slots=True)
class _Batch:
    """A batch that is being formed."""

    seats: ExecutorSeats
    hold: Hold
    room: int
    members: list[Submit]
    company: Company | None
    # Of its steps; None where nothing is known, or nobody decodes beside those that are seated.
    model: StepEstimate | None
    # How much of a pause those who run can bear, least first, by the priority of whom they bear;
    # and what of it is spent already.
    slacks_s: dict[int, list[float]] = field(default_factory=dict)
    paused_s: float = 0.0

    def padding(self) -> float | None:
        """See `Dispatch`."""
        assert self.seats.capacity is not None
        if not self.seats.capacity.runs_to_completion:
            return None
        return padding([seat.booked - len(seat.request.prompt) for seat in self.seats.running()])


class Former:
    """Takes requests from the queues into free seats: late, and never more than there is room."""

    def __init__(
        self,
        queues: Mapping[str, TierQueue],
        scheduler: Scheduler,
        executors: Mapping[str, ExecutorSeats],
        *,
        forecast: Forecast,
        preemptor: Preemptor,
        paces: Mapping[str, Pace],
        holder: Holder,
        audience: Audience,
    ) -> None:
        self._queues = queues
        self._forecast = forecast
        self._preemptor = preemptor
        self._paces = paces
        self._sparing = Sparing((), forecast)
        self._holder = holder
        self._scheduler = scheduler
        self._executors = executors
        self._audience = audience
        # Executors whose seats were left free, and whose next step may let somebody take them.
        self.waiting_for_steps: set[str] = set()
        self._waits: dict[str, tuple[int, float]] = {}
        self.retier()

    def retier(self) -> None:
        """Take targets and caps as the queues' tiers have them now."""
        tiers = [queue.tier for queue in self._queues.values()]
        self._sparing.retier(tiers)
        self._capped = any(tier.max_seats is not None for tier in tiers)

    def form(self, now: float, *, draining: bool) -> Formed:
        """Fill the seats that are free, one at a time, where the least work is."""
        formed = Formed({}, [], [])
        self.waiting_for_steps.clear()
        waiting = [queue for queue in self._queues.values() if queue.waiting]
        if not waiting:
            return formed
        depth = sum(len(queue) for queue in waiting)
        oldest_s = now - min(first.arrival for q in waiting if (first := q.oldest()) is not None)
        open_ = self._open(now, formed, waiting=waiting, draining=draining)
        while open_:
            batch = self._least_work(open_, now) if len(open_) > 1 else open_[0]
            if len(batch.members) < batch.room and self._seat_next(batch, now, formed):
                continue
            open_.remove(batch)
            batch.seats.note_room(now)
            if batch.members:
                formed.submit[batch.seats.name] = batch.members
                formed.dispatches.append(_dispatch(batch, depth, waited_s=oldest_s, now=now))
        for dispatch in formed.dispatches:
            for tell in self._audience.batch:
                tell(dispatch, now)
        return formed

    def _open(
        self, now: float, formed: Formed, *, waiting: list[TierQueue], draining: bool
    ) -> list[_Batch]:
        """The executors that can take somebody now; where a hold goes on, until when."""
        batches = []
        for seats in self._executors.values():
            room = seats.note_room(now)
            if not room:
                continue
            verdict = self._holder.hold(seats, waiting, now, draining=draining)
            if verdict.until is not None and verdict.until > now:
                formed.held_until.append(verdict.until)
            else:
                batches.append(self._batch(seats, verdict, room))
        return batches

    def _least_work(self, open_: list[_Batch], now: float) -> _Batch:
        """Where the least work is; but who failed somewhere by itself goes elsewhere."""
        pick = self._scheduler.pick(now)
        shunned = None if pick is None else pick[0].shuns
        return min(open_, key=lambda b: (b.seats.name == shunned, b.seats.reserved_tokens))

    def _batch(self, seats: ExecutorSeats, verdict: Hold, room: int) -> _Batch:
        assert seats.capacity is not None
        alone = seats.capacity.runs_to_completion
        model = None if alone else self._forecast.model(seats.name)
        return _Batch(seats, verdict, room, [], self._company(seats, room), model)

    def _seat_next(self, batch: _Batch, now: float, formed: Formed) -> bool:
        seats = batch.seats
        if self._capped or seats.limits.tiers:
            pick = self._scheduler.pick(
                now, lambda tier: seats.tier_room(tier.name, seat_cap(tier, seats.limits))
            )
        else:
            pick = self._scheduler.pick(now)
        if pick is None:
            return False
        request, turn = pick
        queue = self._queues[request.tier]
        priority = queue.tier.priority
        if not seats.takes_prompt(request, priority) or (
            turn is Turn.PRIORITY
            and batch.model is not None
            and seats.seats
            and not self._is_borne(batch, request, queue, now, formed)
        ):
            self.waiting_for_steps.add(seats.name)
            return False
        if batch.company is not None:
            request = batch.company.instead_of(request, now)
        # Of those who were there at a failure half go at a time, and nobody beside them: so the one
        # that is to blame is found, and fails alone.
        if seats.trials and seats.trials >= max(1, request.suspects // 2):
            self.waiting_for_steps.add(seats.name)
            return False
        # Nobody overtakes a request that waits for memory: small ones would starve a large one.
        if not self._fits(seats, request):
            return False
        queue.take(request)
        paid = self._scheduler.charge(request, now)
        batch.members.append(seats.seat(request, priority=priority, paid=paid))
        if request.times.dispatched is None:
            request.times.dispatched = now
            if batch.hold.held:
                request.hold_s = max(0.0, now - max(request.arrival, batch.hold.since))
        for tell in self._audience.dispatched:
            tell(request, now)
        return True

    def _company(self, seats: ExecutorSeats, room: int) -> Company | None:
        """Where some have to be left behind, and a batch lasts as long as its longest member."""
        assert seats.capacity is not None
        if not seats.capacity.runs_to_completion:
            return None
        if sum(queue.waiting for queue in self._queues.values()) <= room:
            return None
        return Company(self._queues, self._forecast, room)

    def _is_borne(
        self, batch: _Batch, request: Request, queue: TierQueue, now: float, formed: Formed
    ) -> bool:
        """Whether those who decode can afford another prompt, and then another row, beside them;
        else `formed` says when to ask again."""
        seats, model, priority = batch.seats, batch.model, queue.tier.priority
        assert model is not None
        if seats.is_full_of_prompts(request, priority):
            return True
        pace, last = self._paces[seats.name], queue.is_last(request)
        if (wait_s := pace.wait_s(seats, priority, model, late=last)) > 0:
            reports, since = self._waits.get(seats.name, (-1, now))
            if reports != pace.reports:
                self._waits[seats.name] = pace.reports, now
                since = now
            # Credit comes with steps: in the middle of one there is nothing to wake up for.
            if since + wait_s > now:
                formed.held_until.append(since + wait_s)
            return False
        pause = pause_s(request, model, seats.step_tokens)
        slacks_s = batch.slacks_s.get(priority)
        if slacks_s is None:
            slacks_s = self._sparing.slacks_s(seats, priority, model, now=now)
            batch.slacks_s[priority] = slacks_s
        if slacks_s and would_doom(slacks_s, batch.paused_s, pause):
            patient_until = can_wait_until(request, queue.tier, last=last)
            if now < patient_until < math.inf:
                formed.held_until.append(patient_until)
                return False
        batch.paused_s += pause
        return self._preemptor.may_join(request, seats)

    def _fits(self, seats: ExecutorSeats, request: Request) -> bool:
        """Whether its memory suffices beside what the others will hold when they hold the most."""
        assert seats.capacity is not None
        if not seats.can_ever_hold(request):
            return False
        bounded = not seats.unbounded and request.expected_new_tokens is None
        if bounded and seats.reserved_tokens + request.work_tokens <= seats.capacity.kv_tokens:
            return True
        if not seats.seats:
            return True
        # What somebody will hold in the end changes little until somebody leaves.
        if seats.too_large is request:
            return False
        fits = self._forecast.fits(seats, request, without=frozenset())
        if fits:
            seats.too_large = None
        else:
            seats.note_too_large(request)
        return fits


def _dispatch(batch: _Batch, depth: int, *, waited_s: float, now: float) -> Dispatch:
    size = len(batch.members)
    return Dispatch(
        executor=batch.seats.name,
        size=size,
        why=Why.FULL if size == batch.room else batch.hold.why,
        depth=depth,
        oldest_s=max(0.0, waited_s),
        held_s=max(0.0, now - batch.hold.since) if batch.hold.held else 0.0,
        padding=batch.padding(),
    )
