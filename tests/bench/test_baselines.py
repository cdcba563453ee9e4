from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.baseline_bentoml import BentoMl, line
from bench.baseline_clipper import Clipper, Latency, estimate
from bench.baseline_pang import Pang
from policies.contract import Limits, Passed, Proposal, Shape, Signals
from policies.registry import build
from tests.policies.signals import LIMITS, itl, seen
from tests.policies.signals import signals as any_signals

RULES = ("bench.baseline_clipper:Clipper", "bench.baseline_bentoml:BentoMl")


def step(
    ms: float, running: int = 16, *, queued: int = 0, interval_s: float = 0.25, **passed: float
) -> Signals:
    """Tokens come every so many milliseconds, the target is 100."""
    told = seen(itl(ms / 1e3, state="room", target_s=0.1), queued=queued)
    (executor,), (tier,) = told.executors, told.tiers
    executor = replace(
        executor, running=running, mean_batch=float(running), mean_context=500.0, mean_prefill=0.0
    )
    shape = Shape(64, 8192, 66_000, runs_to_completion=False, splits_prefill=True)
    return replace(
        told,
        interval_s=interval_s,
        executors=(replace(executor, shape=shape),),
        tiers=(replace(tier, arrival_rate=1.0, passed=Passed(**passed)),),
    )


def clipper(**more: Any) -> Clipper:
    return Clipper(Clipper.Parameters(**more))


def size(proposal: Proposal) -> int:
    return proposal.limits.max_batch_size


def at(b: int) -> Limits:
    return replace(LIMITS, max_batch_size=b)


def test_clipper_explores_one_by_one_below_ten_while_every_step_was_within_its_budget() -> None:
    policy = clipper()
    assert size(policy.decide(step(40.0, 3), at(5))) == 6
    assert size(policy.decide(step(40.0, 3), at(6))) == 7
    # What the guard refused was never the largest.
    assert size(policy.decide(step(40.0, 3), at(6))) == 7


def test_clipper_stays_at_a_size_that_it_has_seen_less_than_five_times() -> None:
    policy = clipper()
    assert [size(policy.decide(step(40.0, 7), at(7))) for _ in range(5)] == [7, 7, 7, 7, 8]


def test_clipper_multiplies_from_ten_on_and_not_beyond_what_the_executor_holds() -> None:
    policy = clipper(growth=0.5, growth_spread=0.0)
    assert size(policy.decide(step(40.0, 3), at(20))) == 30
    assert size(policy.decide(step(40.0, 3), at(60))) == 64


def test_clipper_never_explores_again_after_one_step_over_its_budget() -> None:
    policy = clipper()
    policy.decide(step(93.0, 20), at(20))  # 92 ms is the budget
    proposal = policy.decide(step(40.0, 8), at(8))
    # A line through (93 ms, 20) and (40 ms, 8) at 92 ms: 20 - 12 / 53, cut off.
    assert size(proposal) == 19
    assert proposal.reason == "estimating: the longest step took 93 ms of 92 ms"


def test_the_latency_of_a_size_is_its_mean_and_three_spreads_pooled_over_sizes() -> None:
    seen_: dict[int, Latency] = {}
    for rows, values in {10: (40, 40, 40, 40, 40, 46), 30: (80,)}.items():
        for value in values:
            seen_.setdefault(rows, Latency()).add(value)
    # 10: mean 41, variance 5; pooled: sqrt(5 * 5 / (6 - 2)) = 2.5, which 30 gets as well.
    # A line of size on latency through (48.5, 10) and (87.5, 30), at 68: halfway.
    assert estimate(seen_, 68.0, z=3.0) == 20
    # Without spreads it goes through (41, 10) and (80, 30).
    assert estimate(seen_, 60.6, z=0.0) == 20


def test_clipper_knows_one_size_only_and_stays_there() -> None:
    seen_ = {12: Latency()}
    for _ in range(9):
        seen_[12].add(99.0)
    assert estimate(seen_, 92.0, z=3.0) == 12


