from __future__ import annotations

import math

import pytest

from policies.contract import ExecutorSignals, Passed, Signals, TierSignals
from policies.traffic import Smooth, Traffic


def tier(name: str, *, rate: float | None = None, running: int = 0, **means: float) -> TierSignals:
    return TierSignals(name, 1, 0, 0, None, running, rate, passed=Passed(**means))


def tick(*tiers: TierSignals, rows: float | None = None, context: float = 0.0) -> Signals:
    executor = ExecutorSignals("e", True, 0, 0, steps=10, mean_batch=rows, mean_context=context)
    return Signals(1.0, 0.1, tiers, (executor,))


def traffic() -> Traffic:
    return Traffic(steps_s=5.0, requests_s=60.0, absent_s=10.0)


def test_a_mean_begins_with_what_is_seen_first_and_forgets_by_time() -> None:
    mean = Smooth(10.0)
    mean.follow(None, 1.0)
    assert mean.value is None
    mean.follow(4.0, 1.0)
    assert mean.value == 4.0
    mean.follow(0.0, 10.0)
    assert mean.value == pytest.approx(4 / math.e)


def test_a_tier_is_there_for_a_while_after_anybody_of_it_was_seen() -> None:
    seen = traffic()
    seen.see(tick(tier("paid", running=1), tier("free")))
    assert [one.name for one in seen.tiers] == ["paid"]
    for _ in range(10):
        seen.see(tick(tier("paid"), tier("free")))
    assert [one.name for one in seen.tiers] == ["paid"]
    seen.see(tick(tier("paid"), tier("free")))
    assert seen.tiers == []


def test_lengths_are_weighted_by_who_comes_and_who_says_nothing_counts_for_nothing() -> None:
    seen = traffic()
    seen.see(
        tick(
            tier("paid", rate=3.0, prompt_tokens=100.0, new_tokens=10.0),
            tier("free", rate=1.0, prompt_tokens=500.0),
        )
    )
    assert seen.prompt.value == 200.0
    assert seen.new.value == 10.0
    assert (seen.rate("paid"), seen.rate("free"), seen.rate("nobody")) == (3.0, 1.0, 0.0)


def test_steps_that_held_nothing_say_nothing_of_rows_and_contexts() -> None:
    seen = traffic()
    seen.see(tick(rows=8.0, context=300.0))
    seen.see(tick(rows=None))
    assert (seen.rows.value, seen.context.value) == (8.0, 300.0)
