"""When the loops tick, what a tick does at once, and what is said of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.loop import Named
from gateway.metering import Meter
from gateway.promises import Promises
from gateway.ticker import Ticker
from metrics.gpu import GpuSample
from policies.contract import Limits, Proposal, Signals
from tests.gateway.desk_rig import CAPACITY, Heard, Rig


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    await rig.ready()
    return rig


@dataclass
class Scripted:
    """Answers what it is told to."""

    size: int | None = None
    error: Exception | None = None

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        if self.error is not None:
            raise self.error
        size = limits.max_batch_size if self.size is None else self.size
        return Proposal(replace(limits, max_batch_size=size), "scripted")


def scripted(rig: Rig) -> Scripted:
    policy = Scripted()
    # By the name of one of Headway's own it is asked at once.
    rig.parts.ticker.loops["default"].switch(Named("static", policy))
    return policy


class Schedule(Ticker):
    """Ticks that cost time on the rig's clock; it ends when there are no more costs."""

    def __init__(self, rig: Rig, costs_s: list[float]) -> None:
        super().__init__(
            {},
            rig.dispatcher,
            {},
            meter=Meter(),
            promises=Promises([], lambda executor: None),
            interval_s=0.25,
            sleep=self._pass_time,
        )
        self.rig, self.costs_s, self.at = rig, costs_s, list[float]()

    def tick(self) -> None:
        self.at.append(round(self.rig.clock.now - 100.0, 3))
        self.rig.clock.now += self.costs_s.pop(0)

    async def _pass_time(self, seconds: float) -> None:
        if not self.costs_s:
            raise asyncio.CancelledError
        self.rig.clock.now += seconds


async def ticks(rig: Rig, costs_s: list[float]) -> list[float]:
    """The instants at which it ticks if its ticks cost so much each."""
    schedule = Schedule(rig, costs_s)
    with pytest.raises(asyncio.CancelledError):
        await schedule.run()
    return schedule.at


async def test_it_keeps_its_schedule_whatever_a_tick_costs(rig: Rig) -> None:
    assert await ticks(rig, [0.0, 0.1, 0.2, 0.0]) == [0.0, 0.25, 0.5, 0.75]


async def test_a_late_tick_is_not_made_up_for(rig: Rig) -> None:
    assert await ticks(rig, [0.0, 0.9, 0.0, 0.0]) == [0.0, 0.25, 1.15, 1.4]


async def test_a_loop_that_has_not_ticked_for_two_seconds_is_not_healthy(rig: Rig) -> None:
    rig.parts.ticker.tick()
    rig.clock.now += 1.9
    assert rig.desk.healthy()
    rig.clock.now += 0.1
    assert not rig.desk.healthy()
    assert rig.desk.readiness()[1]["reasons"] == ["the control loop does not tick"]
    rig.parts.ticker.tick()
    assert rig.desk.healthy()


async def test_new_limits_reach_the_executor_and_the_queue_within_the_tick(rig: Rig) -> None:
    for name in "abcdef":
        await rig.offer(name, Heard())
    assert rig.wire.begun == list("abcd")
    rig.desk.pin({"max_batch_size": 6, "max_batch_tokens": 512}, 60.0)
    assert rig.wire.begun == list("abcdef")
    last = rig.wire.works[-1]
    assert (last.epoch, last.max_batch_tokens) == (1, 512)


async def test_a_lasting_failure_is_logged_once_and_a_move_each_time(rig: Rig) -> None:
    policy = scripted(rig)
    with capture_logs() as logs:
        policy.error = ValueError("no")
        rig.parts.ticker.tick()
        rig.parts.ticker.tick()
        policy.error, policy.size = None, 3
        rig.parts.ticker.tick()
        rig.parts.ticker.tick()
        policy.size = 2
        rig.parts.ticker.tick()
        policy.error = ValueError("no")
        rig.parts.ticker.tick()
    told = [(entry["event"], entry.get("epoch")) for entry in logs]
    assert told == [("policy failed", None), ("limits", 1), ("limits", 2), ("policy failed", None)]


async def test_an_executor_with_work_and_no_step_is_given_up_by_the_tick(rig: Rig) -> None:
    asked: list[tuple[float, int]] = []
    process = rig.parts.processes["main"]
    process.check_progress = lambda now, in_flight: asked.append((now, in_flight))  # type: ignore[method-assign]  # it is watched
    rig.parts.ticker.tick()
    await rig.offer("a", Heard())
    rig.clock.now += 1.0
    rig.parts.ticker.tick()
    assert asked == [(100.0, 0), (101.0, 1)]


class Meters:
    """Stands in for `GpuMeter`: what was asked for, and what each answers."""

    def __init__(self, sample: GpuSample | None) -> None:
        self.answer = sample
        self.devices: list[str] = []
        self.closed = 0

    def __call__(self, device: str) -> Any:
        self.devices.append(device)
        return self

    def sample(self) -> GpuSample | None:
        return self.answer

    def close(self) -> None:
        self.closed += 1


async def test_a_device_is_read_once_a_tick_from_when_it_is_known() -> None:
    meters = Meters(GpuSample(0.4, 3, 4))
    rig = Rig(gpu_meter=meters)
    ticker = rig.parts.ticker
    ticker.tick()
    assert meters.devices == []
    await rig.ready()
    await rig.offer("a", Heard())
    await rig.report({"a": [1]})
    ticker.tick()
    ticker.tick()
    assert meters.devices == [CAPACITY.device]
    seen = ticker.loops["default"].decisions[-1].signals.executors[0]
    assert seen.utilization is not None
    assert (seen.utilization.value, seen.utilization.source) == (0.4, "nvml")
    assert seen.memory == 0.75
    ticker.close()
    assert meters.closed == 1


async def test_without_a_counter_the_busy_fraction_stands_in() -> None:
    rig = Rig(gpu_meter=Meters(None))
    ticker = rig.parts.ticker
    await rig.ready()
    await rig.offer("a", Heard())
    rig.clock.now += 1.0
    for _ in range(50):
        await rig.report({"a": []})
    ticker.tick()
    seen = ticker.loops["default"].decisions[-1].signals.executors[0]
    assert seen.utilization is not None
    assert (round(seen.utilization.value, 6), seen.utilization.source) == (0.5, "busy")
    assert seen.memory is None
