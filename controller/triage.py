"""Whom a queue gives up so that the most of it begin in time, when not all of it can.

In overload, earliest deadline first makes everybody just late. Moore and Hodgson (1968) keep as
many as can be kept: go through them by deadline, and whenever one would come too late, give up the
one that takes longest of those so far. What is scheduled here is prompts, which are computed one
after the other on an executor; seats and memory are watched elsewhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from controller.forecast import Forecast
from controller.queues import TierQueue
from controller.request import Request

# So many, by deadline, are looked at: the others' turn is far away.
LOOK = 64
# Prompts take turns with those who decode: they have the executor for about half of the time.
TURNS = 2.0
# Between two looks little changes, and a look takes as long as some dispatches.
AGAIN_S = 0.02


class Triage:
    """Looks at the queues, highest tier first: what is above a tier goes before it."""

    def __init__(self, queues: Sequence[TierQueue], forecast: Forecast) -> None:
        self._queues = sorted(queues, key=lambda queue: -queue.tier.priority)
        self._forecast = forecast
        self._next = 0.0

    def look(self, now: float) -> None:
        """Let those who are given up wait behind the others of their tier."""
        if now < self._next:
            return
        self._next, lead = now + AGAIN_S, 0
        for queue in self._queues:
            if queue.timely() > 1 and queue.tier.order == "edf":
                before = lead + self._forecast.prompts_left(queue.tier.priority)
                speed = self._forecast.ready()
                start = now + self._forecast.prompts_s(before)
                # Who has begun has met that target, and keeps the place that it had.
                fresh = [one for one in queue.firsts_by_due(LOOK) if not one.tokens]
                waiting = sorted(fresh, key=_wanted_by)
                queue.give_up(given_up(waiting, start, speed=speed))
            lead += queue.prompts


def _wanted_by(request: Request) -> float:
    """The instant by which its first token is wanted: it is due as long before as that takes."""
    return request.due + request.first_s


def given_up(waiting: Sequence[Request], start: float, *, speed: int) -> list[Request]:
    """Who of those that wait, in order of when their first tokens are wanted, is given up so
    that the others come in time; `speed` executors share them, from the instant `start` on."""
    kept: list[tuple[float, int, Request]] = []
    lost, at = [], start
    for request in waiting:
        heapq.heappush(kept, (-request.first_s, request.place, request))
        at += TURNS * request.first_s / speed
        if at > _wanted_by(request):
            longest_s, _, longest = heapq.heappop(kept)
            at += TURNS * longest_s / speed
            lost.append(longest)
    return lost
