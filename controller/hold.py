"""Whether an idle executor should wait for company before it begins, and until when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from controller.company import AllComers
from controller.forecast import Forecast
from controller.ledger import ExecutorSeats
from controller.plan import Why
from controller.queues import TierQueue
from controller.request import Request
from controller.tiers import Tier
from policies.contract import Limits

# Timers are late by milliseconds, and who is late by one is late.
KEPT_S = 0.005

HoldRule = Literal["join_gain", "fixed"]


class Hold(NamedTuple):
    """`until` None: go now, for the reason `why`. Else hold until then, and go for that reason.

    `since` is the instant from which the hold counts; `held` says that it was held on purpose
    until now.
    """

    until: float | None
    why: Why
    since: float
    held: bool


class _Batch(NamedTuple):
    """A batch that could go: `size` wait, `room` would fit. It takes `alpha_s` whatever its size,
    and `beta_s` for each member."""

    size: int
    room: int
    alpha_s: float
    beta_s: float


class Holder:
    """Holds for company, at most W, and never past what a member can still bear.

    W counts from the later of the oldest member's arrival and the instant at which the executor
    could have taken it; it never starts again. A batch holds for the smallest W of its members.
    Nothing is held while steps run: a continuous executor is joined at once.

    `fixed`: until the batch is full or W has passed. `join_gain`: as long as those who may be
    expected save more than the wait costs; decided again at every arrival and every point.
    """

    def __init__(self, rule: HoldRule, forecast: Forecast, comers: AllComers) -> None:
        self._rule = rule
        self._forecast = forecast
        self._comers = comers

    def hold(
        self, seats: ExecutorSeats, waiting: Sequence[TierQueue], now: float, *, draining: bool
    ) -> Hold:
        """Decide for one executor with free seats. `waiting` are queues, none empty."""
        free_since = seats.free_since
        assert free_since is not None
        if seats.seats:
            return Hold(None, Why.JOIN, free_since, held=False)
        oldest = _oldest(waiting)
        since = max(free_since, oldest.arrival)
        comers = self._comers.of[seats.name]
        if since > free_since:
            comers.ready(since)
        held = comers.held_since == since
        wait_s = min(wait_of(queue.tier, seats.limits) for queue in waiting)
        if draining:
            return Hold(None, Why.DRAIN, since, held)
        if wait_s <= 0:
            return Hold(None, Why.IMMEDIATE, since, held)
        size, room = sum(len(queue) for queue in waiting), seats.room()
        if size >= room:
            return Hold(None, Why.FULL, since, held)
        until, why = since + wait_s, Why.TIMEOUT
        if self._rule == "join_gain" and until > now:
            best = self._best(seats, oldest, since, now, size=size, room=room, until=until)
            if best < until:
                until, why = best, Why.NO_GAIN
        if until > now and (bound := _bearable(waiting, since, until)) < until:
            until, why = bound, Why.URGENT
        if until <= now:
            return Hold(None, why, since, held)
        comers.held_since = since
        return Hold(until, why, since, held=True)

    def _best(
        self,
        seats: ExecutorSeats,
        oldest: Request,
        since: float,
        now: float,
        *,
        size: int,
        room: int,
        until: float,
    ) -> float:
        """The instant until which holding gains most; `now` where none gains."""
        batch = self._batch(seats, oldest, size, room)
        if batch is None:
            return now
        comers = self._comers.of[seats.name]
        # Who joins saves the fixed part of a batch: longer than that nobody is worth waiting for.
        most_s = min(until - now, batch.alpha_s)
        elapsed_s, back = comers.coming_back(now, most_s)
        gain_s, best_s = 0.0, 0.0
        for wait_s, joining, later in back:
            joining = min(joining, room - size)
            gained_s = joining * (batch.alpha_s + elapsed_s) - (size + later) * wait_s
            if gained_s > gain_s:
                gain_s, best_s = gained_s, wait_s
        if since == oldest.arrival:
            for wait_s, joining, later in comers.following(since, now, most_s):
                joining = min(joining, room - size)
                gained_s = (
                    joining * (batch.alpha_s - wait_s - size * batch.beta_s)
                    - (size + later) * wait_s
                )
                if gained_s > gain_s:
                    gain_s, best_s = gained_s, wait_s
        return until if best_s >= until - now else now + best_s

    def _batch(self, seats: ExecutorSeats, oldest: Request, size: int, room: int) -> _Batch | None:
        """What a batch costs, by its oldest member; None where nothing is known."""
        model = self._forecast.model(seats.name)
        if model is None or seats.capacity is None:
            return None
        prompt = len(oldest.prompt) + len(oldest.tokens)
        alpha_s = model.a
        beta_s = model.c + model.d * prompt + model.e * prompt * prompt
        if seats.capacity.runs_to_completion:
            steps = max(1, oldest.work_tokens - prompt)
            alpha_s *= steps
            beta_s += (steps - 1) * (model.c + model.b * (prompt + steps / 2))
        return _Batch(size, room, alpha_s, beta_s)


def _oldest(waiting: Sequence[TierQueue]) -> Request:
    firsts = [first for queue in waiting if (first := queue.oldest()) is not None]
    return firsts[0] if len(firsts) == 1 else min(firsts, key=lambda request: request.arrival)


def _bearable(waiting: Sequence[TierQueue], since: float, until: float) -> float:
    """Until when the members can bear to be held, at most `until`."""
    for queue in waiting:
        # Who would expire meanwhile is not held at all.
        deadline = queue.next_deadline()
        if deadline is not None and deadline - KEPT_S <= until:
            return since
        if (due := queue.next_due()) is not None:
            until = min(until, due - KEPT_S)
    return until


def wait_of(tier: Tier, limits: Limits) -> float:
    """How long a request of this tier may be held, in seconds: the tier's own bound, else W."""
    override = limits.tiers.get(tier.name)
    if override is not None and override.wait_timeout_s is not None:
        return override.wait_timeout_s
    return limits.wait_timeout_s if tier.wait_timeout_s is None else tier.wait_timeout_s
