"""The desk: what the HTTP side may ask of the daemon, and who answers it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controller.errors import InvalidRequest
from controller.guard import NAMES
from controller.observer import Observer
from controller.places import Permit
from controller.request import Outcome, Request
from executor.contract import Capacity, TextModel
from executor.face import Executor
from gateway.asking import Abandoned
from gateway.contract import Sink
from gateway.control_view import group_view, notes
from gateway.dispatcher import Dispatcher
from gateway.metering import Meter
from gateway.promises import Promises
from gateway.switching import Switching
from gateway.ticker import Ticker
from gateway.views import decision_view, request_view
from policies.contract import LimitName, Limits


class ServingDesk:
    """The daemon as its HTTP handlers see it; see `gateway.contract.Desk`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        observer: Observer,
        ticker: Ticker,
        *,
        processes: Mapping[str, Executor],
        meter: Meter,
        promises: Promises,
        abandoned: Abandoned,
        version: str,
    ) -> None:
        self._dispatcher = dispatcher
        self._batcher = dispatcher.batcher
        self._observer = observer
        self._ticker = ticker
        self._processes = processes
        self._meter = meter
        self._promises = promises
        self._abandoned = abandoned
        self._switching = Switching(ticker.loops)
        self._version = version
        self._started = dispatcher.clock()

    # --- requests ---------------------------------------------------------------------------

    def now(self) -> float:
        return self._dispatcher.clock()

    def model(self) -> tuple[TextModel, Capacity]:
        return self._dispatcher.model()

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
        return self._dispatcher.reserve(
            tier,
            requests=requests,
            tokens=tokens,
            size=size,
            start_by=start_by,
            client=client,
        )

    def give_back(self, permit: Permit) -> None:
        self._dispatcher.give_back(permit)

    def offer(self, request: Request, permit: Permit, sink: Sink) -> None:
        self._dispatcher.offer(request, permit, sink)

    def cancel(self, request_id: str, outcome: Outcome, reason: str) -> bool:
        return self._dispatcher.cancel(request_id, outcome, reason)

    # --- operators --------------------------------------------------------------------------

    def healthy(self) -> bool:
        return self._ticker.healthy()

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        executors = {
            name: {"state": process.state, "detail": process.words}
            for name, process in self._processes.items()
        }
        reasons = []
        if self._batcher.admission.draining:
            reasons.append("draining: nothing new is taken")
        if not any(seats.ready for seats in self._batcher.executors.values()):
            words = "; ".join(f"{name}: {p.words}" for name, p in self._processes.items())
            reasons.append(f"no executor is ready ({words})")
        if not self._ticker.healthy():
            reasons.append("the control loop does not tick")
        return not reasons, {
            "reasons": reasons,
            "notes": [*notes(self._ticker.loops, abandoned=len(self._abandoned))],
            "warnings": self._promises.words,
            "executors": executors,
        }

    def state(self) -> dict[str, Any]:
        now = self.now()
        book = self._batcher.book
        ready, reasons = self.readiness()
        return {
            "version": self._version,
            "uptime_s": round(now - self._started, 3),
            "ready": ready,
            "readiness": reasons,
            "requests": {
                "offered": book.offered,
                "queued": self._batcher.queued(),
                "running": self._batcher.running(),
                **{outcome.value: book.outcomes[outcome] for outcome in Outcome},
            },
            "tiers": {name: self._tier(name, now) for name in self._batcher.queues},
            "executors": {name: self._executor(name) for name in self._batcher.executors},
            "groups": {name: group_view(loop, now) for name, loop in self._ticker.loops.items()},
        }

    def decisions(self, count: int) -> list[dict[str, Any]]:
        kept = [d for loop in self._ticker.loops.values() for d in loop.decisions]
        kept.sort(key=lambda decision: (decision.at, decision.number), reverse=True)
        return [decision_view(decision) for decision in kept[:count]]

    def request(self, request_id: str) -> dict[str, Any] | None:
        request = self._batcher.book.requests.get(request_id)
        if request is not None:
            return request_view(request, self.now())
        ended = self._dispatcher.remembered.get(request_id)
        return None if ended is None else ended.view()

    def pin(self, limits: dict[str, Any], expires_s: float) -> Limits:
        for loop in self._ticker.loops.values():
            wanted = replace(loop.limits, **self._checked(limits))
            loop.hold(wanted, until=self.now() + expires_s)
        self._ticker.tick()
        return self._limits()

    def release(self) -> Limits:
        for loop in self._ticker.loops.values():
            loop.release()
        self._ticker.tick()
        return self._limits()

    async def switch_policy(self, kind: str, parameters: dict[str, Any]) -> dict[str, Any]:
        return await self._switching.switch(kind, parameters)

    def roll_back_policy(self) -> dict[str, Any]:
        return self._switching.roll_back()

    def metrics(self) -> bytes:
        self._meter.look(
            self._batcher,
            self._observer,
            self._ticker.loops,
            executors=self._processes,
            now=self.now(),
            ready=self.readiness()[0],
            gpu=self._ticker.gpu,
            abandoned=len(self._abandoned),
        )
        return self._meter.instruments.render()

    # --- inside -----------------------------------------------------------------------------

    def _limits(self) -> Limits:
        return next(iter(self._ticker.loops.values())).limits

    def _checked(self, asked: dict[str, Any]) -> dict[LimitName, Any]:
        """Limits that somebody asks for by hand. Raises InvalidRequest, naming what would do."""
        envelope = next(iter(self._ticker.loops.values())).guard.envelope
        found: dict[LimitName, Any] = {}
        for key, value in asked.items():
            name = next((known for known in NAMES if known == key), None)
            if name is None:
                raise InvalidRequest(f"{key}: unknown; use {', '.join(NAMES)}", param=key)
            low, high = getattr(envelope.low, name), getattr(envelope.high, name)
            whole = name != "wait_timeout_s"
            kinds = int if whole else int | float
            right = isinstance(value, kinds) and not isinstance(value, bool)
            if not right or not math.isfinite(value) or not low <= value <= high:
                kind = "a whole number" if whole else "seconds"
                raise InvalidRequest(
                    f"{key}: {value!r} should be {kind} from {low} to {high}, the envelope",
                    param=key,
                )
            found[name] = value
        return found

    def _tier(self, name: str, now: float) -> dict[str, Any]:
        queue = self._batcher.queues[name]
        oldest = queue.oldest()
        return {
            "priority": queue.tier.priority,
            "queued": len(queue),
            "queued_tokens": queue.tokens,
            "oldest_wait_s": None if oldest is None else round(now - oldest.arrival, 6),
            "running": sum(s.by_tier.get(name, 0) for s in self._batcher.executors.values()),
            "late": queue.late(now),
            "owed_tokens": round(self._batcher.scheduler.owed()[name], 1),
            "shed_ratio": round(self._batcher.admission.shed.get(name, 0.0), 4),
        }

    def _executor(self, name: str) -> dict[str, Any]:
        seats, process = self._batcher.executors[name], self._processes[name]
        capacity = seats.capacity
        return {
            "group": seats.group,
            "state": process.state,
            "detail": process.words,
            "pid": process.pid,
            "restarts": process.restarts,
            "incarnation": seats.incarnation,
            "running": len(seats.seats),
            "reserved_tokens": seats.reserved_tokens,
            "kv": self._observer.executors[name].kv if seats.ready else None,
            "seats": None if capacity is None else capacity.max_seqs,
            "kv_tokens": None if capacity is None else capacity.kv_tokens,
            "model": None if capacity is None else capacity.model,
            "device": None if capacity is None else capacity.device,
            **process.view(self.now()),
        }
