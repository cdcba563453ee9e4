from __future__ import annotations

import pytest

from bench.day import DAY, rates_of, shape_of
from bench.presets import executor_of
from bench.workloads import WORKLOADS, Scene
from tests.bench.published import TRACES

RATES = TRACES / "servegen_mlarge_rate_10min.csv"


def flat(level: float, peak: float) -> list[float]:
    """A day of this level with one busier half hour, the last one."""
    return [level] * 141 + [peak] * 3


def test_the_day_is_one_of_forty_eight_half_hours_up_to_its_peak() -> None:
    assert (len(DAY), max(DAY), min(DAY)) == (48, 1.0, 0.31)


@pytest.mark.skipif(not RATES.exists(), reason="ServeGen's rates are not at hand")
def test_the_day_is_what_comes_of_servegens_rates() -> None:
    assert shape_of(rates_of(RATES)) == DAY


def test_of_several_days_the_one_of_upper_median_spread_is_taken() -> None:
    days = [*flat(1.0, 9.0), *flat(1.0, 2.0), *flat(2.0, 10.0), *flat(1.0, 4.0)]
    assert shape_of(days) == (0.2,) * 47 + (1.0,)
    with pytest.raises(ValueError, match="145 windows of ten minutes are no whole days of 144"):
        shape_of([1.0] * 145)


def test_the_workload_of_a_day_follows_its_shape() -> None:
    made = WORKLOADS["diurnal"].make(Scene(executor_of("E2"), 1.0, 1, stretch=4.0))
    assert made.duration_s == 4 * 48 * 60
    counts = [0] * 48
    for arrival in made.arrivals:
        counts[int(arrival.time_s // (4 * 60))] += 1
    peak = counts[DAY.index(1.0)]
    night = sum(counts[:16]) / 16
    assert night / peak == pytest.approx(sum(DAY[:16]) / 16, rel=0.1)
