"""Whether a request may wait at all: not when it can never be served, not when nobody serves."""

from __future__ import annotations

from collections.abc import Mapping

from controller.errors import ContextLengthExceeded, Draining, NotReady
from controller.ledger import ExecutorSeats
from controller.queues import Permit, TierQueue
from controller.request import Request

# How soon a client may ask again when nothing is known: long enough not to be a storm.
RETRY_AFTER_S = 1.0


class Admission:
    """The door to the tier queues. While every executor is down for a moment, it stays open."""

    def __init__(
        self, queues: Mapping[str, TierQueue], executors: Mapping[str, ExecutorSeats]
    ) -> None:
        self._queues = queues
        self._executors = executors
        self.draining = False

    def reserve(self, tier: str, requests: int, *, tokens: int, size: int, now: float) -> Permit:
        """Places in a tier's queue. Raises Draining, NotReady, QueueFull."""
        if self.draining:
            raise Draining("the server is shutting down", retry_after_s=RETRY_AFTER_S)
        queue = self._queues[tier]
        self._check_served(queue, now)
        return queue.reserve(requests, tokens, size=size)

    def check_fits(self, request: Request) -> None:
        """Raises ContextLengthExceeded when no executor could ever hold the request."""
        need = len(request.prompt) + request.max_new_tokens
        most = 0
        for seats in self._executors.values():
            if (capacity := seats.capacity) is not None:
                if need <= capacity.max_context_tokens and need <= capacity.kv_tokens:
                    return
                most = max(most, min(capacity.max_context_tokens, capacity.kv_tokens))
        if most:
            raise ContextLengthExceeded(
                f"the prompt has {len(request.prompt)} tokens and up to {request.max_new_tokens} "
                f"are to be generated: {need} in all, but at most {most} fit",
                param="max_tokens",
            )

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
