"""Which requests there are and how they ended: each enters once, ends once, and is counted once."""

from __future__ import annotations

import heapq
from collections import Counter

from controller.listener import Audience
from controller.request import Ended, Outcome, Request, State
from executor.contract import Refusal


class Book:
    """All requests that wait or run, by id, and the tally of those that do no more.

    `offered = sum(outcomes) + len(requests)` always holds.
    """

    def __init__(self, audience: Audience) -> None:
        self.requests: dict[str, Request] = {}
        self.offered = 0
        self.outcomes: Counter[Outcome] = Counter()
        self._audience = audience
        self._finish_by: list[tuple[float, str]] = []
        self._ended: list[Ended] = []

    def enter(self, request: Request, now: float) -> None:
        """A request begins to wait."""
        self.requests[request.id] = request
        self.offered += 1
        if request.finish_by is not None:
            heapq.heappush(self._finish_by, (request.finish_by, request.id))
        for tell in self._audience.offered:
            tell(request, now)

    def reject(self, tier: str, requests: int, *, reason: str, now: float) -> None:
        """Requests were turned away at the door."""
        self.offered += requests
        self.outcomes[Outcome.REJECTED] += requests
        for tell in self._audience.rejected:
            tell(tier, requests, reason, now)

    def end(
        self,
        request: Request,
        now: float,
        outcome: Outcome,
        *,
        reason: str,
        detail: str = "",
        refusal: Refusal | None = None,
    ) -> None:
        """A request is over."""
        del self.requests[request.id]
        request.state, request.outcome, request.reason = State.ENDED, outcome, reason
        request.times.ended = now
        self.outcomes[outcome] += 1
        ended = Ended(request, outcome, reason, detail, refusal)
        self._ended.append(ended)
        for tell in self._audience.ended:
            tell(ended, now)

    def overdue(self, now: float) -> list[Request]:
        """Those whose `finish_by` has come."""
        due = []
        while (bound := self.next_finish()) is not None and bound <= now:
            _, request_id = heapq.heappop(self._finish_by)
            due.append(self.requests[request_id])
        return due

    def next_finish(self) -> float | None:
        """The earliest `finish_by` of all that wait or run."""
        heap = self._finish_by
        if len(heap) > 2 * len(self.requests) + 64:
            heap[:] = [entry for entry in heap if entry[1] in self.requests]
            heapq.heapify(heap)
        while heap and heap[0][1] not in self.requests:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def has_ended(self) -> bool:
        """Whether there are ends that were not told yet."""
        return bool(self._ended)

    def take_ended(self) -> tuple[Ended, ...]:
        """The ends since the last call, each told once."""
        ended = tuple(self._ended)
        self._ended.clear()
        return ended
