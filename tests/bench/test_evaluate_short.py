from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import evaluate_short
from bench.case import Case
from bench.evaluate_field import DEFAULT
from bench.evaluate_short import CELLS, RECORD, SEEDS, Kept, Record, margin, measure, regressions
from bench.evaluation import REPORTED, SEARCHED
from tests.bench.test_evaluate_queues import CONFIGURED, Played, outcome

# Ratios 0.97, 1.00, 1.03: the standard error of their mean is 1.7 %.
STATIC = [2.0, 2.1, 1.9]
BEFORE = Kept("E2 steady 0.7", [0.97 * 2.0, 2.1, 1.03 * 1.9], STATIC)


def record(*cells: Kept, policy: str = DEFAULT) -> Record:
    return Record(policy, list(cells))


def now(*factors: float, static: Sequence[float] = (1.0, 1.0, 1.0)) -> Kept:
    """What was recorded, times a factor for each seed."""
    return Kept(
        BEFORE.name,
        [value * factor for value, factor in zip(BEFORE.default, factors, strict=True)],
        [value * factor for value, factor in zip(STATIC, static, strict=True)],
    )


def test_what_may_be_noise_comes_from_how_far_the_seeds_are_apart() -> None:
    logs = [math.log(0.97), 0.0, math.log(1.03)]
    assert margin(BEFORE) == pytest.approx(
        2 * math.sqrt(sum((one - sum(logs) / 3) ** 2 for one in logs) / 2 / 3)
    )
    assert margin(BEFORE) == pytest.approx(0.0346, abs=1e-4)
    assert margin(Kept("alike", STATIC, STATIC)) == 0.02


def test_a_regression_fails_and_says_where_and_by_how_much() -> None:
    assert regressions(record(now(0.95, 0.95, 0.95)), record(BEFORE)) == [
        "E2 steady 0.7: against fixed limits -5.0%, -3.4% is allowed",
        "E2 steady 0.7: goodput -5.0%, -3.4% is allowed",
    ]


@pytest.mark.parametrize("factors", [(0.9, 1.04, 1.0), (0.97, 0.97, 0.97), (1.2, 1.1, 1.3)])
def test_noise_does_not_fail_nor_does_what_became_better(factors: Sequence[float]) -> None:
    assert regressions(record(now(*factors)), record(BEFORE)) == []


def test_queues_that_serve_less_are_found_though_the_fixed_limits_fall_with_them() -> None:
    worse = now(0.9, 0.9, 0.9, static=(0.9, 0.9, 0.9))
    (told,) = regressions(record(worse), record(BEFORE))
    assert told == "E2 steady 0.7: goodput -10.0%, -3.4% is allowed"


def test_nothing_served_at_all_is_a_regression_and_no_error() -> None:
    assert regressions(record(now(0.0, 0.0, 0.0)), record(BEFORE))


def test_another_policy_than_was_recorded_is_to_be_recorded_first() -> None:
    (told,) = regressions(record(BEFORE), record(BEFORE, policy="another"))
    assert told == "recorded is something else (another): " + evaluate_short.REFRESH


def test_each_cell_has_its_figures_by_seed() -> None:
    def rule(case: Case) -> Any:
        return outcome(goodput=case.seed + 100.0 * (case.contender.type == DEFAULT))

    played = Played(rule)
    found = measure(played, CONFIGURED)
    assert [kept.default for kept in found.cells] == [[100.0 + s for s in SEEDS]] * len(CELLS)
    assert [kept.static for kept in found.cells] == [[float(s) for s in SEEDS]] * len(CELLS)
    assert not set(SEEDS) & {*REPORTED, *SEARCHED}


def test_what_is_recorded_is_of_the_default_policy_and_of_these_cells() -> None:
    kept = msgspec.json.decode(RECORD.read_bytes(), type=Record)
    names = [f"{s.executor} {s.workload} {s.load:g}" for s, _ in CELLS]
    assert (kept.policy, [one.name for one in kept.cells]) == (DEFAULT, names)


def test_the_exit_status_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, good = tmp_path / "kept.json", [1.0]
    monkeypatch.setattr(
        evaluate_short, "measure", lambda play, config: record(Kept("a", good * 3, STATIC))
    )
    assert evaluate_short.run(jobs=1, record=True, path=path) == 0
    assert evaluate_short.run(jobs=1, record=False, path=path) == 0
    good[0] = 0.5
    assert evaluate_short.run(jobs=1, record=False, path=path) == 1
