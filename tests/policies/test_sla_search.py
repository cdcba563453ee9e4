from __future__ import annotations

from dataclasses import replace

from policies.contract import Limits, Signals
from policies.registry import build
from tests.policies.signals import CONTINUOUS, LIMITS, WHOLE, itl, served, tier


def at(
    value_s: float,
    *,
    batch: float = 16.0,
    size_bound: float = 0.8,
    samples: int = 40,
    kv: float | None = None,
    whole: bool = False,
) -> Signals:
    """Latency for a target of 100 ms."""
    verdict = itl(value_s, state="unknown", target_s=0.1, samples=samples)
    shape = WHOLE if whole else CONTINUOUS
    return served(
        tier("paid", verdict), mean_batch=batch, size_bound=size_bound, kv=kv, shape=shape
    )


def sized(size: int) -> Limits:
    return replace(LIMITS, max_batch_size=size)


def one(signals: Signals, size: int = 16) -> int:
    return build("sla_search", {}).decide(signals, sized(size)).limits.max_batch_size


def test_below_the_target_the_bracket_moves_up() -> None:
    policy = build("sla_search", {})
    proposal = policy.decide(at(0.06), LIMITS)
    # 8..24 around 16, then the bottom to min(16, 24 - 16) and the top up by 4.
    assert proposal.limits.max_batch_size == 18
    assert proposal.reason == "paid ITL 60 ms for 100 ms, searching 8..28"
    # The bottom to min(18, 28 - 16), the top to 32.
    assert policy.decide(at(0.06, batch=18.0), sized(18)).limits.max_batch_size == 22


def test_above_the_target_the_bracket_moves_down_whether_b_binds_or_not() -> None:
    # The top to max(15, 8 + 16), the bottom down by 4.
    assert one(at(0.12, batch=15.0, size_bound=0.0)) == 14


def test_within_the_tolerance_b_stays() -> None:
    assert [one(at(value_s)) for value_s in (0.0951, 0.1, 0.1049)] == [16, 16, 16]
    assert [one(at(value_s)) for value_s in (0.094, 0.106)] == [18, 14]


def test_without_binding_nothing_grows_and_the_bracket_stays() -> None:
    policy = build("sla_search", {})
    for _ in range(10):
        proposal = policy.decide(at(0.06, size_bound=0.4), LIMITS)
        assert proposal.limits == LIMITS
    assert policy.decide(at(0.06), LIMITS).limits.max_batch_size == 18


def test_too_few_latencies_under_this_b_are_waited_for() -> None:
    proposal = build("sla_search", {}).decide(at(0.06, samples=9), LIMITS)
    assert (proposal.limits, proposal.reason) == (LIMITS, "waits for latencies under this B")


def test_memory_bounds_what_the_search_wants() -> None:
    # 0.95 * 16 / 0.9 = 16.9
    proposal = build("sla_search", {}).decide(at(0.06, kv=0.9), LIMITS)
    assert proposal.limits.max_batch_size == 16
    assert proposal.reason == "memory holds 17 sequences"
    # 0.95 * 16 / 0.98 = 15.5, whether B binds or not.
    assert one(at(0.06, kv=0.98, size_bound=0.0)) == 15


def test_the_memory_bound_follows_only_what_is_more_than_noise() -> None:
    policy = build("sla_search", {})
    sizes = [
        policy.decide(at(0.1, kv=kv), sized(40)).limits.max_batch_size
        for kv in (0.5, 0.52, 0.49, 0.39)
    ]
    # 30.4; 29.2 and 31.0 are within 5 %; 38.97.
    assert sizes == [30, 30, 30, 38]


def test_without_a_target_memory_alone_decides() -> None:
    alone = served(tier("offline"), kv=0.39)
    assert one(alone) == 38
    assert one(replace(alone, executors=(replace(alone.executors[0], size_bound=0.1),))) == 16
    assert one(served(tier("offline"))) == 256


def test_batches_that_run_to_completion_are_searched_by_their_pace() -> None:
    assert (one(at(0.06, whole=True)), one(at(0.12, whole=True))) == (18, 14)


def test_it_settles_at_the_target_and_rests() -> None:
    """Steps of 20 ms and 1 ms a sequence: 100 ms at 80, 95 ms at 75."""
    policy, limits, walked = build("sla_search", {}), LIMITS, []
    for _ in range(200):
        size = limits.max_batch_size
        limits = policy.decide(at(0.02 + 0.001 * size, batch=float(size)), limits).limits
        walked.append(limits.max_batch_size)
    assert set(walked[40:]) == {walked[-1]}
    assert 75 <= walked[-1] <= 85
    # Requests became slower: 2 ms a sequence, 40 keep the target.
    for _ in range(200):
        size = limits.max_batch_size
        limits = policy.decide(at(0.02 + 0.002 * size, batch=float(size)), limits).limits
    assert 37 <= limits.max_batch_size <= 43
