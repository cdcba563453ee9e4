from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bench.best_static import limits
from bench.case import Case, Contender, play
from bench.evaluate_oracle import Hindsight, oracle, together, unguarded
from bench.evaluation import Setting, sides
from bench.outcome import Outcome
from policies.contract import Signals
from policies.registry import build, problems
from tests.bench.test_evaluate_queues import CONFIGURED, Played, outcome, tier
from tests.policies.signals import LIMITS, seen

ORACLE = "bench.phase_oracle:PhaseOracle"
*_, QUEUES = sides(CONFIGURED)


def phase(start_s: float, size: int) -> dict[str, Any]:
    return {"start_s": start_s, "max_batch_size": size, "max_batch_tokens": 512}


def tick(interval_s: float) -> Signals:
    return replace(seen(), interval_s=interval_s)


def test_it_has_the_limits_of_a_phase_from_its_first_tick_on() -> None:
    policy = build(ORACLE, {"phases": [phase(0, 8), phase(0.3, 24), phase(60, 12)]})
    ticks = (0.0, 0.1, 0.1, 0.1, 59.6, 0.1, 600.0)
    sizes = [policy.decide(tick(one), LIMITS).limits.max_batch_size for one in ticks]
    assert sizes == [8, 8, 8, 24, 24, 12, 12]


@pytest.mark.parametrize("phases", [[], [phase(1, 8)], [phase(0, 8), phase(9, 8), phase(5, 8)]])
def test_phases_are_in_order_from_the_start(phases: Sequence[Mapping[str, Any]]) -> None:
    assert problems(ORACLE, {"phases": phases})


def test_phases_with_the_same_limits_are_one() -> None:
    made = oracle([0.0, 60.0, 120.0], [(48, 512), (48, 512), (24, 2048)])
    starts = [one["start_s"] for one in made.parameters["phases"]]
    assert (starts, made.size, made.tokens) == ([0.0, 120.0], 48, 512)


def test_what_was_met_is_summed_over_runs_and_into_longer_phases() -> None:
    told = [[1, 2, 3, 4], [10, 20, 30, 40]]
    assert together(told, (0.0, 10.0, 20.0, 30.0), [0.0, 20.0]) == [33, 77]


def test_short_phases_are_taken_together() -> None:
    search = Hindsight(Played(None), least_phase_s=120.0)
    alternating = Setting("E2", "alternating", 0.9, 0.5)
    assert search.phases(alternating) == [0.0, 300.0, 600.0, 900.0]
    # A day has a phase a minute; what is left at the end is no phase of its own.
    assert search.phases(Setting("E2", "diurnal", 0.9, 0.1)) == pytest.approx([0.0, 120.0])
    assert search.phases(Setting("E2", "steady", 0.9, 1.0)) == [0.0]


def by_phase(case: Case) -> Outcome:
    """In chat B 96 is best, in code B 24; the schedule is better than either."""
    size = case.contender.size or 0
    met = [100 - abs(size - 96), 100 - abs(size - 24)] * 2
    good = 2.0 if case.contender.type == ORACLE else sum(met) / 400
    return replace_met(outcome(goodput=good), met)


def replace_met(one: Outcome, met: list[int]) -> Outcome:
    return msgspec.structs.replace(one, met_by_phase=met)


def test_each_phase_gets_what_is_best_for_it_in_hindsight_on_seeds_that_are_not_reported() -> None:
    played = Played(by_phase)
    search = Hindsight(played, (101, 102), least_phase_s=60.0)
    setting = Setting("E2", "alternating", 0.9, 0.5)
    found, side = search.phased(setting, QUEUES, limits(48, 2048, fifo=False))
    phases = found.parameters["phases"]
    assert [(one["start_s"], one["max_batch_size"]) for one in phases] == [
        (0.0, 96),
        (300.0, 24),
        (600.0, 96),
        (900.0, 24),
    ]
    assert side.config == unguarded(CONFIGURED)
    assert {case.seed for case in played.cases} == {101, 102}


def test_a_schedule_that_is_no_better_than_static_limits_is_not_taken() -> None:
    def rule(case: Case) -> Outcome:
        return replace_met(outcome(goodput=1.0), [1, 1, 1, 1])

    search = Hindsight(Played(rule), least_phase_s=60.0)
    setting = Setting("E2", "alternating", 0.9, 0.5)
    found, side = search.phased(setting, QUEUES, limits(48, 2048, fifo=False))
    assert (found.type, found.size, found.label, side) == ("static", 48, "oracle", QUEUES)


def test_where_batches_run_to_their_ends_a_wait_is_looked_for_too() -> None:
    def rule(case: Case) -> Outcome:
        return outcome(goodput=1.0 + (case.contender.wait_s or 0.0))

    found = Hindsight(Played(rule)).static(Setting("E1", "steady", 0.7, 0.1), QUEUES)
    assert found.wait_s == 0.05


def test_most_is_done_offline_among_those_limits_that_keep_online_traffic_in_time() -> None:
    def rule(case: Case) -> Outcome:
        # The larger B, the more is done offline, and the fewer of who is online are in time.
        size = case.contender.size or 0
        late = 4 if size <= 48 else 6
        online = tier(100 - late, ttft=late)
        offline = msgspec.structs.replace(tier(size), tokens_per_s=float(size))
        return outcome(paid=online, free=online, offline=offline)

    found = Hindsight(Played(rule)).offline(Setting("E2", "backlog", 0.7, 0.1), QUEUES)
    assert found.size == 48


def test_the_guard_lets_an_oracle_double_at_every_tick() -> None:
    """From 8 to 64 within a second of the change, though B is hardly ever reached."""
    made = oracle([0.0, 30.0], [(8, 2048), (64, 2048)])
    setting = Setting("E2", "steady", 0.3, 0.1)
    side = replace(QUEUES, config=unguarded(QUEUES.config))
    moves = play(setting.case(side, made, 1)).limits
    assert [(one.time_s, one.max_batch_size) for one in moves] == [
        (0.0, 8),
        (30.0, 16),
        (30.25, 32),
        (30.5, 64),
    ]


def test_outcomes_count_what_was_met_between_two_changes() -> None:
    one = play(Setting("E2", "step", 0.5, 0.1).case(QUEUES, Contender.parse("static:B=64"), 1))
    assert len(one.met_by_phase) == 3
    assert sum(one.met_by_phase) == sum(tier.met for tier in one.tiers.values())
    assert one.met_by_phase[1] > one.met_by_phase[2] > 0
