"""How much company still comes: arrivals counted from the instants at which an executor was ready.

Nothing is learnt from whether anything was held: arrivals are counted for as long as the curves
reach, whether the batch had gone by then or not. So there is nothing that has to be tried out.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

from controller.ledger import ExecutorSeats
from controller.listener import Listener
from controller.request import Request
from executor.contract import Report

# Seconds after the instant. The shortest is what a timer keeps, the longest what a person feels.
POINTS_S = (0.001, 0.002, 0.005, 0.010, 0.020, 0.040, 0.080, 0.160)
REACH_S = POINTS_S[-1]
_SIZE = len(POINTS_S)
# So many batches, or starts, later what was seen counts half.
HALF_LIFE_BATCHES = 16.0
HALF_LIFE_STARTS = 32.0
# After a pause of more than so many usual ones, what was before is over.
LONG_GAPS = 5.0
_GAP_MEMORY = 0.75
# Nobody is waited for before company came to this many starts: one burst is chance.
LEAST_MET = 1.5
# A run of lone starts that was less likely than this, by what was seen before, ends the waiting.
LEAST_CHANCE = 0.05


# Who may be expected: seconds from now, how many until then, and how many after that and before the
# batch would be done. A plain tuple: many are made while a batch waits.
Outlook = tuple[float, float, float]


class _Window:
    """Arrivals since `at`, by the interval between two points in which they came. `units` is what
    they are counted against."""

    __slots__ = ("at", "came", "count", "units")

    def __init__(self, at: float, units: int) -> None:
        self.at, self.units, self.count = at, units, 0
        self.came = [0] * (_SIZE + 1)

    def note(self, now: float) -> None:
        self.count += 1
        self.came[bisect_left(POINTS_S, now - self.at)] += 1


class Curve:
    """Arrivals within each of `POINTS_S` after an instant, per unit: means over windows, of which
    the older ones count less. Bounded: numbers per point."""

    def __init__(self) -> None:
        self._came = [0.0] * _SIZE
        self._units = [0.0] * _SIZE
        self._mean = [0.0] * _SIZE
        self._met = [0.0] * _SIZE
        self._chance = [1.0] * _SIZE
        self._promises = [False] * _SIZE
        self._all_came = 0.0
        self._all_units = 0.0

    def learn(self, window: _Window, until: float) -> None:
        """Take in a window as far as it reached by `until`, when the batch was done."""
        self._all_came += window.count
        self._all_units += window.units
        reached = bisect_left(POINTS_S, until - window.at)
        for index, total in enumerate(accumulate(window.came[:reached])):
            met, units = self._met[index], self._units[index]
            # The half keeps what was seen a few times from being held for certain.
            self._chance[index] = 1.0 if total else self._chance[index] * (1 - met / (units + 0.5))
            self._came[index] += total
            self._units[index] += window.units
            self._met[index] += total > 0
        # The far points are seen less often, and still nobody who has come goes away.
        means = (c / u if u else 0.0 for c, u in zip(self._came, self._units, strict=True))
        self._mean = list(accumulate(means, max))
        self._promises = [
            met >= LEAST_MET and chance >= LEAST_CHANCE
            for met, chance in zip(self._met, self._chance, strict=True)
        ]

    def forget(self, keep: float) -> None:
        """Let all that was seen count `keep` (0..1) of what it did."""
        self._came = [value * keep for value in self._came]
        self._units = [value * keep for value in self._units]
        self._met = [value * keep for value in self._met]
        self._all_came *= keep
        self._all_units *= keep

    def outlooks(self, elapsed_s: float, most_s: float, *, left: int | None) -> list[Outlook]:
        """Who may be expected at each point from `elapsed_s` to `most_s` after the instant.

        The means are lowered by one standard deviation of a Poisson count. `left` is how many of
        the units have not come yet, each of whom comes by itself; None: a unit is a start, of
        which many have to have met with company, and not many lately without.
        """
        found: list[Outlook] = []
        if not self._all_units:
            return found
        gone = before = self._at(elapsed_s)
        total = self._all_came / self._all_units
        first, end = bisect_right(POINTS_S, elapsed_s), bisect_left(POINTS_S, most_s)
        for index in range(first, min(end + 1, _SIZE)):
            x, mean, units = POINTS_S[index], self._mean[index], self._units[index]
            if index == end:
                x, mean = most_s, self._at(most_s)
            more = mean - gone
            if mean == before or more * units <= 1 or (left is None and not self._promises[index]):
                continue
            before = mean
            surely, later = more - math.sqrt(more / units), max(0.0, total - mean)
            if left is not None:
                # None of those who have come is among those who still do.
                each = left / max(1.0 - gone, more)
                surely, later = surely * each, later * each
            found.append((x - elapsed_s, surely, later))
        return found

    def _at(self, x: float) -> float:
        """The mean at any point: straight lines between the points, from nothing at 0."""
        index = bisect_left(POINTS_S, x)
        if index == _SIZE:
            return self._mean[-1]
        low, before = (POINTS_S[index - 1], self._mean[index - 1]) if index else (0.0, 0.0)
        return before + (self._mean[index] - before) * (x - low) / (POINTS_S[index] - low)


class Comers:
    """What is learnt for one executor: who comes back, and who follows on a start from rest.

    *Back*: arrivals after a batch left the executor free, per member of the batch; with clients
    who wait for their answers it is they who come. *Start*: arrivals after one that found the
    executor at rest.
    """

    def __init__(self) -> None:
        self._back = Curve()
        self._start = Curve()
        self._left = _Window(-math.inf, 0)
        self._begun: _Window | None = None
        self._begun_at: float | None = None
        self._gap_s: float | None = None
        self._over = False
        self.held_since: float | None = None

    def batch_over(self, members: int, now: float) -> None:
        """A batch ended and left the executor free; `members` were in it to the last."""
        if self._left.units:
            self._back.forget(0.5 ** (1 / HALF_LIFE_BATCHES))
            self._back.learn(self._left, now)
        self._left = _Window(now, members)
        self._close_start(now)

    def ready(self, since: float) -> None:
        """An arrival at `since` found the executor free; told again, it changes nothing."""
        # Soon after a batch its members come back, who are counted there.
        if since == self._begun_at or since <= self._left.at + REACH_S:
            return
        self._close_start(since)
        if self._begun_at is not None:
            gap_s = since - self._begun_at
            usual_s = gap_s if self._gap_s is None else self._gap_s
            self._over = gap_s > LONG_GAPS * usual_s
            self._gap_s = _GAP_MEMORY * usual_s + (1 - _GAP_MEMORY) * gap_s
        self._begun, self._begun_at = _Window(since, 1), since

    def arrived(self, now: float) -> None:
        """Somebody came."""
        self._left.note(now)
        if self._begun is not None:
            self._begun.note(now)

    def coming_back(self, now: float, most_s: float) -> tuple[float, list[Outlook]]:
        """Seconds since the last batch, and who of its members may be expected when, waiting
        `most_s` seconds at most."""
        window = self._left
        left, elapsed_s = window.units - window.count, now - window.at
        if left <= 0 or elapsed_s >= REACH_S:
            return elapsed_s, []
        return elapsed_s, self._back.outlooks(elapsed_s, elapsed_s + most_s, left=left)

    def following(self, since: float, now: float, most_s: float) -> list[Outlook]:
        """Who may be expected to follow on one that came at `since` and found nobody."""
        if self._over or now - since >= REACH_S:
            return []
        return self._start.outlooks(now - since, now - since + most_s, left=None)

    def _close_start(self, now: float) -> None:
        if self._begun is not None:
            self._start.forget(0.5 ** (1 / HALF_LIFE_STARTS))
            self._start.learn(self._begun, now)
            self._begun = None


class AllComers(Listener):
    """What is learnt for each executor. Whoever arrives may join any of them."""

    def __init__(self, executors: Iterable[str]) -> None:
        self.of = {name: Comers() for name in executors}
        self._all = tuple(self.of.values())

    def offered(self, request: Request, now: float) -> None:
        for comers in self._all:
            comers.arrived(now)

    def stepped(self, seats: ExecutorSeats, report: Report, now: float) -> None:
        if not report.finished or seats.capacity is None or not seats.capacity.runs_to_completion:
            return
        leaving = len(report.finished) + len(report.released) + len(report.returned)
        if leaving >= len(seats.seats):
            self.of[seats.name].batch_over(len(report.finished), now)
