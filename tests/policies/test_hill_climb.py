from __future__ import annotations

from dataclasses import replace

import pytest

from policies.contract import Limits, Passed, Policy, Proposal, Shape, Signals
from policies.registry import build, problems
from tests.policies.signals import CONTINUOUS, LIMITS, WHOLE, served, tier

TWENTY = replace(LIMITS, max_batch_size=20)


def yields(
    goodput: float | None, *, tokens_per_s: float | None = 200.0, shape: Shape = CONTINUOUS
) -> Signals:
    passed = Passed(goodput=goodput)
    return served(tier("paid", passed=passed), tokens_per_s=tokens_per_s, shape=shape)


def window(policy: Policy, signals: Signals, limits: Limits, ticks: int = 120) -> Proposal:
    """The answer after so many ticks, 120 of which are the 30 s of the window."""
    for _ in range(ticks - 1):
        assert policy.decide(signals, limits).limits == limits
    return policy.decide(signals, limits)


def walk(policy: Policy, limits: Limits, goodputs: list[float], shape: Shape) -> list[int]:
    sizes = []
    for goodput in goodputs:
        limits = window(policy, yields(goodput, shape=shape), limits).limits
        sizes.append(limits.max_batch_size)
    return sizes


@pytest.mark.parametrize("shape", [CONTINUOUS, WHOLE])
def test_the_step_doubles_after_two_gains_and_halves_and_turns_after_a_loss(shape: Shape) -> None:
    walked = walk(build("hill_climb", {}), TWENTY, [1.0, 1.1, 1.2, 1.1, 1.0], shape)
    # 25 % up; 25 % up; 50 % up; 25 % down; 12.5 % up.
    assert walked == [25, 31, 47, 35, 39]


def test_less_than_a_hundredth_more_is_no_gain() -> None:
    assert walk(build("hill_climb", {}), TWENTY, [1.0, 1.005], CONTINUOUS) == [25, 22]


def test_what_it_does_is_told_with_figures() -> None:
    policy = build("hill_climb", {})
    assert policy.decide(yields(1.0), TWENTY).reason == "looks at B 20 for 0 of 30 s"
    told = window(policy, yields(1.0), TWENTY, 119).reason
    assert told == "1 requests/s in target, tries a step of 25%"
    told = window(policy, yields(0.8), replace(TWENTY, max_batch_size=25)).reason
    assert told == "1 -> 0.8 requests/s in target: no gain, back by 12%"


def test_while_b_does_not_bind_it_is_frozen_and_forgets_what_it_saw() -> None:
    policy = build("hill_climb", {})
    assert window(policy, yields(1.0), TWENTY).limits.max_batch_size == 25
    idle = yields(5.0)
    idle = replace(idle, executors=(replace(idle.executors[0], size_bound=0.4),))
    moved = replace(TWENTY, max_batch_size=25)
    for _ in range(500):
        assert policy.decide(idle, moved).limits == moved
    # 5 a second, and no gain: with what was before the pause it is not compared.
    told = window(policy, yields(5.0), moved).reason
    assert told == "5 requests/s in target, tries a step of 25%"


def test_a_limit_that_somebody_else_moved_is_looked_at_for_a_whole_window() -> None:
    policy = build("hill_climb", {})
    window(policy, yields(1.0), TWENTY)
    # The guard let 22 of the 25 through.
    assert window(policy, yields(1.2), replace(TWENTY, max_batch_size=22)).limits == replace(
        TWENTY, max_batch_size=28
    )


def test_tokens_stand_in_where_nothing_was_finished_and_are_not_compared_with_requests() -> None:
    policy = build("hill_climb", {})
    first = window(policy, yields(None), TWENTY)
    assert first.reason == "200 tokens/s, tries a step of 25%"
    second = window(policy, yields(None, tokens_per_s=250.0), first.limits)
    assert second.reason == "200 -> 250 tokens/s: on by 25%"
    third = window(policy, yields(1.0), second.limits)
    assert third.reason == "1 requests/s in target, tries a step of 25%"


def test_nothing_known_moves_nothing() -> None:
    policy = build("hill_climb", {})
    assert window(policy, yields(None, tokens_per_s=None), TWENTY, 300).limits == TWENTY


def test_from_one_there_is_only_up() -> None:
    policy, one = build("hill_climb", {}), replace(LIMITS, max_batch_size=1)
    assert walk(policy, one, [1.0, 0.5, 0.4], CONTINUOUS) == [2, 1, 2]


def test_steps_in_the_wrong_order_are_refused() -> None:
    assert problems("hill_climb", {"step": 0.6}) == [
        ((), "step 0.6 should be between smallest_step 0.02 and largest_step 0.5")
    ]
