"""Whether a prompt can wait a little, so that those who decode end within their targets first.

While a prompt is computed, everybody else's next token waits, and a completion of a few tokens has
no time to make up for that. Where some of its tier or above would miss their inter-token target by
it and will soon be done, a prompt that has time left waits for their ends: *ours*, judged by
`bench.evaluate_queues` (on an executor that prefills whole prompts, half of those misses).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from controller.forecast import Forecast
from controller.ledger import ExecutorSeats
from controller.request import Request
from controller.tiers import Tier
from policies.contract import StepEstimate

# Until so much of its time is left, relative to its target, a prompt lets others end.
KEEPS = 0.25
# Who is late anyway does so until it has waited for so many times its target: no longer, or in a
# steady stream of short completions its turn would never come.
LATE_YIELDS = 2.0


class Sparing:
    """Knows how much of a pause those who run on an executor can bear."""

    def __init__(self, tiers: Iterable[Tier], forecast: Forecast) -> None:
        self._forecast = forecast
        self.retier(tiers)

    def retier(self, tiers: Iterable[Tier]) -> None:
        """Take these targets."""
        self._paced = {
            tier.name: (tier.priority, tier.targets.itl_s)
            for tier in tiers
            if tier.targets.itl_s is not None
        }

    def slacks_s(
        self, seats: ExecutorSeats, priority: int, model: StepEstimate, *, now: float
    ) -> list[float]:
        """For each of this priority or a higher one that can still meet its inter-token target,
        seconds of pauses that it can bear until its end; least first."""
        step_s = model.predict(len(seats.seats), seats.context_tokens)
        to_come, paced = self._forecast.to_come, self._paced
        slacks = []
        for seat in seats.seats.values():
            request = seat.request
            begun, bound = request.times.first_token, paced.get(request.tier)
            if bound is None or begun is None or bound[0] < priority:
                continue
            if request.expected_new_tokens is None:
                has = len(request.tokens)
                left = request.max_new_tokens - has
            else:
                has, left = len(request.tokens), to_come(request)
            slack_s = bound[1] * (has + left - 1) - (now - begun) - left * step_s
            if slack_s >= 0:
                slacks.append(slack_s)
        slacks.sort()
        return slacks


def can_wait_until(request: Request, tier: Tier, *, last: bool) -> float:
    """The instant until which a prompt can wait for the ends of others; `last`: it is late."""
    target_s = tier.targets.start_s or 0.0
    if last:
        return request.arrival + LATE_YIELDS * target_s
    return request.due - KEEPS * target_s


def pause_s(request: Request, model: StepEstimate, step_tokens: int) -> float:
    """For how long, in all, the others' tokens wait for this prompt."""
    tokens = len(request.prompt) + len(request.tokens)
    return tokens * (model.d + model.e * min(tokens, step_tokens))


def would_doom(slacks_s: list[float], spent_s: float, pause_s: float) -> bool:
    """Whether a pause, after others of together `spent_s`, is too much for somebody who would bear
    those."""
    first = bisect_left(slacks_s, spent_s)
    return first < len(slacks_s) and slacks_s[first] < spent_s + pause_s
