from __future__ import annotations

import pytest

from bench.hold_regimes import REGIMES, Run, compare, play


@pytest.mark.parametrize("regime", REGIMES)
def test_holding_by_gain_is_within_three_percent_of_the_best_fixed_wait(regime: str) -> None:
    # Two bursts have to be seen before the third is held for: in a short run they would count.
    duration_s = 100.0 if "bursts" in regime else 20.0
    (row,) = compare(
        [regime], seeds=(1, 2), duration_s=duration_s, fixed_s=(0.0, 0.005, 0.020, 0.040)
    )
    assert row.ratio.mean >= 0.97


def test_sixteen_clients_without_a_hold_lock_into_two_half_batches() -> None:
    run = Run("16 clients, think 5 ms", "fixed", 0.0, 64, 1, 30.0)
    assert play(run) == pytest.approx(83.3, abs=0.5)
    assert play(run._replace(rule="join_gain", wait_s=0.050)) == pytest.approx(122.2, abs=1.0)
