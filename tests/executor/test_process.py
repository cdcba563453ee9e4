"""The daemon's side sees every death, tells it once, and brings the executor back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from executor.contract import (
    Fault,
    Finished,
    Loading,
    Ready,
    Report,
    Sampling,
    Submit,
    Work,
)
from executor.process import ExecutorProcess, RestartPolicy, State

KILLED = "killed: by signal 9 (Killed)"


class Witness:
    """Everything that was told, in order, and a way to wait for it."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.reports: list[Report] = []
        self.lost_at: list[float] = []
        self.during_report: Callable[[Report], None] = lambda report: None
        self._news = asyncio.Event()

    def on_loading(self, name: str, loading: Loading) -> None:
        self._tell("loading", loading.stage)

    def on_ready(self, name: str, incarnation: int, ready: Ready) -> None:
        self._tell("ready", incarnation)

    def on_report(self, name: str, incarnation: int, report: Report) -> None:
        self.reports.append(report)
        self._tell("report", incarnation)
        self.during_report(report)

    def on_lost(self, name: str, incarnation: int, reason: str, restart_in_s: float | None) -> None:
        self.lost_at.append(time.monotonic())
        self._tell("lost", incarnation, reason, restart_in_s)

    def _tell(self, *what: Any) -> None:
        self.log.append(what)
        self._news.set()

    async def until(self, *what: Any) -> None:
        """Wait until this was told."""
        await self.until_true(lambda: what in self.log)

    async def until_true(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    def lost(self) -> list[tuple[Any, ...]]:
        return [entry[1:] for entry in self.log if entry[0] == "lost"]


class Time:
    """A clock that stands still until it is told; sleeps end at once and are remembered."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@asynccontextmanager
async def executor(
    witness: Witness, settings: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[ExecutorProcess]:
    """One that was started, and is stopped at the end."""
    fake = Time()
    options = {"clock": fake.clock, "sleep": fake.sleep} | options
    process = ExecutorProcess(
        "gpu-0", options.pop("kind", "simulated"), settings or {}, witness, **options
    )
    process.start()
    try:
        yield process
    finally:
        await process.stop(1.0)


def submit(name: str, output: int) -> Submit:
    return Submit(name, 1, [1, 2, 3], 3, output, Sampling())


ENDLESS = {"max_context_tokens": 10**9, "kv_tokens": 10**9}


async def test_work_goes_in_and_tokens_come_out() -> None:
    witness = Witness()
    async with executor(witness) as process:
        assert (process.state, process.pid, process.ready) == (State.STARTING, None, False)
        await witness.until("ready", 1)
        assert (process.state, process.words) == (State.READY, "simulated on simulated")
        process.send(Work(5, 64, [submit("a", 2)]))
        await witness.until_true(lambda: len(witness.reports) == 2)
    assert witness.log == [
        ("loading", "simulating a model"),
        ("ready", 1),
        ("report", 1),
        ("report", 1),
    ]
    assert witness.reports[1].finished == [Finished("a", 1, "length")]
    assert (process.state, process.words, process.pid) == (State.STOPPED, "stopped", None)


async def kill_three_times() -> None:
    witness = Witness()
    killed_at: list[float] = []
    async with executor(witness) as process:
        for incarnation in (1, 2, 3):
            await witness.until("ready", incarnation)
            assert (process.incarnation, process.restarts) == (incarnation, incarnation - 1)
            killed_at.append(time.monotonic())
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            await witness.until_true(lambda: len(witness.lost_at) == len(killed_at))
        await witness.until("ready", 4)
    assert witness.lost() == [(1, KILLED, 0.5), (2, KILLED, 1.0), (3, KILLED, 2.0)]
    delays = [lost - at for lost, at in zip(witness.lost_at, killed_at, strict=True)]
    assert min(delays) < 0.1


async def test_a_kill_is_told_within_100_ms_and_followed_by_a_new_incarnation() -> None:
    await kill_three_times()


async def test_nothing_of_a_dead_incarnation_reaches_its_successor_or_the_daemon() -> None:
    witness = Witness()
    async with executor(witness, ENDLESS) as process:
        await witness.until("ready", 1)
        process.send(Work(1, 64, [submit("old", 10**8)]))
        await witness.until_true(lambda: len(witness.reports) > 100)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.send(Work(1, 64, [submit("into the void", 9)]))
        await witness.until("lost", 1, KILLED, 0.5)
        process.send(Work(1, 64, [submit("too late", 9)]))
        witness.reports.clear()
        await witness.until("ready", 2)
        process.send(Work(1, 64, [submit("new", 1)]))
        await witness.until("report", 2)
    after = witness.log[witness.log.index(("lost", 1, KILLED, 0.5)) :]
    assert ("report", 1) not in after
    assert {tokens.request_id for report in witness.reports for tokens in report.tokens} == {"new"}


# Progress


async def test_work_in_flight_without_a_step_is_a_stall_at_the_exact_instant() -> None:
    witness, fake = Witness(), Time()
    async with executor(witness, clock=fake.clock, sleep=fake.sleep, stall_after_s=5.0) as process:
        await witness.until("ready", 1)
        process.fault(Fault("stall", 600.0))
        process.send(Work(1, 64, [submit("a", 9), submit("b", 9)]))
        process.check_progress(1004.75, 2)
        assert process.ready
        stalled = process.pid
        assert stalled is not None
        process.check_progress(1005.0, 2)
        await witness.until("lost", 1, "stalled: 5.0 s without a step, 2 in flight", 0.5)
        await witness.until("ready", 2)
        with pytest.raises(ProcessLookupError):  # its memory was free before the next began
            os.kill(stalled, 0)


async def test_an_idle_executor_is_not_stalled_however_long_it_idles() -> None:
    witness, fake = Witness(), Time()
    async with executor(witness, clock=fake.clock, stall_after_s=5.0) as process:
        await witness.until("ready", 1)
        process.check_progress(1900.0, 0)
        process.check_progress(1904.0, 1)  # a request came after that
        fake.now = 1904.5
        process.send(Work(1, 64, [submit("a", 1)]))
        await witness.until("report", 1)
        process.check_progress(1909.0, 1)
    assert witness.lost() == []


async def test_a_report_is_progress() -> None:
    witness, fake = Witness(), Time()
    async with executor(witness, clock=fake.clock, sleep=fake.sleep, stall_after_s=5.0) as process:
        await witness.until("ready", 1)
        fake.now = 1004.0
        process.send(Work(1, 64, [submit("a", 1)]))
        await witness.until("report", 1)
        process.check_progress(1008.75, 1)
        assert process.ready
        process.check_progress(1009.25, 1)
        await witness.until("lost", 1, "stalled: 5.2 s without a step, 1 in flight", 0.5)


async def test_a_loading_that_takes_too_long_is_given_up() -> None:
    witness, fake = Witness(), Time()
    async with executor(
        witness, {"load_s": 600.0}, clock=fake.clock, sleep=fake.sleep, load_timeout_s=20.0
    ) as process:
        await witness.until("loading", "simulating a model")
        assert (process.state, process.words) == (State.LOADING, "simulating a model")
        process.check_progress(1019.5, 0)
        process.check_progress(1020.0, 0)
        await witness.until("lost", 1, "load_timeout: not ready after 20.0 s", 0.5)


# Restarts


def test_the_wait_doubles_from_half_a_second_to_thirty() -> None:
    policy = RestartPolicy()
    assert [policy.delay_s(losses) for losses in range(1, 9)] == [
        0.5,
        1.0,
        2.0,
        4.0,
        8.0,
        16.0,
        30.0,
        30.0,
    ]
    assert policy.delay_s(100_000) == 30.0


async def test_a_life_of_a_minute_begins_the_wait_anew() -> None:
    witness, fake = Witness(), Time()
    async with executor(witness, clock=fake.clock, sleep=fake.sleep) as process:
        for incarnation, life_s in enumerate([0.0, 59.5, 60.0, 0.0], start=1):
            await witness.until("ready", incarnation)
            fake.now += life_s
            process.fault(Fault("exit"))
        await witness.until("ready", 5)
    delays = [0.5, 1.0, 0.5, 1.0]
    assert fake.slept == delays
    assert witness.lost() == [
        (incarnation, "exited: with code 70", delay_s)
        for incarnation, delay_s in enumerate(delays, start=1)
    ]


async def test_what_a_restart_cannot_help_is_not_restarted() -> None:
    witness, fake = Witness(), Time()
    words = "broken: no executor of kind 'quantum', there are continuous, padded, simulated"
    async with executor(witness, kind="quantum", sleep=fake.sleep) as process:
        await witness.until("lost", 1, words, None)
        assert (process.state, process.words) == (State.LOST, f"{words}; does not come back")
        assert (process.pid, fake.slept) == (None, [])


async def test_a_process_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    witness = Witness()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        async with executor(witness, sleep=Time().sleep):
            await witness.until_true(lambda: len(witness.lost()) == 2)
    words = "not_started: [Errno 2] No such file or directory: '/nowhere/python'"
    assert witness.lost()[:2] == [(1, words, 0.5), (2, words, 1.0)]


async def raise_in_a_handler() -> None:
    witness = Witness()
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: said.append(repr(context.get("exception")))
    )

    def refuse(report: Report) -> None:
        raise KeyError("a")

    witness.during_report = refuse
    async with executor(witness) as process:
        await witness.until("ready", 1)
        process.send(Work(1, 64, [submit("a", 5)]))
        await witness.until("lost", 1, "handler: KeyError('a')", 0.5)
        await witness.until("ready", 2)
    assert said == ["KeyError('a')"]
    assert len(witness.reports) == 1


async def test_a_handler_that_raises_costs_this_incarnation_and_is_said() -> None:
    await raise_in_a_handler()


async def test_one_who_cannot_bear_the_loss_gets_the_executor_back_all_the_same() -> None:
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: said.append(context["message"])
    )

    class Sensitive(Witness):
        def on_lost(self, *what: Any) -> None:
            raise RuntimeError("oh no")

    witness = Sensitive()
    async with executor(witness) as process:
        await witness.until("ready", 1)
        process.fault(Fault("exit"))
        await witness.until("ready", 2)
    assert said == ["on_lost of executor gpu-0 raised"]


@pytest.mark.parametrize("scenario", [kill_three_times, raise_in_a_handler])
def test_uvloop_makes_no_difference(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(scenario())


# Stopping


@pytest.mark.parametrize(
    ("settings", "fault", "grace_s"),
    [
        ({}, None, 30.0),  # at its own pace
        ({}, Fault("stall", 600.0), 0.01),  # by force: it does not listen
        ({"load_s": 600.0}, None, 30.0),  # at once: it has nothing to finish
    ],
)
async def test_a_stop_ends_the_process_for_good_and_is_no_loss(
    settings: dict[str, Any], fault: Fault | None, grace_s: float
) -> None:
    witness = Witness()
    async with executor(witness, settings | ENDLESS) as process:
        await witness.until("loading", "simulating a model")
        if not settings:
            await witness.until("ready", 1)
            process.send(Work(1, 64, [submit("a", 10**8)]))
            await witness.until("report", 1)
        if fault is not None:
            process.fault(fault)
        pid = process.pid
        assert pid is not None
        await process.stop(grace_s)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert witness.lost() == []
    assert process.state is State.STOPPED


async def test_one_that_was_never_started_can_be_stopped() -> None:
    process = ExecutorProcess("gpu-0", "simulated", {}, Witness())
    process.send(Work(1, 64))
    process.check_progress(10**6, 1)
    await process.stop(1.0)
    assert (process.state, process.incarnation) == (State.STOPPED, 0)


async def test_a_stop_during_the_wait_for_a_restart_ends_the_wait() -> None:
    witness = Witness()

    async def forever(seconds: float) -> None:
        await asyncio.Event().wait()

    async with executor(witness, sleep=forever) as process:
        await witness.until("ready", 1)
        process.fault(Fault("exit"))
        await witness.until("lost", 1, "exited: with code 70", 0.5)
    assert (process.state, process.incarnation) == (State.STOPPED, 1)
