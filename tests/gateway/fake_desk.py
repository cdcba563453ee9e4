"""A desk without a daemon: a test sees what is offered and says which tokens come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from controller.errors import HeadwayError
from controller.places import Permit
from controller.request import Ended, Outcome, Request
from executor.contract import Capacity, Feature, Logprobs, TextModel
from gateway.contract import Sink
from policies.contract import Limits

EVERY_SAMPLING = frozenset(
    {
        Feature.TEMPERATURE,
        Feature.TOP_P,
        Feature.TOP_K,
        Feature.SEED,
        Feature.MIN_TOKENS,
        Feature.IGNORE_EOS,
        Feature.STOP_TOKEN_IDS,
    }
)
CAPACITY = Capacity(
    model="tiny",
    device="none",
    max_seqs=8,
    max_step_tokens=512,
    kv_tokens=4096,
    max_context_tokens=1024,
    features=EVERY_SAMPLING,
)
Reply = Callable[[Request], list[int]]


class FakeDesk:
    """Keeps what it is given. With `reply`, it answers by itself, one token a turn of the loop.

    `refuse` is raised by `reserve`, `loading` by `model`, `refuse_offer` by `offer` once
    `refuse_offer_after` requests were taken. `reserved` are permits as they were given out,
    `to_begin_by` the instants by which those who asked for some had to begin.
    """

    def __init__(self, text: TextModel, *, reply: Reply | None = None) -> None:
        self.text = text
        self.capacity = CAPACITY
        self.reply = reply
        self.clock = 100.0
        self.refuse: HeadwayError | None = None
        self.loading: HeadwayError | None = None
        self.refuse_offer: HeadwayError | None = None
        self.refuse_offer_after = 0
        self.permits: list[Permit] = []
        self.reserved: list[Permit] = []
        self.to_begin_by: list[float | None] = []
        self.returned: asyncio.Queue[Permit] = asyncio.Queue()
        self.offered: asyncio.Queue[Request] = asyncio.Queue()
        self.requests: dict[str, Request] = {}
        self.sinks: dict[str, Sink] = {}
        self.ends: list[Ended] = []
        self.ended: asyncio.Queue[Ended] = asyncio.Queue()
        self.pinned: list[tuple[dict[str, Any], float]] = []
        self.switched: list[tuple[str, dict[str, Any]] | str] = []
        self.metrics_collected = 0
        self.is_healthy = True
        self.is_ready = True

    # --- what a test does -------------------------------------------------------------------

    def say(self, request_id: str, ids: list[int], logprobs: Logprobs | None = None) -> None:
        """These tokens came."""
        self.requests[request_id].tokens += ids
        self.sinks[request_id].on_tokens(ids, self.clock, logprobs)

    def end(self, request_id: str, outcome: Outcome, reason: str, *, detail: str = "") -> None:
        """It is over."""
        request = self.requests.pop(request_id)
        request.outcome, request.reason = outcome, reason
        ended = Ended(request, outcome, reason, detail)
        self.ends.append(ended)
        self.ended.put_nowait(ended)
        self.sinks.pop(request_id).on_end(ended)

    def finish(self, request_id: str, reason: str = "stop") -> None:
        """It is over, and well."""
        self.end(request_id, Outcome.FINISHED, reason)

    @property
    def places(self) -> int:
        """Places that are reserved and neither used nor given back."""
        return sum(permit.requests for permit in self.permits)

    # --- Desk -------------------------------------------------------------------------------

    def now(self) -> float:
        return self.clock

    def model(self) -> tuple[TextModel, Capacity]:
        if self.loading is not None:
            raise self.loading
        return self.text, self.capacity

    def reserve(
        self,
        tier: str,
        *,
        requests: int,
        tokens: int,
        size: int,
        start_by: float | None = None,
        client: str = "",
    ) -> Permit:
        self.to_begin_by.append(start_by)
        if self.refuse is not None:
            raise self.refuse
        permit = Permit(tier, requests, tokens, size)
        self.permits.append(permit)
        self.reserved.append(replace(permit))
        return permit

    def give_back(self, permit: Permit) -> None:
        permit.requests = permit.tokens = permit.size = 0
        self.returned.put_nowait(permit)

    def offer(self, request: Request, permit: Permit, sink: Sink) -> None:
        assert permit.requests > 0
        if self.refuse_offer is not None and len(self.requests) >= self.refuse_offer_after:
            raise self.refuse_offer
        permit.requests -= 1
        self.requests[request.id] = request
        self.sinks[request.id] = sink
        self.offered.put_nowait(request)
        if self.reply is not None:
            tokens = self.reply(request)[: request.max_new_tokens]
            self._say_next(request, tokens, 0)

    def cancel(self, request_id: str, outcome: Outcome, reason: str) -> bool:
        if request_id not in self.requests:
            return False
        self.end(request_id, outcome, reason)
        return True

    def healthy(self) -> bool:
        return self.is_healthy

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        return self.is_ready, {"executors": {"main": "ready" if self.is_ready else "loading"}}

    def state(self) -> dict[str, Any]:
        return {"queued": 0, "running": len(self.requests)}

    def decisions(self, count: int) -> list[dict[str, Any]]:
        return [{"epoch": 9 - index} for index in range(count)]

    def request(self, request_id: str) -> dict[str, Any] | None:
        return {"id": request_id, "state": "queued"} if request_id in self.requests else None

    def pin(self, limits: dict[str, Any], expires_s: float) -> Limits:
        self.pinned.append((limits, expires_s))
        return Limits(limits["max_batch_size"], 512, 0.01)

    def release(self) -> Limits:
        return Limits(8, 512, 0.0)

    async def switch_policy(self, kind: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self.switched.append((kind, parameters))
        return {"groups": {}}

    def roll_back_policy(self) -> dict[str, Any]:
        self.switched.append("rollback")
        return {"groups": {}}

    def metrics(self) -> bytes:
        self.metrics_collected += 1
        return b"headway_up 1\n"

    def _say_next(self, request: Request, tokens: list[int], index: int) -> None:
        loop = asyncio.get_running_loop()
        if request.id not in self.requests:
            return
        if index < len(tokens):
            self.say(request.id, [tokens[index]])
            loop.call_soon(self._say_next, request, tokens, index + 1)
        else:
            full = len(tokens) == request.max_new_tokens
            self.finish(request.id, "length" if full else "stop")
