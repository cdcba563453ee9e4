from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bench.best_static import limits
from bench.case import Case, play
from bench.evaluate_queues import CONFIG, PAGE, Evaluation
from bench.evaluation import (
    REPORTED,
    SEARCHED,
    Figures,
    Searcher,
    Setting,
    at_most,
    report,
    sides,
)
from bench.evaluation_text import BEGIN, END, compared, interval, spliced
from bench.outcome import Outcome, TierOutcome
from controller.config_load import load
from controller.core import build_core
from controller.tiers import Tier

CONFIGURED = load(CONFIG, env={})
FIFO, EXPIRING, LAST, DROP = sides(CONFIGURED)
HERE = Setting("E3", "alternating", 0.9, 0.5)


def tier(met: int, *, starved_s: float = 1.0, **missed: int) -> TierOutcome:
    told = {why.replace("_", ": ", 1): count for why, count in missed.items()}
    offered = met + sum(told.values())
    return TierOutcome(
        offered=offered, met=met, attainment=met / offered, goodput=met / 100, tokens_per_s=1.0,
        ttft=None, itl=None, e2e=None, missed=told, undecided=0, longest_starvation_s=starved_s,
        keys=1, key_fairness=None,
    )  # fmt: skip


def outcome(goodput: float = 1.0, attainment: float = 1.0, **tiers: TierOutcome) -> Outcome:
    perfect = {name: tier(100) for name in ("paid", "free", "offline")}
    return Outcome(
        window_s=100.0, attainment=attainment, goodput=goodput, requests_per_s=1.0,
        tokens_per_s=1.0, busy=1.0, mean_batch=1.0, fairness=1.0, reversals_per_min=0.0,
        settling_s=[], tiers=perfect | tiers, limits=[],
    )  # fmt: skip


class Played:
    """Remembers the cases, and answers what a rule says of each."""

    def __init__(self, rule: Any) -> None:
        self.cases: list[Case] = []
        self._rule = rule

    def __call__(self, cases: Sequence[Case]) -> list[Outcome]:
        self.cases += cases
        return [self._rule(case) for case in cases]


def test_the_tiers_are_those_that_the_project_is_judged_on() -> None:
    told = [
        (t.name, t.targets.ttft_s, t.targets.itl_s, t.targets.e2e_s, t.targets.attainment, t.late)
        for t in CONFIGURED.tier_list()
    ]
    assert told == [
        ("paid", 1.0, 0.1, None, 0.99, "last"),
        ("free", 5.0, 0.15, None, 0.9, "drop"),
        ("offline", None, None, 600.0, 0.99, "last"),
    ]


def test_the_sides_differ_in_nothing_but_the_queue_and_what_becomes_of_late_free_traffic() -> None:
    free = [side.config.tiers["free"] for side in (FIFO, EXPIRING, LAST, DROP)]
    assert [(one.late, one.start_within) for one in free] == [
        ("drop", 60.0),
        ("last", 5.0),
        ("last", 60.0),
        ("drop", 60.0),
    ]
    assert [side.fifo for side in (FIFO, EXPIRING, LAST, DROP)] == [True, True, False, False]
    for side in (FIFO, EXPIRING, LAST, DROP):
        same = {"late": "drop", "start_within": 60.0}
        tiers = {**side.config.tiers, "free": side.config.tiers["free"].model_copy(update=same)}
        assert side.config.model_copy(update={"tiers": tiers}) == CONFIGURED


def test_first_in_first_out_knows_of_nobody_who_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tier] = []

    def spy(tiers: Sequence[Tier], *args: Any, **more: Any) -> Any:
        seen.extend(tiers)
        return build_core(tiers, *args, **more)

    monkeypatch.setattr("bench.case.build_core", spy)
    play(Setting("E2", "steady", 0.5, 0.02).case(FIFO, limits(8, 2048, fifo=True), 1))
    assert [(one.name, one.order, one.targets.start_s) for one in seen] == [("all", "fcfs", None)]


def test_limits_are_chosen_on_seeds_that_are_not_reported() -> None:
    played = Played(lambda case: outcome(goodput=-abs(case.contender.size - 60)))
    best = Searcher(played).best(HERE, DROP)
    # Of the grid 48 is the nearest, and 67 of its neighbours.
    assert best.contender.size == 67
    assert {case.seed for case in played.cases} == set(SEARCHED)
    assert not set(SEARCHED) & set(REPORTED)
    assert {case.load for case in played.cases} == {0.9}


