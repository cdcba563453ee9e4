from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from bench.best_static import SEEDS
from bench.case import Case, Contender
from bench.evaluate import ANALYSES, IMAGES, analyses
from bench.evaluate_cells import CONTESTED, Cell, cells, is_of_the_ten
from bench.evaluate_field import (
    BENTOML,
    CLIPPER,
    DEFAULT,
    FIFO,
    ORACLE,
    PANG,
    STATIC,
    aims,
    named,
    others,
)
from bench.evaluate_pictures import draw
from bench.evaluate_plots import tail
from bench.evaluate_queues import PAGE
from bench.evaluate_rows import Row, rows
from bench.evaluate_run import Evaluation, Results
from bench.evaluate_text import MARKS, page, verdicts
from bench.evaluation import REPORTED, Figures, Setting, sides
from bench.journal import Fate
from bench.outcome import Outcome
from bench.tick_cost import TickCost, tick_cost
from bench.workloads import WORKLOADS
from policies.registry import TYPES
from tests.bench.test_evaluate_queues import CONFIGURED, Played, outcome, tier

*_, QUEUES = sides(CONFIGURED)
T = TypeVar("T", bound=msgspec.Struct)
PHASES = {"step": 3, "alternating": 4, "diurnal": 48, "flood": 3, "long-prompts": 2}
GOOD_TICK = TickCost(100, 0.5, 2.0)


def changed(one: T, **fields: Any) -> T:
    return msgspec.structs.replace(one, **fields)


def fixed(name: str) -> Contender:
    return named(name, "static:B=8,T=512")


def results(goodput: dict[str, float], **fields: Any) -> Results:
    """Every cell alike: what each contender comes to, over a little that depends on the seed."""
    told = Results()
    fields = {"settling_s": [5.0, 15.0], **fields}
    for cell in cells():
        for name, value in goodput.items():
            outcomes = [
                changed(outcome(goodput=value * (1 + seed / 100)), **fields)
                for seed in cell.seeds()
            ]
            contender = fixed(name)
            told.add(cell, Figures(QUEUES, contender, outcomes))
    return told


FINE = {
    DEFAULT: 1.5, STATIC: 1.2, FIFO: 1.0, ORACLE: 1.6, CLIPPER: 1.4, BENTOML: 1.4, PANG: 1.45,
    "vLLM 256, 2048": 1.2, "vLLM 256, 2048, FIFO": 0.7,
}  # fmt: skip


def by_key(given: list[Row], key: str) -> list[Row]:
    found = [row for row in given if row.key == key]
    assert found
    return found


def judged(told: Results, offline: Results | None = None) -> list[Row]:
    return rows(told, offline or Results(), GOOD_TICK)


def test_a_policy_that_does_what_was_aimed_at_is_said_to() -> None:
    told = judged(results(FINE, reversals_per_min=1.0))
    failed = [row for row in told if row.holds is False]
    assert not failed
    # Nothing was played over a backlog.
    assert [row.key for row in told if row.holds is None] == ["offline"]
    (fifo,) = by_key(told, "fifo")
    assert fifo.figure == "1.500 [1.500, 1.500]"


@pytest.mark.parametrize(
    ("key", "goodput"),
    [
        ("fifo", {FIFO: 1.26}),
        ("steady", {STATIC: 1.56}),
        ("alternating", {STATIC: 1.37}),
        ("vendor", {"vLLM 256, 2048": 1.26}),
        ("oracle", {ORACLE: 1.64}),
        ("rules", {CLIPPER: 1.54}),
    ],
)
def test_a_ratio_that_is_not_reached_is_told_as_not_holding(
    key: str, goodput: dict[str, float]
) -> None:
    told = judged(results({**FINE, **goodput}))
    assert by_key(told, key)[0].holds is False
    assert "**does not hold**" in verdicts(by_key(told, key), {})


def test_one_steady_cell_below_is_enough_and_is_named() -> None:
    told = results(FINE)
    cell = Cell("E3", "steady", 0.8, 1.0)
    static = [outcome(goodput=1.6 * (1 + seed / 100)) for seed in cell.seeds()]
    told.add(cell, Figures(QUEUES, fixed(STATIC), static))
    (row,) = by_key(judged(told), "steady")
    assert row.holds is False
    assert row.figure == "least 0.938 [0.937, 0.938], E3 steady 0.8; 1 of 18 below"


