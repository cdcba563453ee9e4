from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.contract import (
    Cause,
    ExecutorSignals,
    Limits,
    Passed,
    Shape,
    Signals,
    StepEstimate,
    TierSignals,
    Verdict,
)
from policies.slo import Slo

LIMITS = Limits(16, 1024, 0.0)
# 20 ms a step, 2 ms a row, 0.1 ms a token of a prompt.
MODEL = StepEstimate(0.02, 0.0, 0.002, 0.002, 95, 1e-4, 0.0, 0.0, 1000, identifiable=True)
SHAPE = Shape(256, 8192, 100_000, runs_to_completion=False, splits_prefill=True)
BATCHES = replace(SHAPE, runs_to_completion=True, splits_prefill=False)


def slo(**parameters: Any) -> Slo:
    return Slo(Slo.Parameters(**parameters))


def paid(*verdicts: Verdict, itl_s: float | None = 0.1, new: float = 128.0) -> TierSignals:
    """Three a second, of prompts of 200 tokens."""
    given = list(verdicts)
    if itl_s is not None and not any(one.metric == "itl" for one in given):
        given.append(verdict("itl", itl_s))
    passed = Passed(prompt_tokens=200.0, new_tokens=new)
    return TierSignals("paid", 2, 5, 900, 0.1, 8, 3.0, verdicts=tuple(given), passed=passed)


def verdict(metric: Any, target_s: float, state: Any = "room", **told: Any) -> Verdict:
    return Verdict(metric, target_s, 0.99, samples=50, misses=0, state=state, **told)


def seen(
    *tiers: TierSignals, shape: Shape | None = SHAPE, rows: float = 10.0, **executor: Any
) -> Signals:
    told = {"size_bound": 0.9, "tokens_bound": 0.9, **executor}
    one = ExecutorSignals(
        "e", True, 16, 0, steps=60, mean_batch=rows, mean_context=100.0, shape=shape, **told
    )
    return Signals(0.25, 0.05, tiers or (paid(),), (one,), MODEL)


def test_b_is_the_most_rows_that_decode_within_the_tightest_target() -> None:
    proposal = slo().decide(seen(), LIMITS)
    # (100 - 20) ms at 2 ms a row.
    assert proposal.limits.max_batch_size == 40
    assert proposal.reason.startswith("paid ITL 100 ms lets 40 rows of 100 tokens decode")


def test_the_spread_of_the_model_is_kept_clear_of() -> None:
    spread = replace(seen(), model=replace(MODEL, sigma_s=0.01))
    # 1.3 times 10 ms less.
    assert slo().decide(spread, LIMITS).limits.max_batch_size == 33


def test_t_lets_a_step_with_prompts_be_as_long_as_the_completions_can_make_up_for() -> None:
    # 10 rows take 40 ms; the 60 ms to spare, and once more for 128 tokens of completion: 120 ms.
    assert slo().decide(seen(), LIMITS).limits.max_batch_tokens == 1210
    short = slo().decide(seen(paid(new=12.8)), LIMITS).limits
    assert short.max_batch_tokens == 670


def test_a_target_that_not_even_one_row_keeps_is_nobodys_measure() -> None:
    free = replace(paid(itl_s=0.15), name="free", priority=1)
    proposal = slo().decide(seen(paid(itl_s=0.021), free), LIMITS)
    assert proposal.limits.max_batch_size == 65
    assert proposal.reason.startswith("free ITL 150 ms")


def test_without_a_target_that_binds_b_is_as_large_as_the_executor() -> None:
    assert slo().decide(seen(paid(itl_s=None)), LIMITS).limits.max_batch_size == 256


def test_what_does_not_bind_does_not_grow() -> None:
    limits = slo().decide(seen(size_bound=0.4, tokens_bound=0.4), LIMITS).limits
    assert (limits.max_batch_size, limits.max_batch_tokens) == (16, 1024)


