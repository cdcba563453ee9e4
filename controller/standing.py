"""Which executors are given work: one that fails is taken out, and probed back in.

An executor that fails at once has always the least work, and would draw everybody to it. After
`OUT_AFTER` failed steps in a row it gets nothing for a while that doubles with each further one;
then one request at a time, until a token comes. So it is with one whose process is back from the
dead. None of this holds where nobody else is there: then it is the best there is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from controller.ledger import ExecutorSeats
from controller.listener import Listener
from controller.request import Request
from executor.contract import Report

# Fewer than the faults of which a request dies: nobody dies of an executor that is the only sick
# one. One failure may be the fault of who was there.
OUT_AFTER = 2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
# What was preempted, or can never run there, is given back by an executor that is well.
_FAILURES = ("error", "out_of_memory")


@dataclass(slots=True)
class Standing:
    """Of one executor: its `failures` in a row, with no token since the first, and the instant
    until which it gets nothing."""

    failures: int = 0
    out_until: float = -math.inf

    @property
    def is_good(self) -> bool:
        """Whether it may have as many as there is room for."""
        return self.failures < OUT_AFTER

    def fail(self, now: float) -> None:
        """A step failed."""
        self.failures += 1
        if not self.is_good:
            doubled = min(self.failures - OUT_AFTER, 30)
            self.out_until = now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**doubled)


class Standings(Listener):
    """Hears of every step, and says who may go where."""

    def __init__(self, executors: Mapping[str, ExecutorSeats]) -> None:
        self._executors = executors
        self.of = {name: Standing() for name in executors}

    def stepped(self, seats: ExecutorSeats, report: Report, now: float) -> None:
        standing = self.of[seats.name]
        if report.tokens or report.finished:
            standing.failures = 0
        elif any(back.reason in _FAILURES and not back.fatal for back in report.returned):
            standing.fail(now)

    def lost(self, executor: str) -> None:
        """Its process is gone with what it held; when it is back it has to prove itself."""
        standing = self.of[executor]
        standing.failures = max(OUT_AFTER, standing.failures + 1)

    def room(self, seats: ExecutorSeats, room: int, now: float) -> tuple[int, float | None]:
        """How many of `room` it may be given; where that may be more later on, from when."""
        standing = self.of[seats.name]
        if standing.is_good or not self.others(seats):
            return room, None
        if now < standing.out_until:
            return 0, standing.out_until
        return max(0, min(room, 1 - len(seats.seats))), None

    def shuns(self, request: Request, seats: ExecutorSeats) -> bool:
        """Whether a request that failed there goes elsewhere, while it is in doubt."""
        if not request.faults or request.executor != seats.name or not self.of[seats.name].failures:
            return False
        return any(other.can_ever_hold(request) for other in self.others(seats))

    def notes(self) -> list[str]:
        """What an operator should know of those that are taken out."""
        return [
            f"executor '{name}' failed {self.of[name].failures} times in a row: others have its "
            "work, and it gets one request now and then"
            for name, seats in self._executors.items()
            if seats.ready and not self.of[name].is_good and self.others(seats)
        ]

    def others(self, seats: ExecutorSeats) -> list[ExecutorSeats]:
        """Those beside this one that are ready and well."""
        return [
            other
            for name, other in self._executors.items()
            if other is not seats and other.ready and self.of[name].is_good
        ]
