"""What counts as "as fast through Headway as directly", and how it is shown."""

from __future__ import annotations

import pytest

from bench.stream_load import Chat, Loaded
from bench.upstream_ratios import Figures, Level, Round, table


def level(*rounds: tuple[float, float, float, float], gap: float = 1.0) -> Level:
    """Rounds of tokens/s: two through, two direct; gaps through are `gap` times the direct ones."""
    return Level(
        4,
        [
            Round(
                (Figures(a, 0.01 * gap), Figures(b, 0.01 * gap)),
                (Figures(c, 0.01), Figures(d, 0.01)),
            )
            for a, b, c, d in rounds
        ],
    )


def test_a_round_is_what_both_runs_made_against_what_both_made_directly() -> None:
    assert level((90, 100, 110, 80)).ratios == [1.0]


def test_drift_within_a_round_cancels_in_the_ratio_and_shows_in_each_against_itself() -> None:
    drifting = level((100, 70, 90, 80), (100, 70, 90, 80))
    assert drifting.ratio.mean == pytest.approx(1.0)
    assert drifting.direct_itself.mean == pytest.approx(90 / 80)
    assert drifting.through_itself.mean == pytest.approx(100 / 70)


def test_a_loss_of_two_percent_holds_and_one_of_four_does_not() -> None:
    assert level((98, 98, 100, 100), (98, 98, 100, 100)).holds
    assert not level((96, 96, 100, 100), (96, 96, 100, 100)).holds


def test_a_median_that_holds_does_not_hide_a_lower_bound_that_does_not() -> None:
    spread = level((100, 100, 100, 100), (100, 100, 100, 100), (80, 80, 100, 100))
    assert spread.ratio.low is not None
    assert spread.ratio.low < 0.95
    assert not spread.holds


def test_gaps_may_be_five_percent_longer_and_no_more_where_the_engine_is_steady() -> None:
    even = ((100.0, 100.0, 100.0, 100.0),) * 3
    assert level(*even, gap=1.04).gap_noise == pytest.approx(1.0)
    assert level(*even, gap=1.04).holds
    assert not level(*even, gap=1.06).holds


def test_gaps_may_be_as_much_longer_as_the_engines_own_differ() -> None:
    def one(first: float, second: float) -> Round:
        through = Figures(100, 0.0108)
        return Round((through, through), (Figures(100, first), Figures(100, second)))

    noisy = Level(4, [one(0.009, 0.011), one(0.011, 0.009), one(0.01, 0.01)])
    assert noisy.gap_noise > 1.08
    assert noisy.holds


def test_the_99th_percentile_of_a_hundred_gaps_is_the_second_longest() -> None:
    gaps = [0.001 * n for n in range(1, 101)]
    loaded = Loaded([Chat(60, 0.1, gaps[:50]), Chat(40, 0.1, gaps[50:])], seconds=4.0)
    assert Figures.of(loaded) == Figures(25.0, 0.099)


def test_the_table_has_a_row_for_each_concurrency_and_its_verdict() -> None:
    rows = table([level((98, 98, 100, 100), (98, 98, 100, 100))]).splitlines()
    assert rows[2] == (
        "| 4 | 100.0 | 98.0 | 0.980, 0.980 [0.980, 0.980] "
        "| 1.000 [1.000, 1.000] | 1.000 [1.000, 1.000] "
        "| 10.0 ms | 10.0 ms | 1.000 [1.000, 1.000] | ±0.0% | yes |"
    )