def test_it_shrinks_at_once_whether_anything_binds_or_not() -> None:
    wide = Limits(64, 4096, 0.0)
    limits = slo().decide(seen(size_bound=0.0, tokens_bound=0.0), wide).limits
    assert (limits.max_batch_size, limits.max_batch_tokens) == (40, 1210)


def test_trifles_move_nothing() -> None:
    near = Limits(37, 1300, 0.0)
    limits = slo().decide(seen(), near).limits
    assert (limits.max_batch_size, limits.max_batch_tokens) == (37, 1300)


def test_a_breach_by_decoding_cuts_b_by_a_tenth_however_small_that_is() -> None:
    breach = paid(verdict("itl", 0.1, "breach", cause=Cause.DECODE))
    limits = slo().decide(seen(breach), Limits(40, 1210, 0.0)).limits
    assert limits.max_batch_size == 36


def test_a_breach_by_prompts_cuts_t_and_b_too_where_batches_are_full() -> None:
    breach = paid(verdict("itl", 0.1, "breach", cause=Cause.PREFILL))
    in_force = Limits(40, 1210, 0.0)
    limits = slo().decide(seen(breach, size_bound=0.2), in_force).limits
    assert (limits.max_batch_size, limits.max_batch_tokens) == (40, 1090)
    limits = slo().decide(seen(breach, size_bound=0.9), in_force).limits
    assert (limits.max_batch_size, limits.max_batch_tokens) == (36, 1090)


def test_rows_leave_time_for_the_prompts_that_they_bring() -> None:
    # 100 tokens of prompts in a step of 10 rows: a row costs 2 ms, and 1 ms for its prompts.
    limits = slo().decide(seen(mean_prefill=100.0), LIMITS).limits
    assert limits.max_batch_size == 26


@pytest.mark.parametrize("cause", [Cause.QUEUE, Cause.OVERLOAD])
def test_a_queue_alone_never_makes_batches_smaller(cause: Cause) -> None:
    late = paid(verdict("ttft", 1.0, "breach", cause=cause))
    policy, limits = slo(), Limits(40, 1210, 0.01)
    for _ in range(100):
        limits = policy.decide(seen(late), limits).limits
    assert limits.max_batch_size == 40


def test_w_is_half_of_a_steps_fixed_part_within_a_part_of_the_time_to_first_token() -> None:
    patient = paid(verdict("ttft", 1.0))
    assert slo().decide(seen(patient), LIMITS).limits.wait_timeout_s == 0.010
    hurried = paid(verdict("ttft", 0.2))
    assert slo().decide(seen(hurried), LIMITS).limits.wait_timeout_s == 0.004


def test_where_batches_run_to_their_end_most_begin_in_time() -> None:
    # A batch of n takes 0.2 s + n * 0.04 s, its first tokens come after 0.02 s + n * 0.022 s.
    told = paid(verdict("ttft", 1.0), itl_s=None, new=10.0)
    proposal = slo().decide(seen(told, shape=BATCHES), LIMITS)
    assert proposal.reason.startswith("a batch of n takes 0.20 s + n x 0.040 s: with 12 most")
    assert proposal.limits.max_batch_size == 16 - 4


def test_batches_that_are_seldom_full_are_not_limited() -> None:
    told = paid(verdict("ttft", 1.0), itl_s=None, new=10.0)
    idle = seen(told, shape=BATCHES, size_bound=0.2)
    assert slo().decide(idle, Limits(64, 1024, 0.0)).limits.max_batch_size == 64


def test_before_anything_is_known_nothing_moves() -> None:
    unknown = replace(seen(), model=None)
    assert slo().decide(unknown, LIMITS).limits == LIMITS
    assert slo().decide(seen(shape=None), LIMITS).limits == LIMITS
    nobody = replace(paid(), queued=0, running=0, arrival_rate=0.0)
    assert slo().decide(seen(nobody), LIMITS).limits == LIMITS
