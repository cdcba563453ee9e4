"""Whether an idle executor should wait for company before it begins, and until when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from controller.ledger import ExecutorSeats
from controller.plan import Why
from controller.queues import TierQueue
from controller.tiers import Tier
from policies.contract import Limits


class Hold(NamedTuple):
    """`until` None: go now, for the reason `why`. Else hold until then, and go for that reason.

    `since` is the instant from which the hold counts; `held` says that it was held on purpose
    until now.
    """

    until: float | None
    why: Why
    since: float
    held: bool


def hold(seats: ExecutorSeats, waiting: Sequence[TierQueue], *, draining: bool) -> Hold:
    """The rule `fixed`: hold until full or until W has passed. `waiting` are queues, none empty.

    W counts from the later of the oldest member's arrival and the instant at which the executor
    could have taken it; it never starts again. A batch holds for the smallest W of its members.
    Nothing is held while steps run: a continuous executor is joined at once.
    """
    assert seats.free_since is not None
    if seats.seats:
        return Hold(None, Why.JOIN, seats.free_since, held=False)
    arrivals = [first.arrival for queue in waiting if (first := queue.oldest()) is not None]
    since = max(seats.free_since, min(arrivals))
    wait_s = min(wait_of(queue.tier, seats.limits) for queue in waiting)
    if draining:
        return Hold(None, Why.DRAIN, since, held=wait_s > 0)
    if wait_s <= 0:
        return Hold(None, Why.IMMEDIATE, since, held=False)
    if sum(len(queue) for queue in waiting) >= seats.room():
        return Hold(None, Why.FULL, since, held=True)
    return Hold(since + wait_s, Why.TIMEOUT, since, held=True)


def wait_of(tier: Tier, limits: Limits) -> float:
    """How long a request of this tier may be held, in seconds: the tier's own bound, else W."""
    override = limits.tiers.get(tier.name)
    if override is not None and override.wait_timeout_s is not None:
        return override.wait_timeout_s
    return limits.wait_timeout_s if tier.wait_timeout_s is None else tier.wait_timeout_s
