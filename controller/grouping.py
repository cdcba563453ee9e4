"""Who keeps whom company in a batch that runs to completion: those of about the same length.

Such a batch lasts as long as its longest member, and the others' rows are computed for nothing from
their ends on. The first member is whoever is next, so that an odd one is never passed over for
ever; its mates are the most similar of those that wait near it, except that whoever could not wait
for the next batch goes with this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.forecast import Forecast
from controller.queues import TierQueue
from controller.request import Request

# Mates are sought among so many times the seats: further back, order would mean little.
LOOK = 4


@dataclass(slots=True)
class Company:
    """The mates of one batch: its first member, and by tier those that it may choose from."""

    queues: Mapping[str, TierQueue]
    forecast: Forecast
    seats: int
    first: Request | None = None
    lasts_s: float = 0.0
    choice: dict[str, list[Request]] = field(default_factory=dict)

    def instead_of(self, head: Request, now: float) -> Request:
        """Whose turn it is when `head` is next in its tier."""
        if self.first is None:
            self.first, self.lasts_s = head, self.forecast.need(head).whole_s
            return head
        choice = self.choice.get(head.tier)
        if choice is None:
            choice = self.choice[head.tier] = self.queues[head.tier].firsts(LOOK * self.seats)
        choice[:] = [one for one in choice if one.line is not None]
        wanted, bound = _length(self.first), now + self.lasts_s
        pressed = next((one for one in choice if now <= _last_call(one) <= bound), None)
        if pressed is not None:
            return pressed
        return min(choice, key=lambda one: abs(_length(one) - wanted), default=head)


def _last_call(request: Request) -> float:
    return request.due if request.start_by is None else min(request.due, request.start_by)


def _length(request: Request) -> int:
    """Steps that it stays: what it is thought to generate."""
    return request.work_tokens - len(request.prompt) - len(request.tokens)


def padding(lengths: list[int]) -> float:
    """The part of a batch's rows that is computed for nothing, 0..1, lengths in tokens."""
    longest = max(lengths)
    return 1.0 - sum(lengths) / (len(lengths) * longest) if longest else 0.0
