"""Whose request is next within a tier: the client that was served least, and of its own the first.

Fairness between clients is the Virtual Token Counter (Sheng et al., OSDI 2024): each client is
charged for what it is served, a prompt token 1 and a generated token 2, and the one with the
smallest counter goes next. A client that comes (back) is lifted to the smallest counter of those
that wait, so that nobody saves up by staying away. Charged is what is expected, at dispatch, and
corrected at the end: with many requests in flight, charging token by token would come too late.
"""

from __future__ import annotations

import heapq
from bisect import insort
from itertools import islice

from controller.request import Request

PROMPT_WEIGHT = 1
NEW_WEIGHT = 2
# So many more than wait may stand in a line before it is rid of those that left.
_STALE = 64


class Line:
    """The waiting requests of one client, by `rank`, then `place`. Those that left stay where they
    stood until their turn comes: what waits here has `request.line is self`, and its rank.

    A sorted list: nearly all come at its end and go from its front, and to go through it in order
    costs nothing, where a heap of ten thousand is sifted for each.
    """

    __slots__ = ("_begin", "_entries", "counter", "order", "waiting")

    def __init__(self, order: int) -> None:
        """`order` tells lines of equal counters apart."""
        self.order = order
        self.counter = 0.0
        self.waiting = 0
        self._entries: list[tuple[float, int, Request]] = []
        # Before this index nobody waits any more.
        self._begin = 0

    def enter(self, request: Request) -> None:
        """Wait here."""
        request.line = self
        self.waiting += 1
        entry, entries = (request.rank, request.place, request), self._entries
        if not entries or entry > entries[-1]:
            entries.append(entry)
        else:
            insort(entries, entry, lo=self._begin)

    def leave(self, request: Request) -> None:
        """Wait here no more."""
        request.line = None
        self.waiting -= 1
        entries = self._entries
        if len(entries) > 2 * self.waiting + _STALE:
            del entries[: self._begin]
            self._begin = 0
            if len(entries) > 2 * self.waiting + _STALE // 2:
                # One that left and came back may stand here twice.
                kept = dict.fromkeys(entry for entry in entries if self._waits(entry))
                self._entries = list(kept)

    def everybody(self) -> list[Request]:
        """Who waits here, in no order."""
        return list({entry[2]: None for entry in self._entries if entry[2].line is self})

    def sort(self) -> None:
        """Take the ranks as they are now: they have changed."""
        self._entries = sorted((one.rank, one.place, one) for one in self.everybody())
        self._begin = 0

    def first(self) -> Request | None:
        """Who is next here."""
        entries, at = self._entries, self._begin
        while at < len(entries):
            rank, _, request = entries[at]
            if request.line is self and request.rank == rank:
                self._begin = at
                return request
            at += 1
        self._begin = at
        return None

    def firsts(self, count: int) -> list[Request]:
        """The next `count`, in order, left where they are."""
        found: list[Request] = []
        for entry in islice(self._entries, self._begin, None):
            if len(found) == count:
                break
            if self._waits(entry) and (not found or found[-1] is not entry[2]):
                found.append(entry[2])
        return found

    def _waits(self, entry: tuple[float, int, Request]) -> bool:
        """Whether an entry stands for somebody who waits here, and stands here no more than once
        but for equal ones side by side: who left and came back may have another rank."""
        return entry[2].line is self and entry[2].rank == entry[0]


class Lines:
    """The lines of all clients of a tier."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        # (counter, order of the client's coming, line); stale where the counter has moved.
        self._least: list[tuple[float, int, Line]] = []
        self._last = 0.0
        self._alone: Line | None = None

    def enter(self, request: Request) -> None:
        """A request waits in its client's line."""
        line = self._lines.get(request.client)
        if line is None:
            line = self._open(request.client)
        if not line.waiting and self._alone is None:
            least = self._first_line()
            line.counter = max(line.counter, self._last if least is None else least.counter)
            self._note(line)
        line.enter(request)

    def first(self) -> Request | None:
        """Who is next: the first of the client that was served least."""
        line = self._alone or self._first_line()
        if line is None or not line.waiting:
            return None
        return line.first()

    def firsts(self, count: int) -> list[Request]:
        """Who would be next if nobody were charged meanwhile; at most `count`."""
        if count == 1:
            first = self.first()
            return [] if first is None else [first]
        found: list[Request] = []
        for line in sorted(self.waiting(), key=lambda line: line.counter):
            found += line.firsts(count - len(found))
            if len(found) == count:
                break
        return found

    def charge(self, client: str, tokens: float) -> None:
        """Book weighted tokens on a client; negative ones correct what was booked too much."""
        line = self._lines.get(client)
        if line is None:
            return
        counter = line.counter
        if tokens > 0 and counter > self._last:
            self._last = counter
        line.counter = counter + tokens
        if self._alone is None and line.waiting:
            least = self._least
            if least and least[0][2] is line and least[0][0] == counter:
                # It had its turn: quicker than one more entry, and one that is stale.
                heapq.heapreplace(least, (line.counter, line.order, line))
            else:
                self._note(line)

    def waiting(self) -> list[Line]:
        """The lines in which anybody waits."""
        alone = self._alone
        if alone is not None:
            return [alone] if alone.waiting else []
        return [line for line in self._lines.values() if line.waiting]

    def everybody(self) -> list[Request]:
        """Who waits in any line, in no order."""
        return [request for line in self._lines.values() for request in line.everybody()]

    def sort(self) -> None:
        """Take the ranks as they are now: they have changed."""
        for line in self._lines.values():
            line.sort()

    def most_waiting(self) -> tuple[str, int]:
        """The client with most requests in its line, and how many."""
        counts = ((line.waiting, client) for client, line in self._lines.items())
        waiting, client = max(counts, default=(0, ""))
        return client, waiting

    def waiting_of(self, client: str) -> int:
        """How many requests a client has in its line."""
        line = self._lines.get(client)
        return 0 if line is None else line.waiting

    def counters(self) -> dict[str, float]:
        """Weighted tokens by client."""
        return {client: line.counter for client, line in self._lines.items()}

    def _open(self, client: str) -> Line:
        """The line of a client who was never here. While there is but one, nobody is compared."""
        line = self._lines[client] = Line(len(self._lines))
        first, self._alone = self._alone, line if len(self._lines) == 1 else None
        if first is not None:
            self._note(first)
        return line

    def _note(self, line: Line) -> None:
        if len(self._least) > 4 * len(self._lines) + 64:
            waiting = (one for one in self._lines.values() if one.waiting)
            self._least = [(one.counter, one.order, one) for one in waiting]
            heapq.heapify(self._least)
        heapq.heappush(self._least, (line.counter, line.order, line))

    def _first_line(self) -> Line | None:
        if (alone := self._alone) is not None:
            return alone if alone.waiting else None
        least = self._least
        while least:
            counter, _, line = least[0]
            if line.waiting and line.counter == counter:
                return line
            heapq.heappop(least)
        return None