@pytest.mark.parametrize(
    ("up", "down", "holds"),
    [(10.0, 20.0, [True, True]), (10.5, 20.0, [False, True]), (5.0, None, [True, False])],
)
def test_settling_holds_where_every_seed_settles_and_soon_enough(
    up: float, down: float | None, holds: list[bool]
) -> None:
    told = judged(results(FINE, settling_s=[up, down]))
    pairs = zip(by_key(told, "settling-up"), by_key(told, "settling-down"), strict=True)
    # E2 and E3, each at two loads.
    assert [[row.holds for row in pair] for pair in pairs] == [holds] * 4


def test_never_to_settle_is_told() -> None:
    told = judged(results(FINE, settling_s=[5.0, None]))
    assert by_key(told, "settling-down")[0].figure.startswith("- (5 of 5 never)")


def test_reversals_floods_and_ticks_have_their_bounds() -> None:
    late = {"paid": tier(98, ttft=2), "free": tier(100), "offline": tier(100)}
    told = rows(results(FINE, reversals_per_min=2.1, tiers=late), Results(), TickCost(9, 1.1, 4.0))
    for key in ("reversals", "flood", "tick"):
        assert {row.holds for row in by_key(told, key)} == {False}
    assert by_key(told, "flood")[0].figure == "98.00%, worst seed 98.00%; best static 98.00%"


@pytest.mark.parametrize(
    ("missed", "tokens", "holds"), [(4, 116.0, True), (4, 114.0, False), (6, 200.0, False)]
)
def test_offline_tokens_count_only_where_online_traffic_is_in_time(
    missed: int, tokens: float, holds: bool
) -> None:
    told, cell = Results(), Cell("E2", "backlog", 0.7, 0.5)
    for name, late, done in ((DEFAULT, missed, tokens), (STATIC, 4, 100.0)):
        tiers = {one: tier(100 - late, ttft=late) for one in ("paid", "free")}
        tiers["offline"] = changed(tier(50), tokens_per_s=done)
        told.add(cell, Figures(QUEUES, fixed(name), [changed(outcome(), tiers=tiers)]))
    (row,) = by_key(judged(results(FINE), told), "offline")
    assert row.holds is holds


def test_a_rule_may_be_better_in_one_cell_of_ten_but_not_in_two() -> None:
    told = results(FINE)
    ten = [cell for cell in told.figures if is_of_the_ten(cell)]
    for count, holds in ((1, True), (2, False)):
        for cell in ten[:count]:
            better = [outcome(goodput=1.6 * (1 + seed / 100)) for seed in REPORTED]
            told.add(cell, Figures(QUEUES, fixed(CLIPPER), better))
        assert by_key(judged(told), "rules")[0].holds is holds


def test_a_row_that_fails_carries_its_analysis_and_one_that_holds_does_not() -> None:
    failed = Row("fifo", "a thing", "1.2", "1.0", False)
    texts = {"fifo": "Because.\n", "steady": "Why not."}
    told = verdicts([failed, replace(failed, key="steady", holds=True)], texts)
    assert told.endswith("* *fifo*: Because.")
    assert "Why not" not in told


def test_analyses_are_texts_by_the_key_of_a_row(tmp_path: Path) -> None:
    path = tmp_path / "texts.yaml"
    assert analyses(path) == {}
    path.write_text("fifo: {a: b}\n")
    with pytest.raises(ValueError, match="texts by the key of a row"):
        analyses(path)
    known = {row.key for row in judged(results(FINE))}
    assert set(analyses(ANALYSES)) <= known


def test_ratios_are_paired_on_the_seeds_that_both_were_played_on() -> None:
    told, cell = Results(), Cell("E2", "steady", 1.0, 1.0)
    told.add(cell, Figures(QUEUES, fixed("a"), [outcome(2.0), outcome(2.0)]))
    told.add(cell, Figures(QUEUES, fixed("b"), [outcome(1.0), outcome(4.0), outcome(9.0)]))
    ratio = told.ratio(cell, "a", "b")
    assert ratio is not None
    assert ratio.mean == pytest.approx(1.0)
    assert told.ratio(cell, "a", "c") is None


