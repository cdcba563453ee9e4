"""The waiting room of one tier: in which order requests wait, who is late, who expires."""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from controller.door import Door
from controller.lines import Line, Lines
from controller.places import Permit, Places
from controller.promises import NOTHING_KNOWN, Judge, appoint, order_anew
from controller.request import Request, State
from controller.tiers import Tier


class TierQueue(Door):
    """Requests of one tier that wait, and the places that are reserved for some to come.

    In order of their clients' turns (`controller.lines`) and of their ranks; who can no longer meet
    the targets waits behind all others, oldest first. Its bounds are those of the `Door`.
    `judge` says how long a request will take.
    """

    def __init__(self, tier: Tier, *, judge: Judge = lambda request: NOTHING_KNOWN) -> None:
        super().__init__(tier)
        self.lines = Lines()
        self._judge = judge
        self._places = count()
        self._late = Line(0)
        # Where the earliest deadline goes first, who is late stands in front.
        self._by_due = tier.order == "edf"
        self._none_late_until = -math.inf
        self._none_dropped_until = math.inf
        # Who goes next, as far as that was asked since anything changed.
        self._head: Request | None = None
        self._dues: list[tuple[float, int, Request]] = []
        self._deadlines: list[tuple[float, int, Request]] = []
        self._arrivals: deque[Request] = deque()
        # How many have left since the heaps were last rid of those who left.
        self._gone = 0

    def retier(self, tier: Tier, running: Sequence[Request]) -> None:
        """Put other bounds and promises of the tier in force; `running` are its requests elsewhere.

        Nobody loses a place, whatever the bounds. When somebody is due, and by when they expire,
        stays as it was when they came. In another order, those who are there are sorted anew.
        """
        old, self.tier = self.tier, tier
        there = self.lines.everybody()
        if tier.order != old.order:
            for request in (*there, *running):
                order_anew(request, tier, self._judge(request))
            self.lines.sort()
        same_kind = (tier.targets.start_s is None) == (old.targets.start_s is None)
        # Who came before may be due in another order than they stand in: only a heap knows then.
        alike = (self._by_due and same_kind) or not (there or running)
        self._by_due = tier.order == "edf" and alike
        self._dues = []
        if not self._by_due:
            self._dues = [(one.due, one.place, one) for one in there if one.due < math.inf]
            heapq.heapify(self._dues)
        self._none_late_until = -math.inf
        self._head = None

    def of_the_greediest(self, client: str, over: Places) -> list[Request]:
        """The newest of the client who has most waiting here, as many as free so many places; none
        where that is the one who asks, or has hardly more (McKenney's buffer stealing, 1990)."""
        greediest, waiting = self.lines.most_waiting()
        if greediest == client or waiting <= self.lines.waiting_of(client) + 1:
            return []
        freed, victims = Places(0, 0, 0), []
        for request in self.newest_first():
            if request.client == greediest:
                victims.append(request)
                freed = freed.plus(self.places_of(request))
                if freed.cover(over):
                    return victims
        return []

    # --- who waits --------------------------------------------------------------------------

    def offer(self, request: Request, permit: Permit) -> None:
        """Let a request wait, in exchange for one place of its permit."""
        request.size = self.let_in(permit)
        request.place = next(self._places)
        appoint(request, self.tier, self._judge(request))
        self._enter(request)

    def put_back(self, request: Request) -> None:
        """Let a request wait again that an executor gave back, at the place that it had."""
        self._enter(request)

    def head(self) -> Request | None:
        """Who goes next in this tier, left where it is."""
        head = self._head
        if head is None or head.line is None:
            head = self._head = self.lines.first() or self._late.first()
        return head

    def charge(self, client: str, tokens: float) -> None:
        """Book weighted tokens on a client, which may change whose turn it is."""
        self.lines.charge(client, tokens)
        self._head = None

    def firsts(self, count: int) -> list[Request]:
        """The next `count` in order, left where they are."""
        found = self.lines.firsts(count)
        return found if len(found) == count else found + self._late.firsts(count - len(found))

    def take(self, request: Request) -> None:
        """Remove a request: it is dispatched, or it ended where it waited."""
        line = request.line
        assert isinstance(line, Line)
        line.leave(request)
        self.waiting -= 1
        self.tokens -= request.work_tokens
        self.prompts -= len(request.prompt)
        if request.size:
            self.size -= request.size
            request.size = 0
        arrivals = self._arrivals
        while arrivals and arrivals[0].line is None:
            arrivals.popleft()
        self._gone += 1
        if self._gone > self.waiting + 64:
            self._compact()

    # --- time -------------------------------------------------------------------------------

    def expired(self, now: float) -> list[Request]:
        """Those whose `start_by` has come, still in the queue."""
        due = []
        while (request := _first(self._deadlines)) is not None:
            if request.start_by is None or request.start_by > now:
                break
            heapq.heappop(self._deadlines)
            # What has begun has met its start: only its end can still be late.
            if not request.tokens:
                due.append(request)
        return due

    def next_deadline(self) -> float | None:
        """The earliest `start_by` of those that wait."""
        first = _first(self._deadlines)
        return None if first is None else first.start_by

    def too_late(self, now: float) -> list[Request]:
        """Those that can no longer meet the targets since lately: behind all others now, still in
        the queue."""
        late: list[Request] = []
        if now <= self._none_late_until:
            return late
        if self._by_due:
            earliest = math.inf
            for line in self.lines.waiting():
                while (head := line.first()) is not None and head.due < now and not head.tokens:
                    line.leave(head)
                    late.append(head)
                if head is not None:
                    earliest = min(earliest, max(now, head.due))
            self._none_late_until = earliest
        else:
            while (one := _first(self._dues)) is not None and one.due < now:
                heapq.heappop(self._dues)
                if isinstance(one.line, Line) and one.line is not self._late and not one.tokens:
                    one.line.leave(one)
                    late.append(one)
        self._let_wait_last(late)
        return late

    def give_up(self, requests: Iterable[Request]) -> None:
        """Let these wait behind all others, though they are not late yet."""
        for request in requests:
            line = request.line
            assert isinstance(line, Line)
            line.leave(request)
            self._let_wait_last([request])

    def dropped(self, now: float) -> list[Request]:
        """Those behind all others whose time has come, still in the queue; not those whose target
        could never be met: they would be everybody."""
        if now <= self._none_dropped_until:
            return []
        last = self._late.firsts(self._late.waiting)
        dues = [one.due for one in last if one.due >= now and not one.tokens]
        self._none_dropped_until = min(dues, default=math.inf)
        return [one for one in last if -math.inf < one.due < now and not one.tokens]

    def _let_wait_last(self, requests: Iterable[Request]) -> None:
        for request in requests:
            request.rank = request.arrival
            self._late.enter(request)
            self._head = None
            if request.due > -math.inf:
                self._none_dropped_until = min(self._none_dropped_until, request.due)

    def is_last(self, request: Request) -> bool:
        """Whether a request waits behind all that can meet the targets."""
        return request.line is self._late

    def timely(self) -> int:
        """How many wait that can still meet the targets."""
        return self.waiting - self._late.waiting

    def firsts_by_due(self, count: int) -> list[Request]:
        """The `count` that are due first, whoever's they are."""
        lines = self.lines.waiting()
        if len(lines) == 1:
            return lines[0].firsts(count)
        every = [request for line in lines for request in line.firsts(count)]
        return sorted(every, key=lambda one: (one.due, one.place))[:count]

    def next_drop(self) -> float | None:
        """The instant until which `dropped` will have nobody; None: nobody is known."""
        due = self._none_late_until if self._by_due else self.next_due()
        until = self._none_dropped_until if due is None else min(self._none_dropped_until, due)
        return until if abs(until) < math.inf else None

    def next_due(self) -> float | None:
        """The earliest `due` of those that can still meet the targets; None: nobody's matters."""
        if not self._by_due:
            first = _first(self._dues)
            return None if first is None else first.due
        heads = [head for line in self.lines.waiting() if (head := line.first()) is not None]
        return min((head.due for head in heads if head.due < math.inf), default=None)

    def late(self, now: float) -> int:
        """How many wait that can no longer meet the targets: misses, although they have not
        ended."""
        self.too_late(now)
        return self._late.waiting

    def oldest(self) -> Request | None:
        """Who has waited longest since its arrival."""
        return self._arrivals[0] if self._arrivals else None

    def newest_first(self) -> Iterator[Request]:
        """Those who wait and have not begun, the last to come first."""
        return (one for one in reversed(self._arrivals) if one.line is not None and not one.tokens)

    # --- inside -----------------------------------------------------------------------------

    def _enter(self, request: Request) -> None:
        request.state = State.QUEUED
        self._head = None
        self.waiting += 1
        self.tokens += request.work_tokens
        self.size += request.size
        self.prompts += len(request.prompt)
        self.lines.enter(request)
        if not self._by_due:
            if request.due < math.inf:
                heapq.heappush(self._dues, (request.due, request.place, request))
        elif request.due < self._none_late_until:
            self._none_late_until = request.due
        if request.start_by is not None:
            heapq.heappush(self._deadlines, (request.start_by, request.place, request))
        arrivals = self._arrivals
        if arrivals and arrivals[-1].arrival > request.arrival:
            bisect.insort(arrivals, request, key=lambda one: one.arrival)
        else:
            arrivals.append(request)

    def _compact(self) -> None:
        self._gone = 0
        for heap in (self._dues, self._deadlines):
            heap[:] = [entry for entry in heap if entry[2].line is not None]
            heapq.heapify(heap)
        kept = [request for request in self._arrivals if request.line is not None]
        self._arrivals.clear()
        self._arrivals.extend(kept)


def _first(heap: list[tuple[float, int, Request]]) -> Request | None:
    """The first entry of a heap that still waits; those that left are dropped on the way."""
    while heap and heap[0][2].line is None:
        heapq.heappop(heap)
    return heap[0][2] if heap else None