def test_bentoml_assumes_a_line_before_it_has_seen_anything() -> None:
    # 0.1 * 2 / 30 n + 0.1 / 30 < 0.1 up to n = 14.
    proposal = BentoMl(BentoMl.Parameters()).decide(step(40.0), LIMITS)
    assert (size(proposal), proposal.limits.wait_timeout_s) == (14, 0.0)


def test_bentoml_fits_a_line_and_takes_the_largest_batch_under_the_target() -> None:
    policy = BentoMl(BentoMl.Parameters())
    for _ in range(2):
        policy.decide(step(500.0), LIMITS)  # skipped
    policy.decide(step(30.0, 10), LIMITS)  # fitted at once, and again after 5 s
    proposal = policy.decide(step(50.0, 20, interval_s=5.0), LIMITS)
    # 2 ms each and 10 ms: 45 of them take 100 ms, which is not under 100.
    assert size(proposal) == 44
    assert proposal.reason == "a step of n takes 2.00 n + 10.0 ms of 100 ms; usual wait 0 ms"


def test_bentoml_has_a_largest_batch() -> None:
    policy = BentoMl(BentoMl.Parameters(max_batch_size=10))
    assert size(policy.decide(step(40.0), LIMITS)) == 10


def test_bentoml_waits_a_part_of_what_was_waited_lately_shared_among_who_waits() -> None:
    policy = BentoMl(BentoMl.Parameters())
    for _ in range(2):
        policy.decide(step(30.0, 10), LIMITS)
    waited = step(30.0, 10, queued=2, queue_s=0.08, hold_s=0.02)
    proposal = policy.decide(waited, LIMITS)
    # Of one size the line is the shortest through it: a = 10 b.
    slope_s = 0.03 * 10 / 101
    assert proposal.limits.wait_timeout_s == pytest.approx(0.95 * 0.1 / 2 - 0.001 - slope_s)


def test_a_line_never_falls_and_never_begins_below_nothing() -> None:
    assert line([(1, 3.0), (2, 5.0)]) == pytest.approx((2.0, 1.0))
    assert line([(10, 2.0), (20, 1.0)]) == pytest.approx((1e-6, 3.0))
    assert line([(10, 1.0), (20, 3.0)]) == pytest.approx((0.2, 0.0))


def test_pang_aims_the_search_at_a_part_of_each_inter_token_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Spy:
        targets: tuple[float, ...] = ()

        def decide(self, signals: Signals, limits: Limits) -> Proposal:
            Spy.targets = tuple(v.target_s for tier in signals.tiers for v in tier.verdicts)
            return Proposal(limits, "")

    monkeypatch.setattr("bench.baseline_pang.build", lambda name, parameters: Spy())
    told = step(40.0)
    both = (*told.tiers[0].verdicts, replace(told.tiers[0].verdicts[0], metric="ttft"))
    told = replace(told, tiers=(replace(told.tiers[0], verdicts=both),))
    Pang(Pang.Parameters(aim=0.8)).decide(told, LIMITS)
    assert Spy.targets == pytest.approx((0.08, 0.1))


def test_pang_goes_down_at_a_low_aim_where_the_target_itself_is_kept() -> None:
    def after(aim: float) -> int:
        return size(build("bench.baseline_pang:Pang", {"aim": aim}).decide(step(80.0, 16), LIMITS))

    assert after(0.5) < 16 <= after(1.0)


@pytest.mark.parametrize("name", RULES)
def test_where_nothing_was_measured_the_limits_stay(name: str) -> None:
    assert build(name, {}).decide(seen(), LIMITS).limits == LIMITS


@pytest.mark.parametrize("name", RULES)
@given(many=st.lists(any_signals, max_size=4))
@settings(max_examples=40)
def test_whatever_is_seen_limits_are_numbers_and_the_same_again(
    name: str, many: list[Signals]
) -> None:
    answers = [
        [policy.decide(signals, LIMITS) for signals in many]
        for policy in (build(name, {}), build(name, {}))
    ]
    assert answers[0] == answers[1]
    for proposal in answers[0]:
        assert size(proposal) >= 1
        assert math.isfinite(proposal.limits.wait_timeout_s)
        assert proposal.limits.max_batch_tokens >= size(proposal)