def test_the_load_that_is_served_is_that_of_the_best_limits_of_the_side() -> None:
    def rule(case: Case) -> Outcome:
        good = case.contender.fifo and (case.load or 0.0) <= 0.62
        return outcome(goodput=-abs((case.contender.size or 0) - 48), attainment=0.95 * good)

    assert Searcher(Played(rule)).served(HERE, FIFO) == pytest.approx(0.62, abs=0.03)


def test_sides_are_reported_on_the_same_seeds_in_order() -> None:
    played = Played(lambda case: outcome(goodput=case.seed + 10.0 * case.contender.fifo))
    chosen = [(side, limits(8, 512, fifo=side.fifo)) for side in (FIFO, DROP)]
    fifo, ours = report(HERE, chosen, played, seeds=(1, 2))
    assert [one.goodput for one in fifo.outcomes] == [11.0, 12.0]
    assert [one.goodput for one in ours.outcomes] == [1.0, 2.0]
    ratio = ours.against(fifo)
    assert ratio is not None
    assert ratio.mean == pytest.approx((1 / 11 * 2 / 12) ** 0.5)


def test_figures_say_why_a_tier_missed_and_who_was_turned_away() -> None:
    outcomes = [
        outcome(paid=tier(90, ttft=6, rejected_queue_full=4, starved_s=3.0)),
        outcome(paid=tier(100, starved_s=7.0)),
    ]
    figures = Figures(DROP, limits(8, 512, fifo=False), outcomes)
    assert figures.missed("paid") == {"ttft": 0.03, "rejected: queue_full": 0.02}
    assert figures.turned_away("paid") == 4
    assert figures.starved_s("paid") == 7.0
    assert (figures.attainment("paid"), figures.worst("paid")) == (0.95, 0.9)


def test_no_more_can_be_served_in_time_than_would_be_by_an_executor_of_ones_own() -> None:
    # No prompt of chat is too long for a second; of code those over 5,400 tokens are.
    assert at_most(Setting("E2", "steady", 0.5, 0.2), CONFIGURED, (1,)) == 1.0
    assert 0.9 < at_most(Setting("E2", "code", 0.5, 0.2), CONFIGURED, (1,)) < 0.99


def test_a_ratio_is_told_with_its_interval() -> None:
    figures = [
        Figures(side, limits(8, 512, fifo=side.fifo), [outcome(goodput=g) for g in goodputs])
        for side, goodputs in ((FIFO, (1.0, 1.0)), (DROP, (1.25, 1.25)))
    ]
    assert interval(figures[1].against(figures[0])) == "1.250 [1.250, 1.250]"
    assert interval(None) == "-"
    row = compared(figures).splitlines()[-1]
    assert row.startswith("| queues, late dropped | 8, 512 | 1.250 | 1.250 [1.250, 1.250] | 100.0%")


def test_all_of_it_says_what_holds_and_what_does_not() -> None:
    def rule(case: Case) -> Outcome:
        served = (case.load or 0.0) <= 0.7
        paid = tier(985, ttft=15, starved_s=61.0 if case.workload == "backlog" else 1.0)
        good = 1.0 if case.contender.fifo else 1.2
        return outcome(goodput=good, attainment=float(served), paid=paid, free=paid)

    sections = list(Evaluation(Played(rule), CONFIGURED, ("E2",), stretch=0.1).sections())
    told = [[holds for holds, _ in section.verdicts] for section in sections]
    # Two lengths at the load of our queues, one at that of FIFO; the flood; backlog, alternating.
    assert told == [[True, True], [True, True], [True], [False], [False, True]]
    assert "* holds: *queues, late dropped* 1.200" in sections[0].markdown()
    assert "* **does not hold**: paid attainment 98.50% on E2" in sections[3].markdown()


def test_tables_take_the_place_of_the_old_ones_and_leave_the_words() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert spliced(page, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    with pytest.raises(ValueError, match="should have the lines"):
        spliced("no marks", "new")
    assert BEGIN in PAGE.read_text(encoding="utf-8")
