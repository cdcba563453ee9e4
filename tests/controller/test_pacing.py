from __future__ import annotations

import pytest

from controller.pacing import BURST_TOKENS, MARGIN
from executor.contract import StepSample
from tests.controller.stage import Stage, model

TARGET_S = MARGIN * 0.1
FULL_S = BURST_TOKENS * TARGET_S


def decoding(tier: str) -> Stage:
    """A stage on which a request of this tier decodes, steps taking 40 ms, a prompt token 1 ms."""
    stage = Stage.build(size=64, model=model(a=0.04, d=0.001))
    stage.arrive(tier, new=1000)
    stage.poll(0.0)
    stage.report(tokens=[("r0", 0, [1])], sample=StepSample(0.05, 1, 0, 0, 10, 100))
    return stage


def prefilled(stage: Stage, seconds: float, *names: str) -> None:
    """A step that did nothing but prefill these."""
    stage.report(
        tokens=[(name, 0, [1]) for name in names],
        sample=StepSample(seconds, 1, 0, 0, int(seconds * 1000), 0),
    )


def decoded(stage: Stage, steps: int) -> None:
    for _ in range(steps):
        stage.report(sample=StepSample(0.04, 2, 2, 0, 0, 0))


def test_prompts_of_lower_tiers_wait_while_those_above_are_behind_their_pace() -> None:
    stage = decoding("paid")
    # The first step took 50 ms of the burst: one decode step gives 55 ms back.
    decoded(stage, 1)
    stage.arrive("free", prompt=200)
    stage.poll(0.1)
    assert stage.ids() == ["r0", "r1"]
    prefilled(stage, 0.24, "r1")
    stage.arrive("free", prompt=200)
    plan = stage.poll(0.4)
    assert stage.ids() == ["r0", "r1"]
    # 0.24 s to make up for, 55 ms with each step of 40 ms: five steps.
    assert plan.wake_at == pytest.approx(0.4 + 5 * 0.04)
    decoded(stage, 4)
    stage.poll(0.56)
    assert stage.ids() == ["r0", "r1"]
    decoded(stage, 1)
    assert stage.batcher.has_news()
    stage.poll(0.6)
    assert stage.ids() == ["r0", "r1", "r2"]


def test_one_of_the_same_tier_goes_as_long_as_anything_is_left_of_the_burst() -> None:
    stage = decoding("paid")
    prefilled(stage, FULL_S - 0.1)
    stage.arrive("paid", prompt=100)
    stage.poll(0.1)
    assert "r1" in stage.ids()
    prefilled(stage, 0.14, "r1")
    stage.arrive("paid", prompt=100)
    stage.poll(0.2)
    assert "r2" not in stage.ids()
    decoded(stage, 2)
    stage.poll(0.3)
    assert "r2" in stage.ids()


def test_prompts_that_were_begun_are_booked() -> None:
    stage = decoding("paid")
    decoded(stage, 1)
    for _ in range(2):
        stage.arrive("free", prompt=100)
    stage.poll(0.1)
    assert stage.ids() == ["r0", "r1"]


def test_those_of_lower_tiers_have_to_bear_it() -> None:
    stage = decoding("free")
    prefilled(stage, 10.0)
    stage.arrive("paid", prompt=100)
    stage.poll(0.1)
    assert "r1" in stage.ids()


def test_where_steps_alone_are_too_slow_prompts_are_not_held_back_for_it() -> None:
    stage = Stage.build(size=64, model=model(a=0.2, d=0.001))
    stage.arrive("paid", new=1000)
    stage.poll(0.0)
    stage.report(tokens=[("r0", 0, [1])], sample=StepSample(0.2, 1, 0, 0, 10, 100))
    prefilled(stage, 10.0)
    stage.arrive("free", prompt=100)
    stage.poll(0.1)
    stage.arrive("paid", prompt=100)
    stage.poll(0.2)
    assert "r2" in stage.ids()


def test_a_tier_that_starves_is_not_held_back_by_the_pace_of_others() -> None:
    stage = decoding("paid")
    prefilled(stage, 10.0)
    stage.arrive("free", prompt=100)
    stage.poll(0.1)
    assert "r1" not in stage.ids()
    stage.poll(0.1 + 30.0)
    assert "r1" in stage.ids()


def test_a_stream_of_long_prompts_leaves_the_mean_of_those_who_decode_on_target() -> None:
    """On an executor that prefills first, which would by itself let nobody decode."""
    stage = Stage.build(size=64, tokens=8192, model=model(a=0.04, d=0.001))
    stage.arrive("paid", new=100_0)
    stage.poll(0.0)
    stage.report(tokens=[("r0", 0, [1])], sample=StepSample(0.05, 1, 0, 0, 10, 0))
    now, tokens, prompts = 0.0, 1, 0
    while tokens < 500:
        while stage.batcher.queues["free"].waiting < 3:
            stage.arrive("free", prompt=300, new=1)
        stage.poll(now)
        fresh = [name for name in stage.ids() if name != "r0"]
        if fresh:
            seconds = 0.04 + 0.3 * len(fresh)
            sample = StepSample(seconds, len(fresh), 0, 0, 300 * len(fresh), 0)
            prompts += len(fresh)
            stage.now = now = now + seconds
            stage.report(tokens=[(n, 0, [1]) for n in fresh], finished=fresh, sample=sample)
        else:
            stage.now = now = now + 0.04
            stage.report(tokens=[("r0", tokens, [1])], sample=StepSample(0.04, 1, 1, 0, 0, 0))
            tokens += 1
    assert now / 500 < 0.1
    # And the time that is left to prompts is used: 55 ms of each token's 95.
    assert prompts * 0.34 > 0.85 * 500 * (TARGET_S - 0.04)


def test_between_two_steps_nobody_is_woken_again_for_a_pace_that_only_steps_change() -> None:
    stage = decoding("paid")
    prefilled(stage, 0.5)
    stage.arrive("free", prompt=200)
    first = stage.poll(0.4).wake_at
    assert first is not None
    again = stage.poll(first).wake_at
    assert again is None or again > first + 1.0


def test_one_long_step_does_not_keep_seats_free_for_long_after_it() -> None:
    stage = decoding("paid")
    prefilled(stage, 30.0)
    stage.arrive("paid", prompt=10)
    steps = 0
    while "r1" not in stage.ids():
        decoded(stage, 1)
        steps += 1
        stage.poll(0.1 + steps * 0.001)
    # A whole bucket at 50 ms a step.
    assert steps == pytest.approx(FULL_S / (TARGET_S - 0.04), abs=1)


@pytest.mark.parametrize("step_s", [0.05, 0.08, 0.0899, 0.0901])
def test_however_near_to_the_target_steps_are_a_free_seat_is_taken_in_time(step_s: float) -> None:
    stage = Stage.build(size=64, model=model(a=step_s, d=0.001))
    stage.arrive("paid", new=1000)
    stage.poll(0.0)
    stage.report(tokens=[("r0", 0, [1])], sample=StepSample(step_s, 1, 0, 0, 10, 100))
    prefilled(stage, 30.0)
    stage.now = 0.0
    stage.arrive("free", prompt=10)
    now = 0.0
    while "r1" not in stage.ids():
        stage.report(sample=StepSample(step_s, 1, 1, 0, 0, 0))
        now += step_s
        stage.poll(now)
    # From empty to full, at a fifth of the target with each step at the least.
    assert now <= 2 * FULL_S / (0.2 * TARGET_S) * step_s + 0.5
