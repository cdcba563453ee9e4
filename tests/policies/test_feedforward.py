from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.contract import StepEstimate
from policies.costs import Cost, Lengths
from policies.feedforward import (
    MOST_ROWS,
    BatchTimes,
    Demand,
    batch_size,
    largest_shared,
    largest_size,
    prompt_tokens,
)


def model(
    *,
    a: float = 0.02,
    b: float = 0.0,
    c: float = 0.001,
    c_above: float | None = None,
    knee: int = 95,
    d: float = 0.0,
    e: float = 0.0,
) -> StepEstimate:
    """20 ms a step and 1 ms a row."""
    above = c if c_above is None else c_above
    return StepEstimate(a, b, c, above, knee, d, e, 0.0, 1000, identifiable=True)


def test_rows_are_as_many_as_decode_within_the_time() -> None:
    # 20 ms + 1 ms a row + 10 us for each of its 100 tokens.
    assert largest_size(model(b=1e-5), 100.0, 0.1) == 40


def test_beyond_the_knee_a_row_costs_what_it_costs_there() -> None:
    # 95 rows take 115 ms, then 4 ms each: 10 more in 40 ms.
    assert largest_size(model(c_above=0.004), 0.0, 0.1551) == 105


def test_no_row_decodes_in_less_than_a_step_takes_anyhow() -> None:
    assert largest_size(model(), 0.0, 0.019) == 0
    assert largest_size(model(), 0.0, 0.0205) == 0


def test_rows_that_cost_nothing_are_never_too_many() -> None:
    assert largest_size(model(c=0.0), 0.0, 0.1) == MOST_ROWS


costs = st.floats(min_value=0, max_value=0.01)


@given(
    a=costs,
    b=st.floats(0, 1e-4),
    c=costs,
    c_above=costs,
    knee=st.integers(1, 300),
    context=st.floats(0, 5000),
    step_s=st.floats(0, 2),
)
def test_one_more_row_would_be_too_many_whatever_the_model(
    a: float, b: float, c: float, c_above: float, knee: int, context: float, step_s: float
) -> None:
    of = model(a=a, b=b, c=c, c_above=c_above, knee=knee)
    most = largest_size(of, context, step_s)
    if 1 <= most < MOST_ROWS:
        assert of.predict(most, most * context) <= step_s + 1e-9
        assert of.predict(most + 1, (most + 1) * context) > step_s - 1e-9


def test_rows_leave_time_for_the_prompts_that_they_bring() -> None:
    # 1 ms a row, and 1 ms for its ten tokens of prompts a step: 80 ms are for 40.
    of = model(d=1e-4)
    assert largest_shared(of, 0.0, 0.1, prompts=10.0, share=0.4) == 40


def test_no_more_than_a_share_is_kept_for_prompts() -> None:
    # 0.1 s a row for prompts leaves room for none; 60 ms are theirs whatever comes.
    of = model(d=1e-4)
    assert largest_shared(of, 0.0, 0.1, prompts=1000.0, share=0.4) == 40
    assert largest_shared(of, 0.0, 0.1, prompts=1000.0, share=0.0) == 80


def test_prompts_are_as_many_as_fit_into_the_time_attention_included() -> None:
    # 0.1 ms a token and 1 us for each pair of them: 100 tokens take 10 ms and 10 ms.
    assert prompt_tokens(model(d=1e-4, e=1e-6), 0.02) == pytest.approx(100.0)
    assert prompt_tokens(model(d=1e-4), 0.02) == pytest.approx(200.0)


def test_prompts_that_cost_nothing_are_without_bound_and_no_time_is_for_none() -> None:
    assert prompt_tokens(model(), 0.02) == math.inf
    assert prompt_tokens(model(), 0.0) == 0.0


def test_a_batch_takes_its_steps_and_begins_with_its_prompts() -> None:
    times = BatchTimes.of(model(b=1e-6, d=1e-4), Lengths(prompt=100.0, new=10.0))
    # Ten steps of 20 ms; a row costs its prefill, 10 ms, and ten times 1.105 ms.
    assert times.whole.of(2) == pytest.approx(0.2 + 2 * (0.01 + 10 * 0.001105))
    assert times.begun.of(2) == pytest.approx(0.02 + 2 * (0.01 + 0.0011005))


# A batch of n takes 0.5 s + 0.1 s * n, its first tokens come after 0.1 s * n.
TIMES = BatchTimes(whole=Cost(0.5, 0.1, 0.1, 1000), begun=Cost(0.0, 0.1, 0.1, 1000))


def test_while_few_come_batches_are_small_enough_for_all_to_begin_in_time() -> None:
    # With 5: a second for the batch under way, half a second for its own.
    assert batch_size(TIMES, [Demand(1.0, 1.5)], rate=1.0, most=64) == 5


def test_when_many_come_batches_are_large_enough_to_serve_them() -> None:
    def size(rate: float) -> int | None:
        # Of those who want their first token within 0.8 s small batches serve more.
        demands = [Demand(0.5 * rate, 0.8), Demand(0.5 * rate, 3.0)]
        return batch_size(TIMES, demands, rate=rate, most=64)

    assert (size(1.0), size(4.0)) == (1, 6)


def test_nobody_waits_for_a_smaller_batch_where_not_even_the_smallest_is_over_in_time() -> None:
    assert batch_size(TIMES, [Demand(1.0, 0.65)], rate=1.0, most=64) is None
    assert batch_size(TIMES, [], rate=1.0, most=64) is None


def test_nobody_waits_for_a_smaller_batch_where_hardly_anybody_can_be_in_time() -> None:
    # Any size lets less than 5 a second begin in time: a quarter of 20, next to nothing of 100.
    def size(rate: float) -> int | None:
        return batch_size(TIMES, [Demand(rate, 3.0)], rate=rate, most=64)

    assert (size(20.0), size(100.0)) == (12, None)
