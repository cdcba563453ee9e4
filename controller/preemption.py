"""Who has to give up a seat so that a higher tier keeps its promise, and when.

Only a strictly lower tier makes room, and only where the one that waits would otherwise miss its
time to first token, or decode beyond its inter-token target beside those that run. A victim keeps
its arrival, tokens and place, loses its seat three times at most, and not within `SETTLE_TOKENS` of
coming back; of its tier, as many go on as its `min_share` of the seats. Where an executor cannot
resume, only who has sent nothing loses a seat, once, and only where his tier allows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

from controller.forecast import Forecast
from controller.ledger import ExecutorSeats, Seat, SeatState
from controller.queues import TierQueue
from controller.request import Request
from controller.tiers import Tier, seat_cap

# Seconds until a request has what it lacks, where nobody makes room for it.
Wait = Callable[[], float | None]

MAX_PREEMPTIONS = 3
SETTLE_TOKENS = 32
# What becomes free by itself is waited for while that is thought to take no more than this part of
# the time that is left: predictions err.
PATIENCE = 0.5
# Nobody joins who would bring a step closer than this to the target of a higher tier: else the next
# token would send him away again.
JOIN_BELOW = 0.95
# Nobody looks again sooner than a timer can tell.
LEAST_LOOK_S = 0.001
# The step under way, and the one whose report says that the seat is free.
HANDOVER_STEPS = 2


@dataclass(slots=True)
class Verdict:
    """Seats that must be given up now, and the instant at which to look again; `ends` are what was
    found out on the way, by executor."""

    seats: list[tuple[ExecutorSeats, Seat]] = field(default_factory=list)
    look_at: float | None = None
    ends: dict[str, list[int]] = field(default_factory=dict)

    def look_again(self, instant: float) -> None:
        """Look again then, or before."""
        if self.look_at is None or instant < self.look_at:
            self.look_at = instant


class Preemptor:
    """Looks at who still waits after all free seats were given away."""

    def __init__(
        self,
        queues: Mapping[str, TierQueue],
        executors: Mapping[str, ExecutorSeats],
        forecast: Forecast,
    ) -> None:
        # Highest first; nobody is below the last one.
        self._queues = sorted(queues.values(), key=lambda queue: -queue.tier.priority)
        self._queues_by_name = queues
        self._ranks = {queue.tier.name: queue.tier.priority for queue in self._queues}
        self._executors = executors
        self._forecast = forecast
        # By tier and executor: until when this head of the queue can wait.
        self._patient: dict[tuple[str, str], tuple[Request, float]] = {}
        self.retier()

    def retier(self) -> None:
        """Take shares and targets as the queues' tiers have them now."""
        self._tiers = {queue.tier.name: queue.tier for queue in self._queues}
        self._restarts = {name for name, tier in self._tiers.items() if tier.restart_unstreamed}
        self._paced = [
            (tier.priority, name, tier.targets.itl_s)
            for name, tier in self._tiers.items()
            if tier.targets.itl_s is not None
        ]
        self._patient.clear()

    def look(self, now: float) -> Verdict:
        """Who has to go. The seats are not touched."""
        verdict = Verdict()
        for seats in self._executors.values():
            resumes = _resumes(seats)
            if not resumes and not (self._restarts and _aborts(seats)):
                continue
            lowest = min([self._ranks[n] for n, some in seats.by_tier.items() if some], default=0)
            for queue in self._queues[:-1]:
                if queue.tier.priority > lowest:
                    self._make_room(queue, seats, verdict, now=now)
                    # Those who have sent nothing yet make nobody's step longer.
                    if resumes:
                        self._relieve(queue.tier, seats, verdict)
        return verdict

    def may_join(self, request: Request, seats: ExecutorSeats) -> bool:
        """Whether those of higher tiers that run there keep their inter-token targets beside it."""
        priority, bound_s = self._ranks[request.tier], math.inf
        for rank, name, itl_s in self._paced:
            if rank > priority and itl_s < bound_s and seats.by_tier.get(name):
                bound_s = itl_s
        if bound_s == math.inf:
            return True
        context = len(request.prompt) + len(request.tokens)
        step_s = self._forecast.step_s(seats, 1, context=context)
        return step_s is None or step_s <= JOIN_BELOW * bound_s

    def _make_room(
        self, queue: TierQueue, seats: ExecutorSeats, verdict: Verdict, *, now: float
    ) -> None:
        """For each that waits and would be late: the next free seat, or a victim's."""
        head = queue.head()
        if head is None or head.due == math.inf:
            return
        if not seats.tier_room(queue.tier.name, seat_cap(queue.tier, seats.limits)):
            # Another's seat would be of no use to a tier that has all of its own.
            return
        patient = self._patient.get((queue.tier.name, seats.name))
        if patient is not None and patient[0] is head and now < patient[1]:
            verdict.look_again(patient[1])
            return
        if not seats.room():
            self._take_seats(queue, seats, verdict, now=now)
        elif seats.too_large is head:
            # There are seats, and what it lacks is memory.
            wait_s = partial(self._forecast.memory_s, seats, head)
            if self._is_urgent(head, seats, wait_s, verdict=verdict, now=now):
                victims = self._victims(seats, queue.tier, verdict)
                verdict.seats += [(seats, seat) for seat in self._for_memory(head, seats, victims)]

    def _take_seats(
        self, queue: TierQueue, seats: ExecutorSeats, verdict: Verdict, *, now: float
    ) -> None:
        """A victim's seat for each that would be late. Those at the front have the seats that are
        on their way back, the others wait for the next ones that become free by themselves."""
        ends = verdict.ends.get(seats.name)
        if ends is None:
            ends = verdict.ends[seats.name] = self._forecast.ends(seats)
        coming = len(seats.seats) - len(ends) + sum([one is seats for one, _ in verdict.seats])
        surplus = max(0, len(seats.seats) - seats.size_limit)
        step_s = self._forecast.step_s(seats)

        def wait_s(number: int) -> float | None:
            at = surplus + number - 1
            return None if step_s is None else ends[at] * step_s if at < len(ends) else math.inf

        # Where the limit has fallen, the first seats that come back are nobody's.
        number = max(0, coming - surplus)
        waiting, victims, chosen = queue.firsts(number + 1), None, 0
        while number < len(waiting):
            wait = partial(wait_s, number + 1)
            if not self._is_urgent(waiting[number], seats, wait, verdict=verdict, now=now):
                return
            if victims is None:
                victims = self._victims(seats, queue.tier, verdict)
                waiting = queue.firsts(max(0, coming + len(victims) - surplus))
            needed = surplus + number + 1 - coming
            if number >= len(waiting):
                return
            verdict.seats += [(seats, seat) for seat in victims[chosen:needed]]
            chosen, number = needed, number + 1

    def _is_urgent(
        self,
        request: Request,
        seats: ExecutorSeats,
        wait: Wait,
        *,
        verdict: Verdict,
        now: float,
    ) -> bool:
        """Whether a request that waits would be late if it waited for what it lacks; where it can
        still wait, `verdict` says until when."""
        if request.tokens or not now <= request.due < math.inf:
            return False
        wait_s, step_s = wait(), self._forecast.step_s(seats)
        if wait_s is None or step_s is None:
            return True
        last_call = request.due - HANDOVER_STEPS * step_s - wait_s / PATIENCE
        if now > last_call:
            return True
        look_at = max(last_call, now + max(step_s, LEAST_LOOK_S))
        if request is self._queues_by_name[request.tier].head():
            self._patient[request.tier, seats.name] = (request, look_at)
        verdict.look_again(look_at)
        return False

    def _relieve(self, tier: Tier, seats: ExecutorSeats, verdict: Verdict) -> None:
        """Send away as many of lower tiers as make the step short enough for those who run of this
        one, if that can be had."""
        itl_s, rows = tier.targets.itl_s, len(seats.seats)
        model = self._forecast.model(seats.name)
        if itl_s is None or model is None or not seats.by_tier.get(tier.name):
            return
        # Nearly always: those who go only make it shorter.
        if model.predict(rows, seats.context_tokens) <= itl_s:
            return
        going = sum([seat.state is not SeatState.RUNNING for seat in seats.seats.values()])
        going += sum([one is seats for one, _ in verdict.seats])
        mean = seats.context_tokens / rows
        if model.predict(rows - going, mean * (rows - going)) <= itl_s:
            return
        victims = self._victims(seats, tier, verdict)
        for count in range(1, len(victims) + 1):
            left = rows - going - count
            if model.predict(left, mean * left) <= itl_s:
                verdict.seats += [(seats, seat) for seat in victims[:count]]
                return

    def _victims(self, seats: ExecutorSeats, tier: Tier, verdict: Verdict) -> list[Seat]:
        """Who may be sent away for this tier: the lowest tier first, then who loses least."""
        taken = {id(seat) for _, seat in verdict.seats}
        ranks, priority, resumes = self._ranks, tier.priority, _resumes(seats)
        going_on: dict[str, int] = {}
        able = []
        for seat in seats.seats.values():
            request = seat.request
            name = request.tier
            if ranks[name] >= priority or seat.state is not SeatState.RUNNING:
                continue
            going_on[name] = going_on.get(name, 0) + 1
            begun = request.tokens and not request.unseen
            if not resumes and (begun or name not in self._restarts):
                continue
            if _may_go(seat) and id(seat) not in taken:
                able.append((ranks[name], len(request.prompt) + len(request.tokens), seat))
        able.sort(key=itemgetter(0, 1))
        chosen = []
        for _, _, seat in able:
            name = seat.request.tier
            if going_on[name] > int(self._tiers[name].min_share * seats.size_limit):
                going_on[name] -= 1
                chosen.append(seat)
        return chosen

    def _for_memory(
        self, request: Request, seats: ExecutorSeats, victims: Sequence[Seat]
    ) -> list[Seat]:
        """The fewest victims whose memory, beside what is on its way back, makes the request fit;
        none where even all of them would not do."""
        without = {
            (seat.request.id, seat.attempt)
            for seat in seats.seats.values()
            if seat.state is not SeatState.RUNNING
        }
        for count in range(len(victims) + 1):
            if count:
                without.add((victims[count - 1].request.id, victims[count - 1].attempt))
            if self._forecast.fits(seats, request, without=without):
                return list(victims[:count])
        return []


def _resumes(seats: ExecutorSeats) -> bool:
    """Whether it can let somebody go and take him up again later."""
    capacity = seats.capacity
    return (
        capacity is not None
        and capacity.can_preempt
        and capacity.can_resume
        and not capacity.runs_to_completion
    )


def _aborts(seats: ExecutorSeats) -> bool:
    """Whether a seat there is free at once when its request is let go."""
    return seats.capacity is not None and not seats.capacity.runs_to_completion


def _may_go(seat: Seat) -> bool:
    request = seat.request
    if not request.preemptions:
        return True
    if request.preemptions >= MAX_PREEMPTIONS:
        return False
    return len(request.tokens) - seat.began >= SETTLE_TOKENS