def test_cells_count_alike_and_intervals_are_over_seeds() -> None:
    told = Results()
    two = (Cell("E2", "steady", 1.0, 1.0), Cell("E2", "code", 1.0, 1.0))
    for cell, factor in zip(two, (1.0, 4.0), strict=True):
        told.add(cell, Figures(QUEUES, fixed("a"), [outcome(factor), outcome(factor)]))
        told.add(cell, Figures(QUEUES, fixed("b"), [outcome(1.0), outcome(1.0)]))
    ratio = told.pooled(two, "a", "b")
    assert ratio is not None
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


def test_every_workload_is_in_and_ten_cells_are_for_the_rules_of_others() -> None:
    all_ = cells()
    assert {cell.workload for cell in all_} == set(WORKLOADS) - {"backlog", "greedy-key"}
    assert len(set(all_)) == len(all_)
    assert sum(map(is_of_the_ten, all_)) == 10
    assert not set(SEEDS) & set(CONTESTED)
    assert CONTESTED[: len(REPORTED)] == REPORTED


def test_every_rule_of_the_product_competes() -> None:
    entries = others(cells()[0], QUEUES)
    assert {entry.name for entry in entries} | {DEFAULT, "static", "schedule", "sla_search"} == set(
        TYPES
    )
    assert len(aims(QUEUES)) == 4


def test_all_of_it_is_played_and_told() -> None:
    def rule(case: Case) -> Outcome:
        good = 1.1 if case.contender.type == DEFAULT else 1.0
        served = (case.load or 0.0) <= 0.7
        told = outcome(goodput=good, attainment=float(served))
        return changed(told, met_by_phase=[1] * PHASES.get(case.workload, 1), settling_s=[1.0, 1.0])

    played = Played(rule)
    evaluation = Evaluation(played, CONFIGURED, ("E1", "E2"), scale=0.1)
    evaluation.run()
    assert evaluation.units["E2", "steady"] == pytest.approx(0.7, abs=0.02)
    text = page(evaluation, rows(evaluation.results, evaluation.offline, GOOD_TICK), {})
    assert "against best static with FIFO, 10 cells of moving traffic on E2 and E3" in text
    assert "| steady 0.5 | 256, 2048 | 1.000 | 1.100 [1.100, 1.100]" in text
    assert "| all | 1.100 [1.100, 1.100] |" in text
    assert text.count("\n### ") == 4
    # Nobody is judged on traffic on which limits were chosen.
    judged_ = {case.seed for case in played.cases if case.contender.type == DEFAULT}
    assert judged_ == set(CONTESTED)


def test_the_page_has_a_place_for_the_tables_and_shows_the_pictures() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(mark in text for mark in MARKS)
    for name in ("policies-step.svg", "policies-flood.svg", "policies-curve.svg"):
        assert f"images/{name}" in text
        assert (IMAGES / name).is_file()


def test_pictures_are_drawn_without_the_rest(tmp_path: Path) -> None:
    played = Played(lambda case: outcome(attainment=float((case.load or 0.0) <= 0.5)))
    draw(Evaluation(played, CONFIGURED, (), scale=0.04), tmp_path)
    pictures = {path.name: path for path in tmp_path.iterdir()}
    assert set(pictures) == {"policies-step.svg", "policies-flood.svg", "policies-curve.svg"}
    for path in pictures.values():
        assert path.stat().st_size < 200_000
    assert ">B<" in pictures["policies-step.svg"].read_text()


def test_the_tail_is_of_those_who_came_in_a_window_served_or_not() -> None:
    def fate(arrival_s: float, first_s: float | None, ended_s: float) -> Fate:
        return Fate("paid", arrival_s, 10, 1, first_s, None, ended_s, "finished", "", 1, 0)

    fates = [fate(1.0, 2.0, 9.0), fate(2.0, 2.5, 9.0), fate(12.0, None, 20.0)]
    assert tail(fates, "paid", 100.0) == ([0.0, 10.0], [1.0, 8.0])
    assert tail(fates, "free", 100.0) == ([], [])


def test_a_tick_is_timed_by_a_real_clock_once_windows_are_full() -> None:
    cost = tick_cost("aimd", Setting("E3", "steady", 0.7, 0.05))
    # From half of the 30 s on, and a minute of drain at most, four times a second.
    assert 60 <= cost.ticks <= 300
    assert 0 < cost.mean_ms <= cost.p99_ms
