from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from controller.config_control import GuardConfig
from controller.gates import Code
from controller.guard import Envelope, Guard
from policies.contract import (
    ExecutorSignals,
    Limits,
    Quantiles,
    Signals,
    StepEstimate,
    TierSignals,
    Utilization,
    Verdict,
)

NOW = 1000.0
CURRENT = Limits(16, 1024, 0.010)
STEP = Quantiles(100, 0.05, 0.05, 0.06, 0.07)
BUSY = ExecutorSignals(
    name="e",
    ready=True,
    running=16,
    free_seats=0,
    steps=60,
    step_time=STEP,
    mean_context=100.0,
    size_bound=0.9,
    tokens_bound=0.9,
    tokens_per_s=300.0,
    utilization=Utilization(0.8, "nvml"),
    kv=0.5,
)


def guard(**config: Any) -> Guard:
    envelope = Envelope(Limits(1, 64, 0.0), Limits(64, 4096, 0.050))
    return Guard(GuardConfig(**config), envelope, min_samples=20)


def signals(*, age_s: float | None = 0.05, **executor: Any) -> Signals:
    return Signals(interval_s=0.25, age_s=age_s, executors=(replace(BUSY, **executor),))


def grow_to(size: int, *, by: Guard | None = None, **seen: Any) -> tuple[int, list[str]]:
    proposed = replace(CURRENT, max_batch_size=size)
    judged = (by or guard()).judge(proposed, CURRENT, signals(**seen), NOW)
    return judged.limits.max_batch_size, [note.code for note in judged.notes]


def test_growth_that_binds_on_fresh_data_passes() -> None:
    assert grow_to(18) == (18, [])


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        ({"age_s": 0.80}, Code.STALE),
        ({"age_s": None}, Code.STALE),
        ({"steps": 19}, Code.THIN),
        ({"size_bound": 0.49}, Code.NOT_BINDING),
        ({"running": 17}, Code.DRAINING),
        ({"kv": 0.91}, Code.MEMORY),
        ({"stalled": 1}, Code.MEMORY),
    ],
)
def test_each_gate_holds_growth_back_and_says_its_name(seen: dict[str, Any], code: str) -> None:
    assert grow_to(18, **seen) == (16, [code])


@pytest.mark.parametrize(
    "seen",
    [{"age_s": None}, {"steps": 0}, {"size_bound": 0.0}, {"running": 60}, {"kv": 0.99}],
)
def test_no_gate_holds_back_a_shrink(seen: dict[str, Any]) -> None:
    assert grow_to(4, **seen) == (4, [])


def test_steps_slower_than_ticks_set_the_pace_of_what_is_stale() -> None:
    slow = Quantiles(100, 1.0, 1.0, 1.0, 1.0)
    assert grow_to(18, age_s=2.9, step_time=slow) == (18, [])
    assert grow_to(18, age_s=3.1, step_time=slow) == (16, [Code.STALE])


def test_growth_is_limited_to_a_quarter_a_tick() -> None:
    assert grow_to(10**9) == (20, [Code.ENVELOPE, Code.SLEW])


@pytest.mark.parametrize(
    ("row_ms", "identifiable", "size"),
    [
        # 20 ms and 2 ms a row: 84 ms at 32, within 100.
        (2.0, True, 32),
        (2.0, False, 20),
        # 116 ms at 32.
        (3.0, True, 20),
    ],
)
def test_a_size_doubles_where_a_model_that_is_sure_predicts_room(
    row_ms: float, identifiable: bool, size: int
) -> None:
    row_s = row_ms / 1000
    model = StepEstimate(0.02, 0.0, row_s, row_s, 1000, 0.0, 0.0, 0.0, 500, identifiable)
    itl = Verdict("itl", 0.1, 0.99, samples=0, misses=0, state="unknown")
    paid = TierSignals("paid", 1, 9, 900, 0.1, running=16, verdicts=(itl,))
    seen = replace(signals(), model=model, tiers=(paid,))
    judged = guard().judge(replace(CURRENT, max_batch_size=64), CURRENT, seen, NOW)
    assert judged.limits.max_batch_size == size


@pytest.mark.parametrize("ms", range(1, 20))
def test_a_millisecond_is_a_move_of_the_wait_whatever_floats_make_of_it(ms: int) -> None:
    current = Limits(16, 1024, ms / 1000)
    wanted = replace(current, wait_timeout_s=(ms + 1) / 1000)
    judged = guard().judge(wanted, current, signals(), NOW)
    assert Code.DEAD_BAND not in {note.code for note in judged.notes}
    assert judged.limits.wait_timeout_s > current.wait_timeout_s


def test_growth_by_one_is_always_within_the_slew() -> None:
    current = Limits(1, 1024, 0.0)
    judged = guard().judge(replace(current, max_batch_size=2), current, signals(running=1), NOW)
    assert judged.limits.max_batch_size == 2


def test_after_a_move_growth_waits_for_the_longer_of_a_second_and_two_steps() -> None:
    held = guard()
    held.applied(CURRENT, replace(CURRENT, max_batch_size=15), signals(), NOW - 0.9)
    assert grow_to(18, by=held) == (16, [Code.COOLDOWN])
    held.applied(CURRENT, replace(CURRENT, max_batch_size=15), signals(), NOW - 1.0)
    assert grow_to(18, by=held) == (18, [])
    slow = Quantiles(100, 0.6, 0.6, 0.6, 0.6)
    assert grow_to(18, by=held, step_time=slow) == (16, [Code.COOLDOWN])


