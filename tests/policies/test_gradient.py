from __future__ import annotations

from dataclasses import replace

import pytest

from policies.contract import Passed, Signals
from policies.registry import build
from tests.policies.signals import LIMITS, WHOLE, served, spread, tier

# 16 sequences of 500 tokens: t = 20 + 16 (0.5 + 0.5) = 36 ms; 1.5 * 1.5 * 36 = 81 ms are fine.


def one(signals: Signals, size: int = 16) -> int:
    """What a fresh policy makes of a batch size."""
    in_force = replace(LIMITS, max_batch_size=size)
    return build("gradient", {}).decide(signals, in_force).limits.max_batch_size


def at(median_s: float, *, size_bound: float = 0.8, mean_batch: float = 16.0) -> Signals:
    return served(tier(itl=spread(median_s)), size_bound=size_bound, mean_batch=mean_batch)


@pytest.mark.parametrize(
    ("median_s", "size"),
    [
        (0.036, 17),  # 0.8*16 + 0.2 (16 + 4) = 16.8
        (0.080, 17),
        (0.100, 15),  # g = 0.81: 12.8 + 0.2 * 12.96 = 15.39
        (0.162, 14),  # g = 0.5: 12.8 + 1.6 = 14.4
        (9.000, 14),  # g is never less
    ],
)
def test_b_follows_the_ratio_of_expected_to_measured_latency(median_s: float, size: int) -> None:
    assert one(at(median_s)) == size


def test_the_reason_has_the_figures() -> None:
    told = build("gradient", {}).decide(at(0.1), LIMITS).reason
    assert told == "median ITL 100 ms, 81 ms expected at most, gradient 0.81"


def test_a_larger_batch_may_take_longer_and_is_no_congestion() -> None:
    # 64 sequences take 84 ms as they should; for 16 they would be congestion.
    assert one(at(0.084, mean_batch=64.0), 64) == 66
    assert one(at(0.084, mean_batch=8.0), 64) == 61


def test_nothing_grows_that_does_not_bind_and_congestion_shrinks_all_the_same() -> None:
    proposal = build("gradient", {}).decide(at(0.036, size_bound=0.4), LIMITS)
    assert proposal.limits == LIMITS
    assert proposal.reason.endswith("but B does not bind (reached in 40% of the steps)")
    assert one(at(0.162, size_bound=0.0)) == 14


def test_fractions_add_up_as_long_as_the_limit_is_as_proposed() -> None:
    policy, in_force, sizes = build("gradient", {}), replace(LIMITS, max_batch_size=2), []
    for _ in range(4):
        in_force = policy.decide(at(0.036), in_force).limits
        sizes.append(in_force.max_batch_size)
    # 2.28, 2.59, 2.91, 3.25
    assert sizes == [2, 3, 3, 3]
    # Refused by the guard: from 2 again, 2.28.
    assert policy.decide(at(0.036), replace(LIMITS, max_batch_size=2)).limits.max_batch_size == 2


def test_tiers_count_by_their_samples() -> None:
    # (3 * 36 + 1 * 216) / 4 = 81 ms, at the edge; one slow sample more is over it.
    fast, slow = tier(itl=spread(0.036, 30)), tier("free", itl=spread(0.216, 10))
    assert one(served(fast, slow)) in (16, 17)
    assert one(served(fast, replace(slow, itl=spread(0.216, 60)))) < 16


def whole(e2e_s: float, queue_s: float) -> Signals:
    """Batches of 16 with prompts of 100 tokens and 50 new ones: 1 + 16 * 0.04125 = 1.66 s."""
    passed = Passed(prompt_tokens=100, new_tokens=50, queue_s=queue_s, hold_s=0.1)
    return served(tier(e2e=spread(e2e_s), passed=passed), shape=WHOLE)


@pytest.mark.parametrize(
    ("e2e_s", "queue_s", "size"),
    [
        # base = 0.1 + 1.5 * 1.66 = 2.59; up to 3.885 s from dispatch to end are fine.
        (3.8, 0.0, 17),
        (7.77, 0.0, 14),  # g = 0.5
        (100.0, 97.0, 17),  # the queue is not the executor's
    ],
)
def test_run_to_completion_compares_whole_batches_without_the_queue(
    e2e_s: float, queue_s: float, size: int
) -> None:
    assert one(whole(e2e_s, queue_s)) == size


def test_means_that_leave_nothing_over_say_nothing() -> None:
    proposal = build("gradient", {}).decide(whole(3.0, 4.0), LIMITS)
    assert proposal.limits == LIMITS
    assert proposal.reason == "no latency to hold against the step model"


def test_without_a_step_model_nothing_moves() -> None:
    assert one(replace(at(9.0), model=None)) == 16
