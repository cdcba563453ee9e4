"""On which of several executors whoever is next goes: where it will be done first."""

from __future__ import annotations

from collections.abc import Sequence

from controller.forecast import Forecast
from controller.ledger import ExecutorSeats
from controller.queues import TierQueue
from controller.request import Request
from controller.standing import Standings

# So many that are too long for an executor are passed for one that is not: as far as it may matter
# in which order they came.
LOOK_PAST = 32
# Models err: among those where it takes hardly longer than at the best one, the least work counts.
ALIKE = 1.1


class Placing:
    """Compares executors by what a request takes there, the work that is there included."""

    def __init__(self, forecast: Forecast, standings: Standings) -> None:
        self._forecast = forecast
        self._standings = standings

    def best(self, seats: Sequence[ExecutorSeats], request: Request) -> int:
        """Which of these, by its index, a request should take a seat of."""
        able = self._able(seats, request)
        delays = {index: self._forecast.delay_s(seats[index], request) for index in able}
        known = [delay_s for delay_s in delays.values() if delay_s is not None]
        # Of what nobody knows anything, something is to be learnt: then tokens alone count.
        if len(known) == len(able):
            bound_s = ALIKE * min(known)
            able = [index for index in able if (delays[index] or 0.0) <= bound_s]
        return min(able, key=lambda index: seats[index].reserved_tokens)

    def _able(self, seats: Sequence[ExecutorSeats], request: Request) -> list[int]:
        """Those that could hold it and at which it did not fail; where there are none, all."""
        holding = [i for i, one in enumerate(seats) if one.can_ever_hold(request)]
        good = [
            i
            for i in holding
            if request.shuns != seats[i].name and not self._standings.shuns(request, seats[i])
        ]
        return good or holding or list(range(len(seats)))

    def next_that_fits(
        self, seats: ExecutorSeats, queue: TierQueue, head: Request
    ) -> Request | None:
        """Who of a tier goes to an executor: its head, unless that needs one with more memory, for
        which those behind it need not wait."""
        if seats.can_ever_hold(head):
            return head
        return next((one for one in queue.firsts(LOOK_PAST) if seats.can_ever_hold(one)), None)

    def waits_until(self, seats: ExecutorSeats, queue: TierQueue, now: float) -> float | None:
        """Until when a tier waits for another executor, since on this one not even a row that is
        alone has its tokens as soon as is promised; None: it does not. Who has to begin begins
        there after all."""
        itl_s, head = queue.tier.targets.itl_s, queue.head()
        if itl_s is None or head is None or head.due <= now or not self._is_slow(seats, itl_s):
            return None
        others = self._standings.others(seats)
        return head.due if any(not self._is_slow(one, itl_s) for one in others) else None

    def _is_slow(self, seats: ExecutorSeats, itl_s: float) -> bool:
        model = self._forecast.model(seats.name)
        return model is not None and model.predict(1, 0) > itl_s