def test_a_busy_device_that_gained_nothing_by_the_last_growth_vetoes_the_next() -> None:
    held = guard()
    held.applied(replace(CURRENT, max_batch_size=12), CURRENT, signals(), NOW - 10)
    busy = Utilization(0.97, "nvml")
    assert grow_to(18, by=held, utilization=busy, tokens_per_s=301.0) == (16, [Code.GPU_VETO])
    assert grow_to(18, by=held, utilization=busy, tokens_per_s=330.0) == (18, [])
    idle = Utilization(0.40, "nvml")
    assert grow_to(18, by=held, utilization=idle, tokens_per_s=301.0) == (18, [])


def test_after_a_shrink_a_busy_device_does_not_veto_the_way_back() -> None:
    held = guard()
    held.applied(replace(CURRENT, max_batch_size=12), CURRENT, signals(), NOW - 20)
    held.applied(replace(CURRENT, max_batch_size=20), CURRENT, signals(), NOW - 10)
    busy = Utilization(0.97, "nvml")
    assert grow_to(18, by=held, utilization=busy, tokens_per_s=200.0) == (18, [])


def test_the_stand_in_for_utilisation_vetoes_nothing() -> None:
    held = guard()
    held.applied(replace(CURRENT, max_batch_size=12), CURRENT, signals(), NOW - 10)
    assert grow_to(18, by=held, utilization=Utilization(1.0, "busy")) == (18, [])


def test_a_size_above_the_capacity_is_clamped_and_says_so() -> None:
    held = guard()
    held.envelope = replace(held.envelope, capacity_seqs=8)
    judged = held.judge(CURRENT, CURRENT, signals(), NOW)
    assert judged.limits.max_batch_size == 8
    assert [(note.code, note.detail) for note in judged.notes] == [(Code.CAPACITY, "16 is above 8")]


def test_the_envelope_holds_downwards_too() -> None:
    proposed = Limits(0, 1, 0.0)
    judged = guard().judge(proposed, CURRENT, signals(), NOW)
    assert judged.limits == Limits(1, 64, 0.0)


def test_tokens_never_fall_below_the_size() -> None:
    proposed = Limits(16, 8, 0.010)
    held = guard()
    held.envelope = replace(held.envelope, low=Limits(1, 1, 0.0))
    assert held.judge(proposed, CURRENT, signals(), NOW).limits.max_batch_tokens == 16


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "many", True])
def test_what_is_no_number_changes_nothing(value: Any) -> None:
    judged = guard().judge(replace(CURRENT, wait_timeout_s=value), CURRENT, signals(), NOW)
    assert judged.limits == CURRENT
    assert [note.code for note in judged.notes] == [Code.INVALID]


@pytest.mark.parametrize(
    ("proposed", "limits"),
    [
        (replace(CURRENT, max_batch_tokens=1000), CURRENT),
        (replace(CURRENT, max_batch_tokens=960), replace(CURRENT, max_batch_tokens=960)),
        (replace(CURRENT, wait_timeout_s=0.0095), CURRENT),
        (replace(CURRENT, wait_timeout_s=0.009), replace(CURRENT, wait_timeout_s=0.009)),
    ],
)
def test_a_move_below_the_least_is_no_move(proposed: Limits, limits: Limits) -> None:
    assert guard().judge(proposed, CURRENT, signals(), NOW).limits == limits


def test_swinging_to_and_fro_halves_the_gain() -> None:
    held = guard()
    up, down = CURRENT, replace(CURRENT, max_batch_size=12)
    for before, after in ((down, up), (up, down), (down, up), (up, down), (down, up)):
        held.applied(before, after, signals(tokens_per_s=0.0), NOW - 10)
    assert held.reversals("max_batch_size") == 4
    assert grow_to(20, by=held) == (18, [Code.OSCILLATION])


def test_after_running_out_of_memory_tokens_stay_below_what_failed_for_ten_minutes() -> None:
    held = guard()
    held.ceiling.ran_out(1000, None, NOW)
    judged = held.judge(CURRENT, CURRENT, signals(), NOW)
    # 800 tokens, at 100 of context a sequence: 8 sequences.
    assert judged.limits == Limits(8, 800, 0.010)
    assert {note.code for note in judged.notes} == {Code.OUT_OF_MEMORY}
    assert held.judge(CURRENT, CURRENT, signals(), NOW + 599.0).limits == judged.limits
    # Then it rises by a twentieth a minute: 840, and 1302 tokens after another nine.
    assert held.judge(CURRENT, CURRENT, signals(), NOW + 600.0).limits == Limits(8, 840, 0.010)
    later = held.judge(CURRENT, CURRENT, signals(), NOW + 1140.0)
    assert later.limits == Limits(13, 1024, 0.010)


def test_limits_set_by_hand_pass_no_gate_but_stay_in_the_envelope() -> None:
    judged = guard().bounded(Limits(500, 2048, 0.020), signals(age_s=None), NOW)
    assert judged.limits == Limits(64, 2048, 0.020)
    assert [note.code for note in judged.notes] == [Code.ENVELOPE]
