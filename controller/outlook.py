"""Which seats are on their way back, when others become free, and which must be given up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.forecast import Forecast
from controller.ledger import ExecutorSeats, Seat


@dataclass(slots=True)
class Outlook:
    """One look over all executors. `seats` must be given up now, `look_at` is the instant at which
    to look again; what is found out on the way is kept for those who ask again."""

    executors: Mapping[str, ExecutorSeats]
    forecast: Forecast
    seats: list[tuple[ExecutorSeats, Seat]] = field(default_factory=list)
    look_at: float | None = None
    _ends: dict[str, list[int]] = field(default_factory=dict)
    _frees_s: list[float] | None = None

    def look_again(self, instant: float) -> None:
        """Look again then, or before."""
        if self.look_at is None or instant < self.look_at:
            self.look_at = instant

    def coming(self, seats: ExecutorSeats) -> int:
        """How many seats there are on their way back."""
        chosen = sum([one is seats for one, _ in self.seats])
        return len(seats.seats) - len(self._ends_of(seats)) + chosen

    def elsewhere(self, seats: ExecutorSeats) -> int:
        """For how many that wait a seat is on its way back on others than this one."""
        return sum(
            [
                max(0, self.coming(other) - surplus(other))
                for other in self.executors.values()
                if other is not seats and other.seats
            ]
        )

    def frees_in(self, number: int) -> float | None:
        """Seconds until so many seats and one more have become free by themselves, wherever; None
        where nothing is known, infinite where there are not so many."""
        if self._frees_s is None:
            frees_s: list[float] = []
            for seats in self.executors.values():
                if not seats.seats:
                    continue
                if (step_s := self.forecast.step_s(seats)) is None:
                    return None
                # Where the limit has fallen, the first seats that come back are nobody's.
                frees_s += [end * step_s for end in self._ends_of(seats)[surplus(seats) :]]
            frees_s.sort()
            self._frees_s = frees_s
        return self._frees_s[number] if number < len(self._frees_s) else math.inf

    def _ends_of(self, seats: ExecutorSeats) -> list[int]:
        ends = self._ends.get(seats.name)
        if ends is None:
            ends = self._ends[seats.name] = self.forecast.ends(seats)
        return ends


def surplus(seats: ExecutorSeats) -> int:
    """How many more run than may."""
    return max(0, len(seats.seats) - seats.size_limit)
