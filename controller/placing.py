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


class Placing:
    """Compares executors by what a request takes there, the work that is there included."""

    def __init__(self, forecast: Forecast, standings: Standings) -> None:
        self._forecast = forecast
        self._standings = standings

    def best(self, seats: Sequence[ExecutorSeats], request: Request) -> int:
        """Which of these, by its index, a request should take a seat of."""
        delays = [self._forecast.delay_s(one, request) for one in seats]
        # Of what nobody knows anything, something is to be learnt: then tokens alone count.
        known = None not in delays

        def cost(index: int) -> tuple[bool, bool, float, int]:
            one, delay_s = seats[index], delays[index]
            return (
                not one.can_ever_hold(request),
                self._standings.shuns(request, one),
                delay_s if known and delay_s is not None else 0.0,
                one.reserved_tokens,
            )

        return min(range(len(seats)), key=cost)

    def next_that_fits(
        self, seats: ExecutorSeats, queue: TierQueue, head: Request
    ) -> Request | None:
        """Who of a tier goes to an executor: its head, unless that needs one with more memory, for
        which those behind it need not wait."""
        if seats.can_ever_hold(head):
            return head
        return next((one for one in queue.firsts(LOOK_PAST) if seats.can_ever_hold(one)), None)
