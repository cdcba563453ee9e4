"""When the dispatcher wakes: at the instant that the batcher named, by one timer of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from controller.request import Outcome
from tests.gateway.desk_rig import Heard, Rig


@dataclass
class Timers:
    """The loop's timers, run by hand."""

    set: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def call_later(self, delay_s: float, callback: Callable[[], None], *args: Any) -> Timer:
        entry = (delay_s, callback)
        self.set.append(entry)
        return Timer(self, entry)

    def only(self) -> tuple[float, Callable[[], None]]:
        (entry,) = self.set
        return entry


@dataclass
class Timer:
    timers: Timers
    entry: tuple[float, Callable[[], None]]

    def cancel(self) -> None:
        if self.entry in self.timers.set:
            self.timers.set.remove(self.entry)


@pytest.fixture
async def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    timers = Timers()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", timers.call_later)
    return timers


@pytest.fixture
async def rig(timers: Timers) -> Rig:
    """Ready, with four seats and no hold."""
    rig = Rig()
    rig.ready()
    return rig


@pytest.fixture
async def holding(timers: Timers) -> Rig:
    rig = Rig(
        limits={"max_batch_size": 4, "max_batch_tokens": 1024, "wait_timeout": "20ms"},
    )
    rig.ready()
    return rig


async def test_a_hold_ends_at_its_instant_and_neither_before_nor_after(
    holding: Rig, timers: Timers
) -> None:
    rig = holding
    rig.offer("a", Heard())
    assert rig.wire.begun == []
    delay_s, wake = timers.only()
    assert delay_s == pytest.approx(0.020, abs=1e-9)
    # A timer of the loop may come a little early: then it waits for the rest.
    rig.clock.now += 0.0195
    wake()
    assert rig.wire.begun == []
    delay_s, wake = timers.only()
    assert delay_s == pytest.approx(0.0005, abs=1e-9)
    rig.clock.now = 100.020
    wake()
    assert rig.wire.begun == ["a"]


async def test_a_second_arrival_does_not_begin_the_hold_again(holding: Rig, timers: Timers) -> None:
    rig = holding
    rig.offer("a", Heard())
    rig.clock.now += 0.015
    rig.offer("b", Heard())
    delay_s, wake = timers.only()
    assert delay_s == pytest.approx(0.005, abs=1e-9)
    rig.clock.now = 100.020
    wake()
    assert rig.wire.begun == ["a", "b"]


async def test_who_waits_expires_by_the_clock_alone(rig: Rig, timers: Timers) -> None:
    for name in "abcd":
        rig.offer(name, Heard())
    waiting = Heard()
    rig.offer("e", waiting, start_by=101.5)
    delay_s, wake = timers.only()
    assert delay_s == 1.5
    rig.clock.now = 101.5
    wake()
    assert waiting.log == [(Outcome.EXPIRED, "start_by")]
    assert timers.set == []


async def test_with_nothing_to_wait_for_no_timer_is_set(rig: Rig, timers: Timers) -> None:
    rig.offer("a", Heard())
    rig.report({"a": [5]}, finished=["a"])
    assert timers.set == []
