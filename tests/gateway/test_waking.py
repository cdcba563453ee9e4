"""When the dispatcher wakes: at the instant that the batcher named, by one timer of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from controller.request import Outcome
from tests.gateway.desk_rig import Clock, Heard, Rig


@dataclass
class Timers:
    """The loop's timers, by the instant at which each is due on the rig's clock; run by hand."""

    clock: Clock
    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def call_later(self, delay_s: float, callback: Callable[[], None], *args: Any) -> Timer:
        entry = (round(self.clock.now + delay_s, 9), callback)
        self.due.append(entry)
        return Timer(self, entry)

    def fire(self, now: float) -> float:
        """The only timer goes off, at `now`; answers when it was due."""
        ((due, callback),) = self.due
        self.due.clear()
        self.clock.now = now
        callback()
        return due


@dataclass
class Timer:
    timers: Timers
    entry: tuple[float, Callable[[], None]]

    def cancel(self) -> None:
        if self.entry in self.timers.due:
            self.timers.due.remove(self.entry)


async def rig_and_timers(monkeypatch: pytest.MonkeyPatch, wait: str) -> tuple[Rig, Timers]:
    """Ready at 100 s, with four seats, and a hold of at most `wait`."""
    limits = {"max_batch_size": 4, "max_batch_tokens": 1024, "wait_timeout": wait}
    rig = Rig(limits=limits)
    timers = Timers(rig.clock)
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", timers.call_later)
    await rig.ready()
    return rig, timers


async def test_a_hold_ends_at_its_instant_and_neither_before_nor_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, timers = await rig_and_timers(monkeypatch, "20ms")
    await rig.offer("a", Heard())
    assert rig.wire.begun == []
    # A timer of the loop may come a little early: then it waits for the rest.
    assert timers.fire(100.0195) == 100.020
    assert rig.wire.begun == []
    assert timers.fire(100.020) == 100.020
    assert rig.wire.begun == ["a"]


async def test_a_second_arrival_does_not_begin_the_hold_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, timers = await rig_and_timers(monkeypatch, "20ms")
    await rig.offer("a", Heard())
    rig.clock.now = 100.015
    await rig.offer("b", Heard())
    assert timers.fire(100.020) == 100.020
    assert rig.wire.begun == ["a", "b"]


async def test_an_earlier_instant_takes_the_place_of_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, timers = await rig_and_timers(monkeypatch, "0s")
    for name in "abcd":
        await rig.offer(name, Heard())
    late, early = Heard(), Heard()
    await rig.offer("late", late, start_by=103.0)
    await rig.offer("early", early, start_by=101.5)
    assert timers.fire(101.5) == 101.5
    assert (late.log, early.log) == ([], [(Outcome.EXPIRED, "start_by")])
    assert timers.fire(103.0) == 103.0
    assert late.log == [(Outcome.EXPIRED, "start_by")]
    assert timers.due == []


async def test_with_nothing_to_wait_for_no_timer_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, timers = await rig_and_timers(monkeypatch, "0s")
    await rig.offer("a", Heard(), start_by=105.0)
    await rig.report({"a": [5]}, finished=["a"])
    assert timers.due == []
