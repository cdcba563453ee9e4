from __future__ import annotations

from dataclasses import replace

import pytest

from policies.contract import Cause, Limits, Proposal, Signals, Verdict
from policies.registry import build
from tests.policies.signals import LIMITS, itl, seen


def one(signals: Signals, size: int = 16) -> Proposal:
    """The answer of a fresh policy."""
    return build("aimd", {}).decide(signals, replace(LIMITS, max_batch_size=size))


def breach(value_s: float = 0.163, cause: Cause | None = Cause.DECODE) -> Verdict:
    return itl(value_s, state="breach", misses=12, cause=cause)


def test_a_breach_by_decode_multiplies_b_by_nine_tenths_and_says_so() -> None:
    proposal = one(seen(breach()))
    assert proposal.limits == replace(LIMITS, max_batch_size=14)
    assert proposal.reason == ("paid ITL 163 ms over 150 ms in 12 of 40 requests, cause decode")


def test_a_breach_beyond_one_and_a_half_times_the_target_multiplies_b_by_seven_tenths() -> None:
    assert one(seen(breach(0.226)), 20).limits.max_batch_size == 14
    assert one(seen(breach(0.224)), 20).limits.max_batch_size == 18


def test_prefill_is_a_cause_to_shrink_too() -> None:
    assert one(seen(breach(cause=Cause.PREFILL))).limits.max_batch_size == 14


@pytest.mark.parametrize("cause", [Cause.QUEUE, Cause.HOLD, Cause.MEMORY, Cause.OVERLOAD, None])
def test_a_breach_of_any_other_cause_leaves_b_alone(cause: Cause | None) -> None:
    assert one(seen(breach(cause=cause))).limits == LIMITS


def test_time_to_first_token_is_not_looked_at() -> None:
    queueing = replace(breach(9.0), metric="ttft", target_s=1.0)
    assert one(seen(queueing)).limits == LIMITS
    assert one(seen(queueing, itl(0.09, state="room"))).limits.max_batch_size == 17


def test_room_and_a_limit_that_binds_add_one_or_five_percent() -> None:
    room = seen(itl(0.092, state="room", misses=1), size_bound=0.8)
    proposal = one(room)
    assert proposal.limits == replace(LIMITS, max_batch_size=17)
    assert proposal.reason == (
        "paid ITL 92 ms, over 150 ms in 1 of 40 requests, B reached in 80% of the steps"
    )
    assert one(room, 100).limits.max_batch_size == 105


def test_room_without_binding_changes_nothing() -> None:
    proposal = one(seen(itl(0.05, state="room"), size_bound=0.4))
    assert proposal == Proposal(LIMITS, "room, but B does not bind (reached in 40% of the steps)")


def test_the_tightest_target_decides_whether_there_is_room() -> None:
    loose = itl(0.1, state="room", target_s=0.25)
    tight = itl(0.1, state="unknown", target_s=0.12)
    assert one(seen(loose, tight)).limits == LIMITS
    assert one(seen(loose, replace(tight, samples=0))).limits.max_batch_size == 17


def test_the_worst_breach_decides_how_far_b_goes_down() -> None:
    assert one(seen(breach(0.16), breach(0.3)), 20).limits.max_batch_size == 14


def test_fractions_are_kept_so_that_small_steps_add_up() -> None:
    policy, in_force = build("aimd", {}), replace(LIMITS, max_batch_size=4)
    sizes = []
    for _ in range(4):
        in_force = policy.decide(seen(breach()), in_force).limits
        sizes.append(in_force.max_batch_size)
    # 3.6, 3.24, 2.92, 2.62
    assert sizes == [4, 3, 3, 3]


def test_what_the_guard_made_of_a_proposal_is_where_the_next_one_starts() -> None:
    policy = build("aimd", {})
    policy.decide(seen(breach()), LIMITS)
    assert policy.decide(seen(breach()), LIMITS).limits.max_batch_size == 14


def test_b_never_falls_below_one_and_comes_back_from_there() -> None:
    policy, in_force = build("aimd", {}), LIMITS
    for _ in range(100):
        in_force = policy.decide(seen(breach(9.0)), in_force).limits
    assert in_force.max_batch_size == 1
    for _ in range(15):
        in_force = policy.decide(seen(itl(0.05, state="room")), in_force).limits
    assert in_force.max_batch_size == 16


def test_t_rises_with_b_where_it_would_fall_below_it() -> None:
    tight = Limits(max_batch_size=16, max_batch_tokens=16, wait_timeout_s=0.0)
    proposed = build("aimd", {}).decide(seen(itl(0.05, state="room")), tight).limits
    assert (proposed.max_batch_size, proposed.max_batch_tokens) == (17, 17)


def test_no_latency_to_go_by_is_said() -> None:
    assert one(seen()).reason == "no inter-token latency to hold against a target"
