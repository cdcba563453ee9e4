"""Whether an idle executor should wait for company before it begins, and until when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from controller.company import AllComers, Comers
from controller.forecast import Forecast
from controller.ledger import ExecutorSeats
from controller.plan import Why
from controller.queues import TierQueue
from controller.request import Request
from controller.tiers import wait_of

HoldRule = Literal["join_gain", "fixed"]

# Timers are late by milliseconds, and who is late by one is late.
KEPT_S = 0.005


class Hold(NamedTuple):
    """`until` None: go now, for the reason `why`. Else hold until then, and go for that reason.

    `since` is the instant from which the hold counts; `held` says that it was held on purpose
    until now.
    """

    until: float | None
    why: Why
    since: float
    held: bool


class Batch(NamedTuple):
    """A batch that could go at `now`, since the instant `since`, and may be held until `limit`.

    `size` requests wait, of `room` that fit. It takes `alpha_s` whatever its size and `beta_s` for
    each member. `found_free`: nobody was waiting when the executor became free.
    """

    now: float
    since: float
    limit: float
    found_free: bool
    size: int
    room: int
    alpha_s: float
    beta_s: float


class Holder:
    """Holds for company, at most W, and never past what a member can bear.

    W counts from the later of the oldest member's arrival and the instant at which the executor
    could have taken it; it never starts again. A batch holds for the smallest W of its members.
    Nothing is held while steps run: a continuous executor is joined at once.

    `fixed`: until the batch is full or W has passed. `join_gain`: as long as those who may be
    expected save more than the wait costs, which is decided again whenever somebody arrives.
    """

    def __init__(self, rule: HoldRule, forecast: Forecast, comers: AllComers) -> None:
        self.rule: HoldRule = rule
        self._forecast = forecast
        self._comers = comers

    def hold(
        self, seats: ExecutorSeats, waiting: Sequence[TierQueue], now: float, *, draining: bool
    ) -> Hold:
        """Decide for an executor with free seats. `waiting` are queues, none empty."""
        free_since = seats.free_since
        assert free_since is not None
        if seats.seats:
            return Hold(None, Why.JOIN, free_since, held=False)
        oldest = _oldest(waiting)
        since, found_free = free_since, oldest.arrival > free_since
        comers = self._comers.of[seats.name]
        if found_free:
            since = oldest.arrival
            comers.ready(since)
        held = comers.held_since == since
        wait_s = min([wait_of(queue.tier, seats.limits) for queue in waiting])
        size, room = sum([queue.waiting for queue in waiting]), seats.room()
        if draining or wait_s <= 0 or size >= room:
            why = Why.DRAIN if draining else Why.IMMEDIATE if wait_s <= 0 else Why.FULL
            return Hold(None, why, since, held)
        until, why = since + wait_s, Why.TIMEOUT
        if self.rule == "join_gain" and now < until:
            # Who does not know what company saves makes nobody wait for it.
            best, cost = now, self._cost(seats, oldest)
            if cost is not None:
                batch = Batch(now, since, until, found_free, size, room, *cost)
                best = best_until(batch, comers)
            if best < until:
                until, why = best, Why.NO_GAIN
        if now < until and (bound := _bearable(waiting, until)) < until:
            until, why = bound, Why.URGENT
        if until <= now:
            return Hold(None, why, since, held)
        comers.held_since = since
        return Hold(until, why, since, held=True)

    def _cost(self, seats: ExecutorSeats, oldest: Request) -> tuple[float, float] | None:
        """Seconds of a batch whatever its size, and of each member, taken to be like its oldest."""
        model = self._forecast.model(seats.name)
        if model is None or seats.capacity is None:
            return None
        has = len(oldest.prompt) + len(oldest.tokens)
        alpha_s, beta_s = model.a, model.c + model.d * has + model.e * has * has
        if seats.capacity.runs_to_completion:
            steps = max(1, oldest.work_tokens - has)
            alpha_s *= steps
            beta_s += (steps - 1) * (model.c + model.b * (has + steps / 2))
        return alpha_s, beta_s


def best_until(batch: Batch, comers: Comers) -> float:
    """The instant until which holding gains most, `batch.limit` at most; now where nothing gains.

    Both gains are in seconds of waiting, over all who wait or come (*ours*; judged by
    `bench.hold_regimes`). Of those who follow on a start from rest each saves a batch's fixed part
    less the wait; the members, and who comes later and before the batch would be done, wait so much
    longer, the members for each other's rows as well. Those who come back after a batch do so
    again and again, and then what counts is how many are served per second: a wait pays when it
    adds more members, relative to those who are there, than time, relative to the batch's and what
    has passed since the one before. Judged by one batch's waits as well, stragglers were left
    behind, and 16 clients who think for 20 ms served 7 % slower than with the best fixed wait.
    """
    now, size, more = batch.now, batch.size, batch.room - batch.size
    alpha_s, rows_s = batch.alpha_s, batch.size * batch.beta_s
    # Nobody saves more than the fixed part, so nobody is worth a longer wait.
    most_s = min(batch.limit - now, alpha_s)
    gain_s = best_s = 0.0
    elapsed_s, back = comers.coming_back(now, most_s)
    for wait_s, joining, later in back:
        saved_s = min(joining, more) * (alpha_s + elapsed_s)
        if (gained_s := saved_s - (size + later) * wait_s) > gain_s:
            gain_s, best_s = gained_s, wait_s
    if batch.found_free:
        for wait_s, joining, later in comers.following(batch.since, now, most_s):
            saved_s = min(joining, more) * (alpha_s - wait_s - rows_s)
            if (gained_s := saved_s - (size + later) * wait_s) > gain_s:
                gain_s, best_s = gained_s, wait_s
    return batch.limit if best_s >= batch.limit - now else now + best_s


def _oldest(waiting: Sequence[TierQueue]) -> Request:
    firsts = [first for queue in waiting if (first := queue.oldest()) is not None]
    return firsts[0] if len(firsts) == 1 else min(firsts, key=lambda request: request.arrival)


def _bearable(waiting: Sequence[TierQueue], until: float) -> float:
    """Until when the members can bear to be held, at most `until`; infinitely early: not at all."""
    for queue in waiting:
        # Who would expire meanwhile is not held at all.
        deadline = queue.next_deadline()
        if deadline is not None and deadline - KEPT_S <= until:
            return -math.inf
        if (due := queue.next_due()) is not None:
            until = min(until, due - KEPT_S)
    return until
