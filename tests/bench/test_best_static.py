from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.best_static import SEEDS, Best, best_static, limits, served_load
from bench.case import Case
from bench.presets import executor_of
from controller.config import Config

LIKE = Case(Config(), {"main": executor_of("E3")}, "steady", limits(1, 1, fifo=False), 0)


def hill(size: int, tokens: int) -> float:
    """Goodput with its top at B 42 and T 640."""
    return 10.0 - abs(size - 42) / 10 - abs(tokens - 640) / 1000


def test_the_best_limits_are_found_coarse_to_fine_on_seeds_of_their_own() -> None:
    seen: list[int] = []

    def run(cases: Sequence[Case]) -> list[tuple[float, float]]:
        seen.extend(case.seed for case in cases)
        return [(hill(c.contender.size or 0, c.contender.tokens or 0), 0.95) for c in cases]

    best = best_static(LIKE, fifo=True, splits=True, run=run)
    # 34 and 67 are further from 42 than 48, and no T is better than 512 but 717.
    assert best.contender.label == "static:B=48,T=717,W=0,queue=fifo"
    assert best.goodput == pytest.approx(hill(48, 717))
    assert set(seen) == set(SEEDS)


def test_where_prompts_are_not_split_t_is_left_wide() -> None:
    def run(cases: Sequence[Case]) -> list[tuple[float, float]]:
        return [(float(case.contender.size or 0), 1.0) for case in cases]

    best = best_static(LIKE, fifo=False, splits=False, run=run)
    assert (best.contender.size, best.contender.tokens) == (256, 2048)


def test_the_load_that_is_still_served_is_found_by_halving() -> None:
    def search(load: float) -> Best:
        return Best(limits(1, 1, fifo=False), 1.0, 1.0 if load <= 0.87 else 0.5)

    assert served_load(search) == pytest.approx(0.87, abs=0.02)


def test_t_is_never_below_b() -> None:
    assert limits(600, 256, fifo=False).tokens == 600


def test_only_the_most_promising_of_the_grid_are_played_in_full() -> None:
    full: set[tuple[int, int]] = set()

    def run(cases: Sequence[Case]) -> list[tuple[float, float]]:
        found = [(c.contender.size or 0, c.contender.tokens or 0) for c in cases]
        full.update(pair for pair, c in zip(found, cases, strict=True) if c.stretch == 1.0)
        return [(hill(*pair), 0.95) for pair in found]

    best_static(LIKE, fifo=True, splits=True, run=run)
    kept = {(48, 512), (48, 256), (48, 1024)}
    assert full == kept | {(34, 512), (67, 512), (48, 358), (48, 717)}


def test_of_limits_that_are_as_good_the_widest_are_taken() -> None:
    best = best_static(LIKE, fifo=True, splits=False, run=lambda cases: [(1.0, 1.0)] * len(cases))
    assert best.contender.size == 256
