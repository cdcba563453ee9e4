"""Whether a request may wait at all: not when it can never be served, nor when nobody serves, nor
when it could not begin in time; and who makes room for it when the queue is full."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from controller.errors import (
    ContextLengthExceeded,
    Draining,
    Infeasible,
    NotReady,
    QueueFull,
    Shed,
)
from controller.forecast import Forecast
from controller.ledger import ExecutorSeats
from controller.places import Permit, Places
from controller.queues import TierQueue
from controller.request import Request

# How soon a client may ask again when nothing is known: long enough not to be a storm.
RETRY_AFTER_S = 1.0
# Nobody is turned away for a wait that the forecast, which errs, has a little too long.
FORECAST_MARGIN = 1.25


class Admission:
    """The door to the tier queues. While every executor is down for a moment, it stays open.

    `evict` ends a request where it waits. `shed` is the probability (0..1) with which a tier's
    requests are turned away by lot.
    """

    def __init__(
        self,
        queues: Mapping[str, TierQueue],
        executors: Mapping[str, ExecutorSeats],
        forecast: Forecast,
        *,
        evict: Callable[[Request, float], None],
    ) -> None:
        self._queues = queues
        self._executors = executors
        self._forecast = forecast
        self._evict = evict
        self.draining = False
        self.shed: dict[str, float] = {}
        self._lot = random.Random(0)
        lowest_first = sorted(queues.values(), key=lambda queue: queue.tier.priority)
        self._lower = {q.tier.name: lowest_first[:i] for i, q in enumerate(lowest_first)}
        self._above = {q.tier.name: lowest_first[i:] for i, q in enumerate(lowest_first)}
        # Whether some tier may hold more than its bounds, on places of lower ones.
        self._lending = False

    def reserve(
        self,
        tier: str,
        requests: int,
        *,
        tokens: int,
        size: int,
        now: float,
        start_by: float | None,
        client: str,
    ) -> Permit:
        """Places in a tier's queue, for requests that are of no use unless they begin by
        `start_by`. Raises Draining, NotReady, Shed, Infeasible, QueueFull."""
        if self.draining:
            raise Draining("the server is shutting down", retry_after_s=RETRY_AFTER_S)
        queue = self._queues[tier]
        self._check_served(queue, now)
        if self.shed and self._lot.random() < self.shed.get(tier, 0.0):
            raise Shed(
                f"tier '{tier}' is served less while higher tiers miss their targets",
                retry_after_s=self._drain_s(queue),
            )
        if queue.waiting:
            self._check_feasible(queue, now, start_by)
        lent = self._lent(queue) if self._lending else None
        try:
            return queue.reserve(requests, tokens, size=size, lent=lent)
        except QueueFull as full:
            over = _more_over(queue, (requests, tokens, size), lent)
            victims = self._of_lower(queue, over) or queue.of_the_greediest(client, over)
            if not victims:
                full.retry_after_s = self._drain_s(queue)
                raise
            for request in victims:
                self._evict(request, now)
        self._lending = True
        return queue.hold(requests, tokens, size=size)

    def check_fits(self, request: Request, now: float) -> None:
        """Raises ContextLengthExceeded when no executor could ever hold the request."""
        prompt = len(request.prompt)
        need = prompt + request.max_new_tokens
        able = [seats for seats in self._executors.values() if seats.can_ever_hold(request)]
        failed = [seats.memory.ceiling.refusal(prompt, now) for seats in able]
        if failed and None not in failed:
            raise ContextLengthExceeded(
                f"the prompt has {prompt} tokens, and memory ran out for a single request with"
                f" {max(one for one in failed if one is not None)} of them"
            )
        if able:
            return
        ready = [s.capacity for s in self._executors.values() if s.capacity is not None]
        most = max((min(one.max_context_tokens, one.kv_tokens) for one in ready), default=0)
        longest = max((one.max_step_tokens for one in ready), default=0)
        if most and need > most:
            raise ContextLengthExceeded(
                f"the prompt has {prompt} tokens and up to {request.max_new_tokens} "
                f"are to be generated: {need} in all, but at most {most} fit",
                param="max_tokens",
            )
        if most:
            raise ContextLengthExceeded(
                f"the prompt has {prompt} tokens, but at most {longest} fit into one step, and "
                "prompts are not split here"
            )

    def retier(self) -> None:
        """Take the tiers as the queues have them now: who is not sheddable any more is not shed."""
        sheddable = {name for name, queue in self._queues.items() if queue.tier.sheddable}
        self.shed = {name: chance for name, chance in self.shed.items() if name in sheddable}

    def press(self, excess: Mapping[str, float]) -> None:
        """Hear by how much more than allowed (a fraction of requests) tiers miss their targets:
        sheddable tiers below are turned away that often."""
        shed: dict[str, float] = {}
        for name, queue in self._queues.items():
            if queue.tier.sheddable:
                above = [excess.get(q.tier.name, 0.0) for q in self._above[name] if q is not queue]
                if (worst := max(above, default=0.0)) > 0:
                    shed[name] = min(1.0, worst)
        self.shed = shed

    def _check_feasible(self, queue: TierQueue, now: float, start_by: float | None) -> None:
        tier = queue.tier
        bounds = [tier.start_within_s]
        target_s = tier.targets.start_s
        # A target below the shortest step is never met, and no reason to turn everybody away.
        if tier.late == "drop" and target_s is not None and target_s > self._forecast.least_s():
            bounds.append(target_s)
        if start_by is not None:
            bounds.append(start_by - now)
        within_s = min((bound for bound in bounds if bound is not None), default=None)
        if within_s is None:
            return
        wait_s = self._drain_s(queue)
        if wait_s > FORECAST_MARGIN * max(within_s, RETRY_AFTER_S):
            raise Infeasible(
                f"{wait_s:.1f} s of work waits in tier '{tier.name}' and above, and it would have "
                f"to begin within {max(0.0, within_s):.1f} s",
                retry_after_s=max(RETRY_AFTER_S, wait_s - within_s),
            )

    def _drain_s(self, queue: TierQueue) -> float:
        """Until what waits at or above this tier is served."""
        above = self._above[queue.tier.name]
        work = [(other.prompts, other.tokens - other.prompts) for other in above]
        drain_s = self._forecast.drain_s(work)
        return RETRY_AFTER_S if drain_s is None else max(RETRY_AFTER_S, drain_s)

    def _lent(self, queue: TierQueue) -> Permit | None:
        """What higher tiers hold beyond their bounds: those places are not there for others."""
        higher = [q.over(0, 0, 0) for q in self._above[queue.tier.name] if q is not queue]
        return Permit(
            queue.tier.name,
            sum(over.requests for over in higher),
            sum(over.tokens for over in higher),
            sum(over.size for over in higher),
        )

    def _of_lower(self, queue: TierQueue, over: Places) -> list[Request]:
        """The newest of strictly lower tiers, lowest first, who together free so many places; none
        where even all of them would not do."""
        freed = Places(0, 0, 0)
        victims: list[Request] = []
        for lower in self._lower[queue.tier.name]:
            for request in lower.newest_first():
                if freed.cover(over):
                    return victims
                victims.append(request)
                freed = freed.plus(lower.places_of(request))
        return victims if freed.cover(over) else []

    def _check_served(self, queue: TierQueue, now: float) -> None:
        for seats in self._executors.values():
            if seats.capacity is not None:
                return
        if not any(seats.incarnation for seats in self._executors.values()):
            raise NotReady("the model is still loading", retry_after_s=RETRY_AFTER_S)
        back = [seats.back_at for seats in self._executors.values() if seats.back_at is not None]
        if not back:
            raise NotReady("the executor has failed and does not come back")
        wait_s = max(0.0, min(back) - now)
        patience_s = queue.tier.start_within_s
        if patience_s is not None and wait_s > patience_s:
            raise NotReady(
                f"the executor is back in {wait_s:.0f} s, tier '{queue.tier.name}' waits "
                f"{patience_s:.0f} s at most",
                retry_after_s=wait_s,
            )


def _more_over(queue: TierQueue, more: tuple[int, int, int], lent: Permit | None) -> Places:
    """By how much so many more would be further over the bounds than what is there already."""
    after, before = queue.over(*more, lent=lent), queue.over(0, 0, 0, lent=lent)
    return Places(
        after.requests - before.requests, after.tokens - before.tokens, after.size - before.size
    )
