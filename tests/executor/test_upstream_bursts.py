"""Steps of an engine, told from when its tokens came."""

from __future__ import annotations

from executor.contract import StepSample
from executor.upstream_bursts import Arrival, Bursts, Step


def arrival(key: str, *, tokens: int = 1, context: int = 100, prompt: int = 0) -> Arrival:
    return Arrival(key, tokens, context, prompt)


def come(bursts: Bursts, now: float, *keys: str, tokens: int = 1) -> Step | None:
    return bursts.come([arrival(key, tokens=tokens) for key in keys], now, epoch=3)


def rounded(step: Step | None) -> tuple[int, float, int] | None:
    """Steps, seconds, sequences."""
    return step and (step.steps, round(step.sample.duration_s, 6), step.sample.sequences)


def test_a_step_is_over_when_somebody_has_a_token_for_the_second_time() -> None:
    bursts = Bursts()
    bursts.begin(1.0)
    assert come(bursts, 1.02, "a") is None
    assert come(bursts, 1.021, "b") is None
    assert rounded(come(bursts, 1.03, "a", "b")) == (1, 0.02, 2)
    assert rounded(bursts.close()) == (1, 0.01, 2)


def test_tokens_that_come_after_half_a_step_are_another_step() -> None:
    bursts = Bursts()
    bursts.begin(0.0)
    come(bursts, 0.02, "a")
    assert rounded(come(bursts, 0.04, "a")) == (1, 0.02, 1)
    # Half of 20 ms, since the last one came.
    assert come(bursts, 0.0499, "b") is None
    assert come(bursts, 0.0598, "c") is None
    assert rounded(come(bursts, 0.0699, "d")) == (1, 0.02, 3)
    assert rounded(bursts.close()) == (1, 0.0299, 1)


def test_a_step_lasts_since_the_one_before_it_and_after_a_rest_since_it_was_given_something() -> (
    None
):
    bursts = Bursts()
    bursts.begin(10.0)
    come(bursts, 10.5, "a")
    bursts.begin(10.6)  # Somebody else, while it works.
    assert rounded(bursts.close()) == (1, 0.5, 1)
    come(bursts, 11.0, "a")
    assert rounded(bursts.close()) == (1, 0.5, 1)
    bursts.rest()
    bursts.begin(20.0)
    come(bursts, 20.25, "b")
    assert rounded(bursts.close()) == (1, 0.25, 1)


def test_prompts_are_in_the_step_that_brings_their_first_token() -> None:
    bursts = Bursts()
    bursts.begin(0.0)
    bursts.come([arrival("a", context=7), arrival("b", context=40, prompt=40)], 0.03, epoch=4)
    assert bursts.close() == Step(1, 4, StepSample(0.03, 2, 1, 47, 40, 1600))


def test_tokens_that_come_several_at_once_were_several_steps() -> None:
    bursts = Bursts()
    bursts.begin(0.0)
    bursts.come([arrival("a", tokens=3), arrival("b", tokens=3)], 0.06, epoch=0)
    assert rounded(bursts.close()) == (3, 0.06, 2)
    # Who got fewer was not in all of them.
    bursts.come([arrival("a", tokens=4), arrival("b", tokens=2)], 0.10, epoch=0)
    assert rounded(bursts.close()) == (4, 0.04, 2)


def test_a_step_that_took_no_time_says_nothing() -> None:
    bursts = Bursts()
    assert come(bursts, 5.0, "a") is None
    assert bursts.close() is None
    assert bursts.close() is None


def test_it_says_from_when_a_step_is_over_unless_more_comes() -> None:
    bursts = Bursts()
    assert bursts.over_at is None
    bursts.begin(0.0)
    come(bursts, 1.0, "a")
    assert bursts.over_at == 1.005
    bursts.close()
    assert bursts.over_at is None
    come(bursts, 2.0, "a")
    # A second before: half of it would be too long to wait for anybody.
    assert bursts.over_at == 2.05
