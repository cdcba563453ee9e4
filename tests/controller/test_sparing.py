from __future__ import annotations

import pytest

from controller.sparing import would_doom
from executor.contract import StepSample
from tests.controller.stage import Stage, capacity, model


def almost_done(tier: str) -> Stage:
    """A stage where a completion of ten tokens has five to go, and 0.3 s to spare."""
    stage = Stage.build(size=8, model=model(a=0.04, d=0.001), ready=capacity(splits_prefill=False))
    stage.arrive(tier, prompt=10, new=10)
    stage.poll(0.0)
    stage.report(tokens=[("r0", 0, [1])], sample=StepSample(0.05, 1, 0, 0, 10, 100))
    itl_s = 0.1 if tier == "paid" else 0.15
    # Nine gaps may take 9 * itl; five of them are still to come, of 40 ms each.
    stage.now = 9 * itl_s - 5 * 0.04 - 0.3
    stage.report(tokens=[("r0", 1, [1] * 4)], sample=StepSample(0.04, 1, 1, 0, 0, 0))
    return stage


def test_a_prompt_that_has_time_left_lets_one_end_first_that_could_not_bear_it() -> None:
    stage = almost_done("paid")
    stage.arrive("paid", prompt=400)
    plan = stage.poll()
    assert stage.ids() == ["r0"]
    # Its first token takes 0.44 s: due after 0.56 s, and a quarter of the target is kept.
    assert plan.wake_at == pytest.approx(stage.now + 0.56 - 0.25)
    stage.report(tokens=[("r0", 5, [1] * 5)], finished=["r0"])
    stage.poll()
    assert stage.ids() == ["r1"]


def test_it_goes_where_it_can_be_borne() -> None:
    stage = almost_done("paid")
    stage.arrive("paid", prompt=250)
    stage.poll()
    assert stage.ids() == ["r0", "r1"]


def test_it_waits_no_longer_than_it_can() -> None:
    stage = almost_done("paid")
    stage.arrive("paid", prompt=400)
    now = stage.now
    stage.poll(now + 0.30)
    assert stage.ids() == ["r0"]
    stage.poll(now + 0.32)
    assert stage.ids() == ["r0", "r1"]


def test_those_of_lower_tiers_have_to_bear_it() -> None:
    stage = almost_done("free")
    stage.arrive("paid", prompt=400)
    stage.poll()
    assert stage.ids() == ["r0", "r1"]


def test_who_would_miss_anyway_is_not_spared_for() -> None:
    stage = almost_done("paid")
    stage.now += 0.4
    stage.arrive("paid", prompt=400)
    stage.poll()
    assert stage.ids() == ["r0", "r1"]


def test_pauses_of_one_batch_add_up() -> None:
    slacks_s = [0.3, 1.0]
    assert not would_doom(slacks_s, 0.0, 0.2)
    assert would_doom(slacks_s, 0.2, 0.2)
    # The first is lost already; the second bears it.
    assert not would_doom(slacks_s, 0.4, 0.2)
    assert would_doom(slacks_s, 0.4, 0.7)
