"""When the control loops tick: on schedule, and once more when somebody sets limits by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from controller.decision import Decision, TierDecision
from controller.loop import ControlLoop
from controller.signals import Device
from executor.face import Executor
from gateway.dispatcher import Dispatcher
from gateway.metering import Meter
from gateway.promises import Promises
from metrics.gpu import GpuMeter, GpuSample
from policies.contract import Limits

# A loop that has not ticked for so many intervals (and at least a second) is not healthy.
MISSED_TICKS = 8


class Ticker:
    """Owns timer and deadline of the control loops, and reads the devices for them."""

    def __init__(
        self,
        loops: Mapping[str, ControlLoop],
        dispatcher: Dispatcher,
        processes: Mapping[str, Executor],
        *,
        meter: Meter,
        promises: Promises,
        interval_s: float,
        gpu_meter: Callable[[str], GpuMeter] = GpuMeter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.loops = loops
        self.gpu: GpuSample | None = None
        self._dispatcher = dispatcher
        self._processes = processes
        self._meter = meter
        self._promises = promises
        self._interval_s = interval_s
        self._gpu_meter = gpu_meter
        self._sleep = sleep
        self._meters: dict[str, GpuMeter] = {}
        self._sleeping: asyncio.Future[None] | None = None
        self._ticked_at = dispatcher.clock()
        self._errors: dict[str, str] = {}
        self._wanted: dict[str, Limits] = {}
        self._log: Any = structlog.get_logger("headway.control")

    async def run(self) -> None:
        """Tick until cancelled. A tick that comes late is not made up for."""
        due = self._dispatcher.clock()
        while True:
            self.tick()
            now = self._dispatcher.clock()
            due = max(due + self._interval_s, now)
            await self._wait(due - now)

    def every(self, interval_s: float) -> None:
        """Tick that often, from now on."""
        self._interval_s = interval_s
        # Whoever sleeps for the old interval may be a long way from waking up.
        sleeping, self._sleeping = self._sleeping, None
        if sleeping is not None:
            sleeping.cancel()

    async def _wait(self, seconds: float) -> None:
        """Sleep, unless the interval changes."""
        sleeping = self._sleeping = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait({sleeping})
            if self._sleeping is sleeping:
                sleeping.result()
        finally:
            sleeping.cancel()

    def tick(self) -> None:
        """One tick of every loop, and a look at whether every executor makes progress."""
        now = self._dispatcher.clock()
        devices = {name: self._device(name) for name in self._processes}
        for loop in self.loops.values():
            self._note(loop.tick(now, wall=time.time(), devices=devices))
        self._promises.look(self._processes)
        seats = self._dispatcher.batcher.executors
        for name, process in self._processes.items():
            process.check_progress(now, len(seats[name].seats))
        self._ticked_at = now
        # New limits reach executors and free seats at once.
        self._dispatcher.pump()

    def healthy(self) -> bool:
        """Whether the loops tick."""
        patience_s = max(1.0, MISSED_TICKS * self._interval_s)
        return self._dispatcher.clock() - self._ticked_at < patience_s

    def close(self) -> None:
        """Let the devices go."""
        for meter in self._meters.values():
            meter.close()

    def _note(self, decision: Decision) -> None:
        self._meter.decided(decision)
        self._note_failures(decision.group, decision)
        for tier in decision.tiers:
            self._note_failures(f"{decision.group}, tier {tier.tier}", tier)
        for shadow in decision.shadows:
            if shadow.error:
                self._log.warning(
                    "shadow dropped", group=decision.group, policy=shadow.name, reason=shadow.error
                )
        # What is only observed would be the same at every tick: told when it changes.
        wanted, self._wanted[decision.group] = self._wanted.get(decision.group), decision.judged
        if decision.moved or (decision.observed and decision.judged != wanted):
            self._log.info(
                "limits" if decision.moved else "limits not applied",
                group=decision.group,
                epoch=decision.epoch,
                policy=decision.policy,
                code=decision.code,
                decision=decision.sentence(),
            )

    def _note_failures(self, whose: str, decided: Decision | TierDecision) -> None:
        told = self._errors.get(whose, "")
        # The failure that brings another policy is told, also where it is the same once more.
        if decided.error and (decided.error != told or decided.successor):
            self._log.error("policy failed", group=whose, reason=decided.reason)
        self._errors[whose] = decided.error

    def _device(self, executor: str) -> Device:
        capacity = self._dispatcher.batcher.executors[executor].capacity
        if capacity is None:
            return Device()
        meter = self._meters.get(executor)
        if meter is None:
            meter = self._meters[executor] = self._gpu_meter(capacity.device)
        sample = meter.sample()
        if sample is None:
            return Device()
        self.gpu = sample
        return Device(sample.utilization, sample.memory_used / sample.memory_size)
