"""Executors whose memory ends before they say so: nothing is lost, and they stay below it."""

from __future__ import annotations

from typing import Any

import pytest

from bench.arrivals import Arrival, Clients, FaultAt, Workload
from bench.lengths import Lengths
from bench.simulator import Rules, Simulator
from controller.ledger import ExecutorSeats
from controller.listener import Listener
from executor.contract import Report, SimulatedSettings
from tests.bench.runs import given, run

KINDS: dict[str, dict[str, Any]] = {
    "E1": {"runs_to_completion": True, "splits_prefill": False},
    "E2": {"splits_prefill": False},
    "E3": {},
}
KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


class Watch(Listener):
    """When steps ran out of memory."""

    def __init__(self) -> None:
        self.failures: list[float] = []

    def stepped(self, seats: ExecutorSeats, report: Report, now: float) -> None:
        if any(one.reason == "out_of_memory" for one in report.returned):
            self.failures.append(now)


def settings(kind: dict[str, Any], *, fails_above: int = 1000, step_s: float = 0.02) -> Any:
    return SimulatedSettings(
        a_s=step_s, max_seqs=64, kv_tokens=65536, fails_above_tokens=fails_above, **kind
    )


def ceiling(simulator: Simulator) -> float:
    """Tokens, as the guard knows them."""
    return simulator.core.loops["default"].guard.ceiling.tokens(simulator.now)


@KIND
@pytest.mark.parametrize("executors", [("e",), ("e", "f")])
def test_all_are_served_and_what_failed_is_not_tried_again(
    kind: dict[str, Any], executors: tuple[str, ...]
) -> None:
    watch = Watch()
    arrivals = [Arrival(i * 0.01, "paid", 50, 50) for i in range(100)]
    journal, simulator = run(
        given(*arrivals), settings=settings(kind), executors=executors, listeners=[watch]
    )
    assert [(fate.outcome, fate.tokens) for fate in journal.fates] == [("finished", 50)] * 100
    # Twice each at most, within the first batches of a run that lasts several times as long.
    assert 1 <= len(watch.failures) <= 2 * len(executors)
    assert max(watch.failures) < 2 < 5 < simulator.now
    assert 750 < ceiling(simulator) <= 1000


@KIND
def test_of_those_whose_length_nobody_knows_none_is_lost(kind: dict[str, Any]) -> None:
    watch = Watch()
    arrivals = [
        Arrival(i * 0.05, "free", 20 + 7 * i % 90, 10 + 31 * i % 300, asked=0) for i in range(40)
    ]
    journal, simulator = run(
        given(*arrivals, duration_s=400.0), settings=settings(kind), listeners=[watch]
    )
    assert len(journal.fates) == 40
    assert {(fate.outcome, fate.tokens - fate.wanted) for fate in journal.fates} == {
        ("finished", 0)
    }
    assert 1 <= len(watch.failures) <= 2
    assert 650 < ceiling(simulator) <= 1000


@KIND
def test_one_that_can_never_fit_fails_and_the_others_do_not(kind: dict[str, Any]) -> None:
    watch = Watch()
    arrivals = [Arrival(i * 0.01, "paid", 50, 50) for i in range(20)]
    arrivals.append(Arrival(0.5, "paid", 1500, 10))
    arrivals += [Arrival(0.6 + i * 0.01, "paid", 50, 50) for i in range(20)]
    # By now it is known that so long a prompt has no chance, and nobody has to fail for it.
    arrivals.append(Arrival(20.0, "paid", 1500, 10))
    journal, _ = run(given(*arrivals), settings=settings(kind), tokens=2048, listeners=[watch])
    failed = [fate for fate in journal.fates if fate.outcome != "finished"]
    assert [(fate.prompt, fate.outcome, fate.reason) for fate in failed] == [
        (1500, "failed", "does_not_fit"),
        (1500, "rejected", "context_length_exceeded"),
    ]
    assert len(watch.failures) <= 5


@KIND
def test_an_executor_that_had_failed_for_a_moment_serves_as_many_as_before(
    kind: dict[str, Any],
) -> None:
    watch = Watch()
    arrivals = [Arrival(i * 0.001, "paid", 10, 100) for i in range(64)]
    fault = FaultAt(0.05, "oom")
    journal, _ = run(
        given(*arrivals, faults=(fault,)), settings=settings(kind, fails_above=0), listeners=[watch]
    )
    assert [(fate.outcome, fate.tokens) for fate in journal.fates] == [("finished", 100)] * 64
    assert len(watch.failures) == 1


def test_what_is_known_is_probed_again_after_ten_minutes_and_then_seldom() -> None:
    watch = Watch()
    clients = Clients("paid", 30, 0.0, Lengths("fifty", 50, 0.0, 10, 0.0))
    workload = Workload("closed", 2400.0, (), clients=(clients,))
    journal, simulator = run(
        workload,
        settings=settings({}, step_s=2.0),
        listeners=[watch],
        rules=Rules(interval_s=2.0, drain_s=0.0),
    )
    assert {fate.outcome for fate in journal.fates} == {"finished", "open"}
    first = [at for at in watch.failures if at < 600.0]
    later = [at for at in watch.failures if at >= 600.0]
    assert len(first) == 2
    # Not a step at a time: each failure brings ten minutes of peace.
    assert len(later) == 2
    assert later[1] - later[0] > 600.0
    assert 750 < ceiling(simulator) <= 1100
