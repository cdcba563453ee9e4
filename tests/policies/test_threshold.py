from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from policies.contract import Limits, Policy, Proposal, Signals, Utilization
from policies.registry import build
from tests.policies.signals import LIMITS, itl, seen

IDLE = Utilization(0.4, "simulated")
BUSY = Utilization(0.97, "nvml")


def ask(policy: Policy, signals: Signals, limits: Limits, *, ticks: int) -> list[Proposal]:
    """The answers of some ticks, each applied."""
    given = []
    for _ in range(ticks):
        given.append(policy.decide(signals, limits))
        limits = given[-1].limits
    return given


def sizes(given: list[Proposal]) -> list[int]:
    return [proposal.limits.max_batch_size for proposal in given]


def test_a_long_queue_and_a_device_with_time_to_spare_raise_b_and_w_after_four_ticks() -> None:
    given = ask(build("threshold", {}), seen(queued=16, utilization=IDLE), LIMITS, ticks=4)
    assert sizes(given) == [16, 16, 16, 18]
    assert given[3].limits.wait_timeout_s == 0.006
    assert given[3].reason == ("1.00 wait per seat, utilisation 40%")
    assert given[0].reason == ("1.00 wait per seat, utilisation 40%, for 1 of 4 ticks")


def test_a_tick_with_a_short_queue_starts_the_count_again() -> None:
    policy = build("threshold", {})
    long, short = seen(queued=99, utilization=IDLE), seen(queued=0, utilization=IDLE)
    given = [policy.decide(s, LIMITS) for s in (long, long, long, short, long, long, long)]
    assert sizes(given) == [16] * 7


def test_a_busy_device_whose_throughput_is_flat_since_it_grew_is_not_given_more() -> None:
    policy = build("threshold", {})
    limits = ask(policy, seen(queued=99, utilization=BUSY), LIMITS, ticks=4)[-1].limits
    assert limits.max_batch_size == 18
    flat = ask(policy, seen(queued=99, utilization=BUSY, tokens_per_s=203.0), limits, ticks=20)
    assert sizes(flat) == [18] * 20
    assert flat[0].reason == (
        "5.50 wait per seat, but utilisation 97% and throughput is flat (+1.5% since it grew)"
    )


def test_a_busy_device_whose_throughput_rose_is_given_more() -> None:
    policy = build("threshold", {})
    limits = ask(policy, seen(queued=99, utilization=BUSY), LIMITS, ticks=4)[-1].limits
    rose = seen(queued=99, utilization=BUSY, tokens_per_s=220.0)
    assert sizes(ask(policy, rose, limits, ticks=4))[-1] == 20


def test_the_busy_fraction_stands_in_for_utilisation_and_the_reason_says_so() -> None:
    busy = Utilization(0.6, "busy")
    given = ask(build("threshold", {}), seen(queued=99, utilization=busy), LIMITS, ticks=4)
    assert given[3].reason == ("6.19 wait per seat, busy 60% of the time (in place of utilisation)")


def test_nothing_grows_when_nothing_says_how_busy_the_device_is() -> None:
    given = ask(build("threshold", {}), seen(queued=99), LIMITS, ticks=9)
    assert sizes(given) == [16] * 9
    assert given[0].reason.endswith("but nothing says how busy the device is")


def test_latency_near_its_target_is_no_room_for_more_however_long_the_queue() -> None:
    near = seen(itl(0.136, state="unknown", misses=3), queued=99, utilization=IDLE)
    given = ask(build("threshold", {}), near, LIMITS, ticks=9)
    assert sizes(given) == [16] * 9
    assert given[0].reason == (
        "6.19 wait per seat, but paid ITL 136 ms, over 150 ms in 3 of 40 requests: no room for more"
    )


def test_a_short_queue_and_latency_near_its_target_lower_b_and_w_after_eight_ticks() -> None:
    near = seen(itl(0.136, state="room", misses=3), queued=1, utilization=IDLE)
    given = ask(build("threshold", {}), near, LIMITS, ticks=8)
    assert sizes(given) == [16] * 7 + [14]
    assert given[7].limits.wait_timeout_s == 0.004


def test_a_short_queue_with_latency_to_spare_changes_nothing() -> None:
    easy = seen(itl(0.05, state="room"), queued=0, utilization=IDLE)
    assert sizes(ask(build("threshold", {}), easy, LIMITS, ticks=30)) == [16] * 30


def test_a_queue_between_the_thresholds_changes_nothing() -> None:
    between = seen(itl(0.149, state="room"), queued=8, utilization=IDLE)
    assert sizes(ask(build("threshold", {}), between, LIMITS, ticks=30)) == [16] * 30


def test_no_executor_ready_changes_nothing() -> None:
    given = ask(build("threshold", {}), seen(queued=99, ready=False), LIMITS, ticks=9)
    assert given[8] == Proposal(LIMITS, "no executor is ready")


@pytest.mark.parametrize(
    ("target_s", "path"),
    [
        (0.1, [12, 13]),
        (0.105, [12, 13, 14]),
        (0.11, [12, 13, 14, 15, 16, 14, 15]),
        (0.12, [12, 13, 14, 15, 16]),
    ],
)
def test_constant_load_at_a_threshold_settles_and_does_not_go_back_and_forth(
    target_s: float, path: list[int]
) -> None:
    """Steps of 60 ms and 2.5 ms a sequence; the queue is long below 16 and empty from there on."""
    policy, limits = build("threshold", {}), replace(LIMITS, max_batch_size=12)
    walked = [12]
    for _ in range(2000):
        size = limits.max_batch_size
        latency = itl(0.06 + 0.0025 * size, state="room", target_s=target_s)
        load = seen(latency, queued=3 * size if size < 16 else 0, utilization=IDLE)
        limits = policy.decide(load, limits).limits
        walked.append(limits.max_batch_size)
    assert [walked[0], *(b for a, b in pairwise(walked) if a != b)] == path


def test_a_size_that_was_left_is_tried_again_when_latency_has_become_short() -> None:
    policy = build("threshold", {})
    near = seen(itl(0.14, state="room"), utilization=IDLE)
    limits = ask(policy, near, LIMITS, ticks=8)[-1].limits
    assert limits.max_batch_size == 14
    middling = seen(itl(0.128, state="room"), queued=99, utilization=IDLE)
    # 14 -> 15 is below the size that was left, 16 is not: 128 ms * 16/15 is too near 150 ms.
    assert sizes(ask(policy, middling, limits, ticks=12))[-1] == 15
    short = seen(itl(0.1, state="room"), queued=99, utilization=IDLE)
    assert sizes(ask(policy, short, replace(limits, max_batch_size=15), ticks=4))[-1] == 16
