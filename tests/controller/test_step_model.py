from __future__ import annotations

import random

import pytest

from controller.step_model import StepModel
from executor.contract import StepSample
from policies.contract import StepEstimate

# DistServe's A100 profile of OPT-13B, in seconds: two slopes in sequences with a knee at 95.
A100 = StepEstimate(
    a=0.0234,
    b=5.9e-7,
    c=6.1e-5,
    c_above=1.2e-4,
    knee=95,
    d=1.4e-4,
    e=8.1e-9,
    sigma_s=0.0,
    samples=0,
    identifiable=True,
)


def draw(rng: random.Random, truth: StepEstimate, *, most: int = 200) -> StepSample:
    n = rng.randint(1, most)
    context = n * rng.randint(50, 900)
    prompt = rng.choice([0, 0, 0, rng.randint(10, 2000)])
    seconds = truth.predict(n, context, prefill=prompt, squares=prompt**2)
    return StepSample(seconds, n, n, context, prompt, prompt**2)


def taught(samples: list[StepSample]) -> StepModel:
    model = StepModel()
    for sample in samples:
        model.learn(sample)
    return model


def noisy(sample: StepSample, rng: random.Random, sigma: float) -> StepSample:
    seconds = sample.duration_s * max(0.1, rng.gauss(1.0, sigma))
    return StepSample(
        seconds,
        sample.sequences,
        sample.decodes,
        sample.context_tokens,
        sample.prefill_tokens,
        sample.prefill_squares,
    )


def test_exact_steps_give_the_coefficients_back() -> None:
    rng = random.Random(1)
    estimate = taught([draw(rng, A100) for _ in range(500)]).estimate()
    assert estimate is not None
    assert estimate.identifiable
    for name in ("a", "b", "c", "c_above", "d", "e"):
        assert getattr(estimate, name) == pytest.approx(getattr(A100, name), rel=0.02), name


def test_noise_of_ten_percent_leaves_predictions_within_two_percent() -> None:
    rng = random.Random(2)
    model = taught([noisy(draw(rng, A100), rng, 0.1) for _ in range(4000)])
    estimate = model.estimate()
    assert estimate is not None
    for n in (1, 16, 64, 128):
        assert estimate.predict(n, 300 * n) == pytest.approx(A100.predict(n, 300 * n), rel=0.02)


def test_hiccups_of_the_machine_do_not_move_it() -> None:
    rng = random.Random(3)
    samples = [draw(rng, A100) for _ in range(2000)]
    hit = [
        StepSample(1.0, s.sequences, s.decodes, s.context_tokens, s.prefill_tokens, 0)
        if i > 200 and i % 100 == 0
        else noisy(s, rng, 0.02)
        for i, s in enumerate(samples)
    ]
    estimate = taught(hit).estimate()
    assert estimate is not None
    assert estimate.predict(32, 9600) == pytest.approx(A100.predict(32, 9600), rel=0.03)


def test_one_size_alone_does_not_identify_the_cost_of_a_sequence() -> None:
    model = taught([StepSample(0.03, 16, 16, 4000 + i, 0, 0) for i in range(100)])
    estimate = model.estimate()
    assert estimate is not None
    assert not estimate.identifiable
    assert estimate.predict(16, 4050) == pytest.approx(0.03, rel=1e-3)


def test_a_slower_device_is_learnt_anew() -> None:
    rng = random.Random(4)
    model = taught([draw(rng, A100) for _ in range(3000)])
    for _ in range(1500):
        sample = draw(rng, A100)
        model.learn(
            StepSample(
                2 * sample.duration_s,
                sample.sequences,
                sample.decodes,
                sample.context_tokens,
                sample.prefill_tokens,
                sample.prefill_squares,
            )
        )
    estimate = model.estimate()
    assert estimate is not None
    assert estimate.predict(32, 9600) == pytest.approx(2 * A100.predict(32, 9600), rel=0.05)


def test_steps_taken_as_one_count_as_many() -> None:
    grouped, single = StepModel(), StepModel()
    rng = random.Random(5)
    for _ in range(100):
        one = draw(rng, A100)
        for _ in range(3):
            single.learn(one)
        grouped.learn(
            StepSample(
                3 * one.duration_s,
                one.sequences,
                one.decodes,
                one.context_tokens,
                one.prefill_tokens,
                one.prefill_squares,
            ),
            steps=3,
        )
    left, right = grouped.estimate(), single.estimate()
    assert left is not None
    assert right is not None
    assert left.samples == right.samples == 300
    assert left.predict(32, 9600) == pytest.approx(right.predict(32, 9600), rel=1e-3)


def test_no_coefficient_is_ever_negative() -> None:
    # Larger batches that happened to be faster must not promise that more is free.
    model = taught([StepSample(0.05 - 0.0005 * n, n, n, 100 * n, 0, 0) for n in range(1, 60)])
    estimate = model.estimate()
    assert estimate is not None
    assert min(estimate.a, estimate.b, estimate.c, estimate.c_above, estimate.d, estimate.e) >= 0


def test_nothing_learnt_is_no_estimate() -> None:
    assert StepModel().estimate() is None
