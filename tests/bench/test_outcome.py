from __future__ import annotations

from typing import Any

import pytest

from bench.arrivals import Workload
from bench.campaign import paired
from bench.journal import Fate, Journal, Move
from bench.outcome import Outcome, reckon, verdict
from tests.bench.runs import TIERS
from tests.controller.stage import FREE, OFFLINE, PAID

BY_NAME = {tier.name: tier for tier in TIERS}


def fate(
    tier: str = "paid",
    *,
    arrival: float = 100.0,
    first: float | None = 0.5,
    last: float | None = 1.0,
    end: float | None = None,
    tokens: int = 11,
    outcome: str = "finished",
    reason: str = "length",
    key: int = 0,
) -> Fate:
    """Instants after the arrival."""

    def at(value: float | None) -> float | None:
        return None if value is None else arrival + value

    ended = last if end is None else end
    assert ended is not None
    return Fate(
        tier,
        arrival,
        10,
        tokens,
        at(first),
        at(last),
        arrival + ended,
        outcome,
        reason,
        tokens,
        key,
    )


def outcome(*fates: Fate, duration_s: float = 660.0, **workload: Any) -> Outcome:
    journal = Journal(fates=list(fates), moves=[Move(0.0, "default", 16, 1024, 0.0)])
    made = Workload("given", duration_s, **workload)
    return reckon(journal, made, BY_NAME, ended_s=duration_s)


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (fate(), "met"),
        (fate(first=1.0), "met"),
        (fate(first=1.01, last=2.0), "ttft"),
        (fate(first=0.5, last=1.6), "itl"),
        (fate(tokens=1, last=0.5), "met"),
        (fate("offline", first=1.0, last=601.0), "e2e"),
        (fate(outcome="rejected", reason="rate_limit_exceeded", first=None, last=None, end=0.0),
         "rejected: rate_limit_exceeded"),
        (fate(outcome="expired", reason="start_by", first=None, last=None, end=0.1),
         "expired: start_by"),
        (fate(outcome="open", first=None, last=None, end=0.9), None),
        (fate(outcome="open", first=None, last=None, end=1.1), "ttft"),
        (fate("offline", outcome="open", first=None, last=None, end=600.5), "e2e"),
    ],
)  # fmt: skip
def test_a_request_met_its_targets_or_missed_one(one: Fate, told: str | None) -> None:
    assert verdict(one, BY_NAME[one.tier]) == told


def test_goodput_counts_what_met_every_target_after_the_first_minute() -> None:
    late = fate(first=2.0, last=2.5)
    early = fate(arrival=59.9)
    made = outcome(fate(), fate("free"), late, early)
    assert made.window_s == 600.0
    assert made.goodput == 2 / 600
    assert made.attainment == pytest.approx(2 / 3)
    paid = made.tiers["paid"]
    assert (paid.offered, paid.met, paid.missed) == (2, 1, {"ttft": 1})
    assert made.tiers["offline"].attainment is None


def test_what_the_end_cut_off_undecided_counts_neither_way() -> None:
    cut = fate(arrival=659.5, outcome="open", first=None, last=None, end=0.5)
    made = outcome(fate(), cut)
    assert (made.tiers["paid"].offered, made.tiers["paid"].undecided) == (1, 1)


def test_quantiles_are_those_of_nearest_rank() -> None:
    made = outcome(*(fate(first=0.01 * rank, last=0.9) for rank in range(1, 101)))
    ttft = made.tiers["paid"].ttft
    assert ttft is not None
    assert (ttft.samples, round(ttft.p50, 6), round(ttft.p99, 6)) == (100, 0.5, 0.99)


def test_fairness_is_one_for_equals_and_a_half_for_all_to_one_of_two() -> None:
    assert outcome(fate(), fate("free")).fairness == 1.0
    made = outcome(fate(), fate("free", first=6.0, last=6.5))
    assert made.fairness == 0.5


def test_turns_of_b_by_more_than_a_tenth_are_reversals() -> None:
    journal = Journal(fates=[fate()])
    sizes = [16, 20, 24, 23, 24, 20, 16, 17, 16, 24]
    journal.moves = [
        Move(60.0 + 10 * index, "default", size, 1024, 0.0) for index, size in enumerate(sizes)
    ]
    made = reckon(journal, Workload("given", 660.0), BY_NAME, ended_s=660.0)
    # Up to 24, down to 16, up to 24; 23 and 17 are no turns.
    assert made.reversals_per_min == 2 / 10


def test_settling_is_the_time_until_no_window_misses_for_half_a_minute() -> None:
    good = [fate(arrival=float(second)) for second in range(60, 360)]
    bad = [fate(arrival=202.0, first=3.0, last=3.5), fate(arrival=216.0, first=3.0, last=3.5)]
    made = outcome(*good, *bad, duration_s=360.0, changes=(200.0, 300.0))
    # The window from 215 to 220 is the last one that misses.
    assert made.settling_s == [20.0, 0.0]


def test_what_never_comes_to_rest_has_no_settling_time() -> None:
    bad = [fate(arrival=float(second), first=3.0, last=3.5) for second in range(200, 300, 5)]
    assert outcome(*bad, duration_s=300.0, changes=(200.0,)).settling_s == [None]


def test_ratios_are_paired_by_seed_with_students_interval() -> None:
    ratio = paired([2.2, 4.4, 8.8], [2.0, 4.0, 8.0])
    assert ratio is not None
    assert ratio.mean == pytest.approx(1.1)
    assert ratio.low == pytest.approx(1.1)
    spread = paired([1.0, 4.0], [1.0, 1.0])
    assert spread is not None
    assert spread.mean == pytest.approx(2.0)
    # Logarithms 0 and ln 4: mean ln 2, standard error ln 2, t of one degree of freedom 12.706.
    assert spread.high == pytest.approx(2.0 * 2.0**12.706)
    assert paired([0.0], [1.0]) is None
    single = paired([3.0], [2.0])
    assert single is not None
    assert (single.mean, single.low) == (1.5, None)


def test_tiers_of_the_tests_are_those_of_the_evaluation() -> None:
    assert (PAID.targets.ttft_s, PAID.targets.itl_s, PAID.targets.attainment) == (1.0, 0.1, 0.99)
    assert (FREE.targets.ttft_s, FREE.targets.itl_s, FREE.targets.attainment) == (5.0, 0.15, 0.9)
    assert (OFFLINE.targets.e2e_s, OFFLINE.targets.attainment) == (600.0, 0.99)
