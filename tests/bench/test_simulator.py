"""The simulator does what the daemon with a simulated worker would, instant by instant."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.arrivals import Arrival, Clients, FaultAt, Workload
from bench.journal import Journal
from bench.lengths import Lengths
from bench.simulator import Rules, Simulator
from bench.workloads import Phase, arrivals
from controller.tiers import Targets, Tier
from executor.contract import SimulatedSettings
from tests.bench.runs import SECONDS, TIERS, given, run, times
from tests.controller.stage import OFFLINE, PAID

ONE = Lengths("one", 1, 0, 1, 0)
SHORT = Lengths("short", 40, 0.8, 12, 0.8, 200, 60)
KINDS: dict[str, dict[str, Any]] = {
    "E1": {"runs_to_completion": True, "splits_prefill": False},
    "E2": {"splits_prefill": False},
    "E3": {},
}
KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
COSTS: dict[str, Any] = {
    "a_s": 0.02,
    "b_s": 1e-6,
    "c_s": 1e-3,
    "d_s": 1e-4,
    "max_seqs": 16,
    "max_step_tokens": 512,
    "kv_tokens": 1500,
    "max_context_tokens": 512,
}


def test_a_request_is_prefilled_in_one_step_and_decoded_in_the_others() -> None:
    journal, simulator = run(given(Arrival(2.0, "paid", 5, 3)))
    (fate,) = journal.fates
    assert times(fate) == (3.0, 5.0, 5.0)
    assert (fate.outcome, fate.tokens, fate.prompt) == ("finished", 3, 5)
    # The two decode steps were one event.
    assert (simulator.steps, simulator.reports) == (3, 2)


def test_who_arrives_during_a_step_joins_the_next() -> None:
    journal, _ = run(given(Arrival(0.0, "paid", 1, 10), Arrival(4.5, "paid", 1, 2)))
    second, first = journal.fates
    assert times(second) == (6.0, 7.0, 7.0)
    assert times(first) == (1.0, 10.0, 10.0)


def test_a_seat_that_a_step_frees_is_taken_in_the_next() -> None:
    journal, _ = run(given(Arrival(0.0, "paid", 1, 2), Arrival(0.1, "free", 1, 1)), size=1)
    assert [times(fate) for fate in journal.fates] == [(1.0, 2.0, 2.0), (3.0, 3.0, 3.0)]


def test_the_higher_tier_goes_first_and_with_one_queue_the_older() -> None:
    workload = given(
        Arrival(0.0, "offline", 1, 3), Arrival(0.1, "offline", 1, 1), Arrival(0.2, "paid", 1, 1)
    )
    ours, _ = run(workload, size=1)
    # It takes the seat of the one that runs, which would have kept it waiting.
    assert [fate.tier for fate in ours.fates] == ["paid", "offline", "offline"]
    everybody = (PAID, OFFLINE)
    fifo, _ = run(
        workload,
        size=1,
        tiers=[*everybody, type(PAID)("all", 5)],
        rules=Rules(fifo=True),
    )
    assert [fate.tier for fate in fifo.fates] == ["offline", "offline", "paid"]


def test_a_batch_is_held_for_company_in_virtual_time() -> None:
    settings = SimulatedSettings(**SECONDS, runs_to_completion=True)
    workload = given(Arrival(0.0, "free", 1, 1), Arrival(0.3, "free", 1, 1))
    journal, _ = run(workload, settings=settings, wait_s=0.5)
    assert [times(fate)[2] for fate in journal.fates] == [1.5, 1.5]


def test_a_completion_may_be_shorter_than_was_asked_for() -> None:
    journal, _ = run(given(Arrival(0.0, "paid", 1, 3, asked=50)))
    (fate,) = journal.fates
    assert (fate.tokens, fate.ended_s, fate.reason) == (3, 3.0, "stop")


def test_a_completion_without_a_bound_is_booked_as_long_as_it_is_thought_to_become() -> None:
    settings = SimulatedSettings(**SECONDS, kv_tokens=400)
    come = [Arrival(0.1 * index, "paid", 1, 3, asked=0) for index in range(2)]
    journal, _ = run(given(*come), settings=settings)
    # Twice 257 tokens do not fit into 400: the second waits for the end of the first.
    assert [times(fate) for fate in journal.fates] == [(1.0, 3.0, 3.0), (4.0, 6.0, 6.0)]


def test_who_finds_the_queue_full_is_written_down() -> None:
    tier = type(PAID)("paid", 1, max_queue_requests=1)
    come = [Arrival(0.1 * index, "paid", 1, 5) for index in range(3)]
    journal, _ = run(given(*come), size=1, tiers=[tier])
    assert [(fate.outcome, fate.reason) for fate in journal.fates] == [
        ("rejected", "rate_limit_exceeded"),
        ("finished", "length"),
        ("finished", "length"),
    ]


def test_who_expires_does_so_at_its_instant() -> None:
    tier = type(PAID)("paid", 1, start_within_s=2.25)
    journal, _ = run(
        given(Arrival(0.0, "paid", 1, 9), Arrival(1.0, "paid", 1, 5)), size=1, tiers=[tier]
    )
    assert (journal.fates[0].outcome, journal.fates[0].ended_s) == ("expired", 3.25)


def test_clients_come_again_when_they_are_answered_and_have_thought() -> None:
    lengths = Lengths("two", 1, 0, 2, 0)
    journal, _ = run(given(duration_s=7.0, clients=(Clients("paid", 1, 0.0, lengths),)))
    assert [times(fate)[2] for fate in journal.fates] == [2.0, 4.0, 6.0, 8.0]


def test_a_client_that_is_turned_away_comes_again() -> None:
    tier = type(PAID)("paid", 1, max_queue_requests=1)
    clients = Clients("paid", 3, 0.0, Lengths("four", 1, 0, 4, 0))
    journal, _ = run(given(duration_s=4.5, clients=(clients,)), size=1, tiers=[tier])
    told = [(fate.outcome, times(fate)[2]) for fate in journal.fates]
    # Of three that come together one has a place; a second later the next has one, and the third
    # is turned away until the first has ended.
    assert told[:6] == [("rejected", float(s)) for s in (0, 0, 1, 2, 3)] + [("finished", 4.0)]


def test_a_stall_lasts_as_long_as_it_is_told_to() -> None:
    journal, _ = run(given(Arrival(0.0, "paid", 1, 4), faults=(FaultAt(1.5, "stall", 5.0),)))
    assert times(journal.fates[0]) == (1.0, 9.0, 9.0)


def test_a_worker_that_is_gone_is_back_and_goes_on_where_it_was() -> None:
    journal, _ = run(given(Arrival(0.0, "paid", 1, 6), faults=(FaultAt(3.5, "exit", 2.0),)))
    (fate,) = journal.fates
    # Three tokens were told before the end, the fourth was lost in the step under way.
    assert (fate.outcome, fate.tokens, times(fate)) == ("finished", 6, (1.0, 8.5, 8.5))


def test_what_is_done_blindly_is_not_measured() -> None:
    workload = given(Arrival(0.0, "paid", 1, 20), faults=(FaultAt(0.5, "blind", 10.0),))
    journal, simulator = run(workload)
    assert journal.fates[0].tokens == 20
    assert journal.busy_s == 10.0
    assert simulator.core.observer.executors["e"].last_report == 20.0


def test_starvation_is_the_longest_wait_without_a_seat_or_a_token() -> None:
    workload = given(Arrival(0.0, "paid", 1, 9), Arrival(0.5, "offline", 1, 2))
    journal, _ = run(workload, size=1)
    assert journal.longest_starvation_s() == {"offline": 8.5, "paid": 0.0}


def test_two_executors_share_one_queue() -> None:
    come = [Arrival(0.0, "paid", 1, 2), Arrival(0.0, "paid", 1, 2)]
    journal, _ = run(given(*come), executors=("a", "b"), size=1)
    assert [times(fate)[2] for fate in journal.fates] == [2.0, 2.0]


def _busy(seed: int) -> Workload:
    lengths = SHORT
    phases = [Phase(30.0, 6.0, lengths, cv=2.0), Phase(30.0, 2.0, lengths)]
    made = tuple(arrivals(phases, seed))
    clients = (Clients("offline", 5, 0.4, lengths),)
    faults = (FaultAt(20.0, "stall", 1.0), FaultAt(40.0, "exit", 2.0), FaultAt(50.0, "fail"))
    return Workload("busy", 60.0, made, clients, faults)


@KIND
@pytest.mark.parametrize("executors", [("a",), ("a", "b")], ids=["one", "two"])
def test_leaping_comes_to_the_same_as_step_by_step(
    kind: dict[str, Any], executors: tuple[str, ...]
) -> None:
    # Without targets: the step model learns a leap as one sample, so what is decided by it (who
    # would be late, who keeps the pace) may differ by a hair.
    free = tuple(replace(tier, targets=Targets()) for tier in TIERS)
    (leapt, fast), (stepped, slow) = _both_ways(kind, executors, free)
    assert fast.reports < slow.reports
    assert fast.steps == slow.steps
    assert [times(fate) for fate in leapt.fates] == [times(fate) for fate in stepped.fates]
    assert [fate.tokens for fate in leapt.fates] == [fate.tokens for fate in stepped.fates]


@KIND
def test_with_targets_leaping_comes_to_nearly_the_same(kind: dict[str, Any]) -> None:
    (leapt, _), (stepped, _) = _both_ways(kind, ("a",), TIERS)
    assert _mean_e2e(leapt) == pytest.approx(_mean_e2e(stepped), rel=0.05)


def _both_ways(
    kind: dict[str, Any], executors: tuple[str, ...], tiers: Sequence[Tier]
) -> list[tuple[Journal, Simulator]]:
    """A run in leaps, and the same one step by step."""
    return [
        run(
            _busy(7),
            settings=SimulatedSettings(**COSTS, **kind, jitter=0.1),
            executors=executors,
            tiers=tiers,
            size=12,
            tokens=256,
            policy=policy,
            rules=Rules(leap=leap),
        )
        for leap, policy in ((True, "static"), (False, "tests.bench.runs:Still"))
    ]


@KIND
def test_where_a_policy_looks_every_step_is_reported_by_itself(kind: dict[str, Any]) -> None:
    _, simulator = run(
        _busy(7), settings=SimulatedSettings(**COSTS, **kind), size=12, tokens=256, policy="aimd"
    )
    assert simulator.reports >= simulator.steps > 1000


def _mean_e2e(journal: Journal) -> float:
    took = [fate.ended_s - fate.arrival_s for fate in journal.fates if fate.outcome == "finished"]
    return sum(took) / len(took)


def inoue(rate: float, per_row_s: float, fixed_s: float) -> float:
    """The closed upper bound of the mean latency of a batch server with Poisson arrivals that
    takes everybody who waits: Inoue, "Queueing analysis of GPU-based inference servers with dynamic
    batching", Performance Evaluation 147 (2021), theorem 2."""
    load = rate * per_row_s
    first = (per_row_s + fixed_s) / (2 * (1 - load))
    first *= 1 + 2 * rate * fixed_s + (1 - rate * fixed_s) / (1 + load)
    second = 1.5 * fixed_s / (1 - load) + per_row_s / 2 * (load + 2) / (1 - load * load)
    return min(first, second)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.7, 0.9])
@pytest.mark.parametrize(("per_row_s", "fixed_s"), [(0.01, 0.02), (0.02, 0.02)])
def test_mean_latency_lies_at_inoues_bound(load: float, per_row_s: float, fixed_s: float) -> None:
    rate, drawn, now = load / per_row_s, random.Random(3), 0.0
    come = []
    # The fuller it is, the longer it takes to forget how it began.
    count = 4000 if load < 0.8 else 30_000
    for _ in range(count):
        now += drawn.expovariate(rate)
        come.append(Arrival(now, "offline", 1, 1))
    settings = SimulatedSettings(
        a_s=fixed_s,
        c_s=per_row_s,
        runs_to_completion=True,
        max_seqs=4096,
        kv_tokens=10**6,
        max_step_tokens=65536,
    )
    tier = type(OFFLINE)("offline", 0)
    workload = Workload("poisson", math.inf, tuple(come))
    journal, _ = run(workload, settings=settings, tiers=[tier], size=4096, tokens=65536)
    assert len(journal.fates) == count
    assert 0.85 <= _mean_e2e(journal) / inoue(rate, per_row_s, fixed_s) <= 1.02
