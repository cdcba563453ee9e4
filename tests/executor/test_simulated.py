"""The simulated engine takes the time that its model says, no more and no less."""

from __future__ import annotations

from typing import Any

import pytest

from executor.contract import (
    Fault,
    Feature,
    Key,
    Loading,
    Ready,
    Sampling,
    SimulatedSettings,
    StepSample,
    Submit,
    Work,
)
from executor.simulated import SimulatedEngine


class Time:
    """A clock that moves when somebody sleeps, or when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def engine(time: Time, **settings: Any) -> SimulatedEngine:
    return SimulatedEngine(SimulatedSettings(**settings), clock=time.clock, sleep=time.sleep)


def work(output: int) -> Work:
    return Work(1, 64, [Submit("a", 1, [1, 2], 2, output, Sampling())])


def load(engine: SimulatedEngine) -> Ready:
    return engine.load(lambda stage, fraction: None)


def test_what_the_loop_around_the_steps_costs_does_not_add_up() -> None:
    time = Time()
    tested = engine(time, a_s=1.0)
    tested.apply(work(4))
    for _ in range(4):
        tested.step()
        time.now += 0.25
    assert time.slept == [1.0, 0.75, 0.75, 0.75]
    assert time.now == 100.0 + 4.0 + 0.25


def test_who_is_late_by_more_than_a_step_does_not_hurry_to_catch_up() -> None:
    time = Time()
    tested = engine(time, a_s=1.0)
    tested.apply(work(3))
    tested.step()
    time.now += 30.0
    tested.step()
    tested.step()
    assert time.slept == [1.0, 1.0, 1.0]


def test_after_idling_the_schedule_begins_anew() -> None:
    time = Time()
    tested = engine(time, a_s=1.0)
    tested.apply(work(1))
    tested.step()
    assert not tested.has_work()
    time.now += 0.5
    tested.apply(work(1))
    tested.step()
    assert time.slept == [1.0, 1.0]


def test_a_step_that_costs_nothing_never_sleeps() -> None:
    time = Time()
    tested = engine(time)
    load(tested)
    tested.apply(work(3))
    while tested.has_work():
        tested.step()
    assert time.slept == []


def test_a_stall_is_slept_through() -> None:
    time = Time()
    tested = engine(time)
    tested.apply(work(3))
    tested.inject(Fault("stall", 5.0))
    tested.step()
    tested.step()
    assert time.slept == [5.0]


def test_work_brings_limits_submits_and_releases_into_the_next_step() -> None:
    tested = engine(Time())
    tested.apply(work(3))
    tested.apply(Work(9, 1, [Submit("b", 1, [1, 2], 2, 3, Sampling())], [Key("a", 1)]))
    report = tested.step()
    assert report.sample is not None
    assert (report.epoch, report.released, report.sample.prefill_tokens) == (9, [Key("a", 1)], 1)


def test_ready_tells_the_capacity_and_the_exact_cost() -> None:
    time = Time()
    tested = engine(
        time,
        model="sim",
        load_s=2.0,
        max_seqs=5,
        max_step_tokens=300,
        kv_tokens=400,
        splits_prefill=False,
        a_s=1.0,
        b_s=0.5,
        c_s=0.25,
        d_s=2.0,
    )
    told: list[Loading] = []
    ready = tested.load(lambda stage, fraction: told.append(Loading(stage, fraction)))
    assert told == [Loading("simulating a model", None)]
    assert time.slept == [2.0]
    capacity = ready.capacity
    assert (capacity.model, capacity.max_seqs, capacity.max_step_tokens) == ("sim", 5, 300)
    assert (capacity.kv_tokens, capacity.splits_prefill, capacity.can_resume) == (400, False, True)
    assert capacity.eos_token_ids == (256,)
    assert ready.text.kind == "bytes"
    assert ready.warmup == [
        StepSample(1.0 + 32.0 + 0.25, 1, 1, 64, 0, 0),
        StepSample(1.0 + 64.0 + 0.5, 2, 2, 128, 0, 0),
        StepSample(1.0 + 128.0 + 1.0, 4, 4, 256, 0, 0),
        StepSample(1.0 + 0.25 + 128.0, 1, 0, 0, 64, 4096),
        StepSample(1.0 + 0.25 + 512.0, 1, 0, 0, 256, 65536),
    ]


def test_it_offers_what_it_can_do_and_nothing_else() -> None:
    offered = load(engine(Time())).capacity.features
    assert set(Feature) - offered == {
        Feature.MIN_P,
        Feature.PENALTIES,
        Feature.LOGPROBS,
        Feature.LOGIT_BIAS,
        Feature.ECHO,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seqs": 0}, "max_seqs is 0, at least 1 is needed"),
        ({"d_s": -0.5}, "d_s is -0.5, which is less than 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        load(engine(Time(), **settings))
