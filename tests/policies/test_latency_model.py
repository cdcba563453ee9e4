from __future__ import annotations

from dataclasses import replace

import pytest

from policies.contract import Passed, Signals, StepEstimate, TierSignals, Verdict
from policies.registry import build
from tests.policies.signals import LIMITS, MODEL, WHOLE, itl, served, tier


def promised(target_s: float = 0.1, name: str = "paid", *, running: int = 16) -> TierSignals:
    """A tier with a target on ITL of which nothing was measured yet."""
    verdict = replace(itl(0.0, state="unknown", target_s=target_s), samples=0, value_s=None)
    return tier(name, verdict, running=running)


def one(signals: Signals, size: int = 16) -> int:
    in_force = replace(LIMITS, max_batch_size=size)
    return build("latency_model", {}).decide(signals, in_force).limits.max_batch_size


@pytest.mark.parametrize(
    ("model", "prefill", "size"),
    [
        (MODEL, 0.0, 80),  # (100 - 20) / (0.5 + 0.5)
        (MODEL, 100.0, 70),  # 10 ms of prefill less
        (replace(MODEL, sigma_s=0.005), 100.0, 63),  # 1.28 * 5 ms less
        (replace(MODEL, knee=50, c_above=1.5e-3), 100.0, 60),  # 50, and 20 ms / (1.5 + 0.5)
        (replace(MODEL, a=0.2), 0.0, 1),  # no batch is small enough
    ],
)
def test_b_is_the_largest_that_the_model_affords(
    model: StepEstimate, prefill: float, size: int
) -> None:
    signals = served(promised(), model=model, mean_prefill=prefill)
    assert one(signals) == size
    assert one(signals, 200) == size


def test_the_reason_has_the_figures() -> None:
    told = build("latency_model", {}).decide(served(promised()), LIMITS).reason
    assert told == "paid ITL 100 ms, 20.0 ms a step and 1.00 ms a sequence of 500 tokens"


def test_what_is_too_large_shrinks_at_once_and_what_does_not_bind_does_not_grow() -> None:
    idle = served(promised(), size_bound=0.4)
    assert one(idle, 200) == 80
    proposal = build("latency_model", {}).decide(idle, LIMITS)
    assert proposal.limits == LIMITS
    assert proposal.reason.endswith("B 80, but B does not bind (reached in 40% of the steps)")


def test_within_the_dead_band_b_stays() -> None:
    # |80 - 67| = 13 is within 13.4, |80 - 66| = 14 is beyond 13.2.
    assert (one(served(promised()), 67), one(served(promised()), 66)) == (67, 80)
    assert (one(served(promised()), 100), one(served(promised()), 101)) == (100, 80)


def test_noise_in_the_context_does_not_make_b_wander() -> None:
    policy, limits, sizes = build("latency_model", {}), LIMITS, set()
    for tick in range(400):
        # By turns 16 % less and more: by itself (100 - 20) / 0.92 .. / 1.08 = 74 .. 86.
        noisy = served(promised(), mean_context=420.0 if tick % 2 else 580.0)
        limits = policy.decide(noisy, limits).limits
        sizes.add(limits.max_batch_size)
    assert len(sizes) == 1


def test_a_change_of_context_that_stays_is_followed() -> None:
    policy, limits = build("latency_model", {}), LIMITS
    for context in [500.0] * 10 + [1500.0] * 200:
        limits = policy.decide(served(promised(), mean_context=context), limits).limits
    # In the end (100 - 20) / (0.5 + 1.5) = 40, reached within the dead band.
    assert 40 <= limits.max_batch_size <= 50


def test_where_sizes_have_not_varied_b_moves_by_one() -> None:
    signals = served(promised(), model=replace(MODEL, identifiable=False))
    assert (one(signals), one(signals, 200)) == (17, 199)


def test_the_tightest_tier_that_runs_or_waits_is_the_one_that_counts() -> None:
    paid, free = promised(0.1), promised(0.15, "free")
    assert one(served(paid, free)) == 80
    gone = replace(paid, running=0)
    assert one(served(gone, free)) == 130
    assert one(served(replace(gone, queued=1), free)) == 80


def test_without_a_target_b_grows_to_the_seats_while_it_binds() -> None:
    assert one(served(tier("offline"))) == 256
    assert one(served(tier("offline"), size_bound=0.2)) == 16
    assert one(served(tier("offline"), shape=None)) == 16


@pytest.mark.parametrize("signals", [served(), served(promised(), model=None)])
def test_with_nobody_there_or_no_model_nothing_moves(signals: Signals) -> None:
    assert one(signals) == 16


# --- run to completion: alpha = 50 * 20 ms = 1 s, beta = 10 ms + 50 (0.5 + 0.125) ms = 41.25 ms ---


def whole(target_s: float, *, model: StepEstimate = MODEL) -> Signals:
    verdict: Verdict = replace(itl(0.0, state="unknown", target_s=target_s), metric="e2e")
    passed = Passed(prompt_tokens=100, new_tokens=50)
    return served(tier("paid", verdict, passed=passed), shape=WHOLE, model=model)


def test_run_to_completion_leaves_time_for_the_batch_before() -> None:
    # (0.92 * 20 - 0.005 - 2) / 0.0825 = 198.7
    assert one(whole(20.0)) == 198
    assert one(whole(2.0)) == 1


def test_run_to_completion_keeps_the_spread_of_all_steps_free() -> None:
    # 1.28 * 0.1 s * sqrt(50) = 0.905 s less: 187.8
    assert one(whole(20.0, model=replace(MODEL, sigma_s=0.1))) == 187


def test_run_to_completion_goes_by_the_end_alone() -> None:
    paced = served(promised(), shape=WHOLE)
    assert one(paced) == 16  # no lengths are known yet
    passed = Passed(prompt_tokens=100, new_tokens=50)
    assert one(served(replace(promised(), passed=passed), shape=WHOLE)) == 256
