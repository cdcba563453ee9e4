"""The waiting room of one tier: bounded, ordered, and the only place that turns anybody away."""

from __future__ import annotations

import bisect
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from controller.errors import InvalidRequest, QueueFull
from controller.request import Request, State
from controller.tiers import Tier

Order = Callable[[Request], float]


def fcfs(request: Request) -> float:
    """First come, first served, by arrival at the daemon: a request given back keeps its place."""
    return request.arrival


@dataclass(slots=True, eq=False)
class Permit:
    """Places in a tier's queue, taken before costly work: `requests`, and their `tokens` and
    `size` (bytes) as estimated. Offering a request uses one place up."""

    tier: str
    requests: int
    tokens: int
    size: int


class TierQueue:
    """Requests of one tier that wait, and the places that are reserved for some to come.

    `live` are those that wait, by id; it is there to be looked at often.
    Places held by requests that were given back by an executor do not count against new ones:
    those were admitted once and are never turned away a second time.
    """

    def __init__(self, tier: Tier, *, order: Order = fcfs) -> None:
        self.tier = tier
        self._order = order
        self._places = count()
        self._heap: list[tuple[float, int, Request]] = []
        self._deadlines: list[tuple[float, int, Request]] = []
        self.live: dict[str, Request] = {}
        self._arrivals: deque[Request] = deque()
        self._unlate: deque[Request] = deque()
        self._late: set[str] = set()
        self.reserved = Permit(tier.name, 0, 0, 0)
        self.tokens = 0
        self.size = 0
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.live)

    def reserve(self, requests: int, tokens: int, *, size: int) -> Permit:
        """Take `requests` places. Raises QueueFull, saying which bound was met, and InvalidRequest
        for what would not fit into an empty queue either."""
        tier, held = self.tier, self.reserved
        bounds = (
            ("requests", len(self) + held.requests, requests, tier.max_queue_requests),
            ("tokens", self.tokens + held.tokens, tokens, tier.max_queue_tokens),
            ("bytes", self.size + held.size, size, tier.max_queue_bytes),
        )
        for unit, there, more, bound in bounds:
            if more > bound:
                raise InvalidRequest(
                    f"{more} {unit} are more than the queue of tier '{tier.name}' ever takes: "
                    f"{bound}",
                    code="request_too_large",
                )
            if there + more > bound:
                raise QueueFull(
                    f"the queue of tier '{tier.name}' is full: {there} {unit} of {bound} waiting, "
                    f"no room for {more} more"
                )
        self._hold(requests, tokens, size)
        return Permit(tier.name, requests, tokens, size)

    def give_back(self, permit: Permit) -> None:
        """Return what is left of a permit; a second time changes nothing."""
        self._hold(-permit.requests, -permit.tokens, -permit.size)
        permit.requests = permit.tokens = permit.size = 0

    def offer(self, request: Request, permit: Permit) -> None:
        """Let a request wait, in exchange for one place of its permit."""
        if permit.requests < 1:
            raise ValueError(f"request {request.id} was offered on a permit that is used up")
        share = permit.requests
        tokens, size = permit.tokens // share, permit.size // share
        permit.requests -= 1
        permit.tokens -= tokens
        permit.size -= size
        self._hold(-1, -tokens, -size)
        self._sizes[request.id] = size
        request.place = next(self._places)
        self._enter(request)

    def put_back(self, request: Request) -> None:
        """Let a request wait again that an executor gave back, at the place of its arrival."""
        self._sizes[request.id] = 0
        self._enter(request)

    def head(self) -> Request | None:
        """Who goes next in this tier, left where it is."""
        return _first(self._heap, self.live)

    def take(self, request: Request) -> None:
        """Remove a request: it is dispatched, or it ended where it waited."""
        del self.live[request.id]
        self.tokens -= request.work_tokens
        self.size -= self._sizes.pop(request.id)
        self._late.discard(request.id)
        self._trim(self._arrivals)
        self._trim(self._unlate)
        if len(self._heap) > 2 * len(self.live) + 64:
            self._compact()

    def expired(self, now: float) -> list[Request]:
        """Those whose `start_by` has come, still in the queue."""
        due = []
        while (request := _first(self._deadlines, self.live)) is not None:
            if request.start_by is None or request.start_by > now:
                break
            heapq.heappop(self._deadlines)
            # What has begun has met its start: only its end can still be late.
            if not request.tokens:
                due.append(request)
        return due

    def next_deadline(self) -> float | None:
        """The earliest `start_by` of those that wait."""
        first = _first(self._deadlines, self.live)
        return None if first is None else first.start_by

    def oldest(self) -> Request | None:
        """Who has waited longest since its arrival."""
        self._trim(self._arrivals)
        return self._arrivals[0] if self._arrivals else None

    def late(self, now: float) -> int:
        """How many wait beyond the target already: misses, although they have not ended."""
        bound = self.tier.targets.start_s
        while bound is not None and self._unlate and self._unlate[0].arrival + bound < now:
            request = self._unlate.popleft()
            if self.live.get(request.id) is request:
                self._late.add(request.id)
        return len(self._late)

    def _hold(self, requests: int, tokens: int, size: int) -> None:
        self.reserved.requests += requests
        self.reserved.tokens += tokens
        self.reserved.size += size

    def _enter(self, request: Request) -> None:
        request.state = State.QUEUED
        self.live[request.id] = request
        self.tokens += request.work_tokens
        self.size += self._sizes[request.id]
        heapq.heappush(self._heap, (self._order(request), request.place, request))
        if request.start_by is not None:
            heapq.heappush(self._deadlines, (request.start_by, request.place, request))
        for line in (self._arrivals, self._unlate):
            if line and line[-1].arrival > request.arrival:
                bisect.insort(line, request, key=fcfs)
            else:
                line.append(request)

    def _trim(self, line: deque[Request]) -> None:
        while line and self.live.get(line[0].id) is not line[0]:
            line.popleft()

    def _compact(self) -> None:
        live = self.live
        for heap in (self._heap, self._deadlines):
            heap[:] = [entry for entry in heap if live.get(entry[2].id) is entry[2]]
            heapq.heapify(heap)
        for line in (self._arrivals, self._unlate):
            kept = [request for request in line if live.get(request.id) is request]
            line.clear()
            line.extend(kept)


def _first(heap: list[tuple[float, int, Request]], live: dict[str, Request]) -> Request | None:
    """The first entry of a heap that still waits; those that left are dropped on the way.

    A request that left and came back may stand there twice, at the same place: that does no harm.
    """
    while heap and live.get(heap[0][2].id) is not heap[0][2]:
        heapq.heappop(heap)
    return heap[0][2] if heap else None
