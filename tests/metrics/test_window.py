from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.window import RELATIVE_ERROR, Histogram, RollingSum, Summary, Window, miss_bounds

values = st.floats(min_value=2e-6, max_value=9e5)


def test_nothing_seen_is_no_summary_and_not_zero() -> None:
    assert Window(resolution_s=0.1).last(3.0, 10.0) is None


def test_one_sample_is_its_own_mean_and_every_quantile_within_two_percent() -> None:
    window = Window(resolution_s=0.1)
    window.add(0.2, 1.0)
    summary = window.last(3.0, 1.0)
    assert summary is not None
    assert (summary.samples, summary.mean) == (1, 0.2)
    assert (summary.p50, summary.p90, summary.p99) == pytest.approx((0.2,) * 3, rel=RELATIVE_ERROR)


def test_zero_is_counted_as_zero() -> None:
    histogram = Histogram()
    histogram.add(0.0)
    assert histogram.summary() == Summary(samples=1, mean=0.0, p50=0.0, p90=0.0, p99=0.0)


@given(st.lists(values, min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_within_two_percent_of_the_sample_of_that_rank(
    samples: list[float], fraction: float
) -> None:
    histogram = Histogram()
    for sample in samples:
        histogram.add(sample)
    exact = sorted(samples)[math.ceil(fraction * len(samples)) - 1]
    (found,) = histogram.quantiles([fraction])
    assert abs(found - exact) <= (RELATIVE_ERROR + 1e-9) * exact


@given(st.lists(values, max_size=50), st.lists(values, max_size=50))
def test_two_histograms_add_up_to_the_one_of_all_samples(a: list[float], b: list[float]) -> None:
    parts = Histogram(), Histogram()
    whole = Histogram()
    for part, samples in zip(parts, (a, b), strict=True):
        for sample in samples:
            part.add(sample)
            whole.add(sample)
    parts[0].merge(parts[1])
    assert (parts[0].packed, parts[0].samples) == (whole.packed, whole.samples)
    assert parts[0].total == pytest.approx(whole.total)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, 1e6])
def test_what_is_no_latency_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="a sample should be from 0 to 1e"):
        Histogram().add(value)


def test_samples_older_than_the_window_are_left_out() -> None:
    window = Window(resolution_s=0.1)
    for second in range(10):
        window.add(second + 1.0, float(second))
    summary = window.last(3.0, 9.0)
    assert summary is not None
    # The slot that holds the edge counts: seconds 6, 7, 8, 9.
    assert (summary.samples, summary.mean) == (4, 8.5)


def test_only_samples_of_the_epoch_asked_for_count() -> None:
    window = Window(resolution_s=1.0)
    window.add(0.1, 5.0, epoch=1)
    window.add(0.3, 5.1, epoch=2)
    window.add(0.1, 5.2, epoch=1)
    epochs = [window.last(3.0, 6.0, epoch=epoch) for epoch in (1, 2, 3)]
    assert [None if s is None else (s.samples, s.mean) for s in epochs] == [
        (2, 0.1),
        (1, 0.3),
        None,
    ]


def test_a_thin_window_reaches_back_just_until_it_holds_enough() -> None:
    window = Window(resolution_s=1.0)
    for second in range(50):
        window.add(1.0, float(second))
    assert window.last(3.0, 49.0, at_least=20) == window.since(30.0).summary()
    thin = window.last(3.0, 49.0, at_least=20)
    assert thin is not None
    assert thin.samples == 20


def test_a_thin_window_reaches_back_a_minute_at_most() -> None:
    window = Window(resolution_s=1.0, horizon_s=120.0)
    window.add(1.0, 0.0)
    window.add(1.0, 50.0)
    summary = window.last(3.0, 100.0, at_least=20, at_most_s=60.0)
    assert summary is not None
    assert summary.samples == 1


def test_a_full_window_does_not_reach_back() -> None:
    window = Window(resolution_s=1.0)
    for tenth in range(1000):
        window.add(1.0, tenth / 10)
    summary = window.last(3.0, 99.9, at_least=20)
    assert summary is not None
    assert summary.samples == 40  # seconds 96 to 99


def test_memory_is_bounded_by_the_horizon() -> None:
    window = Window(resolution_s=1.0, horizon_s=10.0)
    for second in range(1000):
        window.add(1.0, float(second))
    assert window.since(0.0).samples == 11


def test_a_slot_longer_than_the_horizon_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a slot of 5\.0 s does not fit in a horizon of 1\.0 s"):
        Window(resolution_s=5.0, horizon_s=1.0)


def test_a_rate_is_over_the_time_that_was_counted() -> None:
    sums = RollingSum(resolution_s=1.0, started=100.0)
    assert sums.rate(100.0, 30.0) is None
    for second in range(100, 104):
        sums.add(5.0, float(second))
    assert sums.rate(104.0, 30.0) == 5.0
    assert sums.rate(104.0, 2.0) == 5.0


def test_no_events_for_a_while_is_a_rate_of_zero() -> None:
    sums = RollingSum(resolution_s=1.0, started=0.0)
    sums.add(5.0, 1.0)
    assert sums.rate(50.0, 10.0) == 0.0


def test_a_total_is_of_one_epoch_or_of_all() -> None:
    sums = RollingSum(resolution_s=1.0, started=0.0)
    sums.add(5.0, 1.0, epoch=1)
    sums.add(7.0, 1.5, epoch=2)
    assert [sums.total(0.0, epoch=epoch) for epoch in (1, 2, None)] == [5.0, 7.0, 12.0]


def test_no_samples_leave_every_miss_fraction_possible() -> None:
    assert miss_bounds(0, 0) == (0.0, 1.0)


def test_it_takes_230_requests_without_a_miss_to_show_that_99_percent_are_met() -> None:
    assert miss_bounds(0, 229)[1] > 0.01 > miss_bounds(0, 230)[1]


def test_one_miss_in_twenty_is_no_breach_of_99_percent_and_two_are() -> None:
    assert miss_bounds(1, 20)[0] < 0.01 < miss_bounds(2, 20)[0]


def test_more_misses_than_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="3 misses of 2 samples cannot be"):
        miss_bounds(3, 2)


@pytest.mark.parametrize("samples", [1, 5, 20, 100, 250])
def test_bounds_are_wrong_no_oftener_than_one_time_in_nine(samples: int) -> None:
    """The chance of so many misses, were the truth at the bound, is 10 % and 0.7 % at most.

    Exact binomial tails; the bounds are an approximation of those of Clopper and Pearson.
    """
    for misses in range(samples + 1):
        lower, upper = miss_bounds(misses, samples)
        if misses:
            assert 1 - _at_most(misses - 1, samples, lower) <= 0.107
        if misses < samples:
            assert _at_most(misses, samples, upper) <= 0.107


def _at_most(misses: int, samples: int, fraction: float) -> float:
    return sum(
        math.comb(samples, k) * fraction**k * (1 - fraction) ** (samples - k)
        for k in range(misses + 1)
    )
