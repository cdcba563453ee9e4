"""Prompts share a step so that short ones do not wait for long ones, nor long ones for ever."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.continuous import ContinuousEngine
from executor.contract import Report, Sampling, SimulatedSettings, StepSample, Submit
from executor.prefill_order import shares, shares_by_priority
from executor.simulation import Simulation
from tests.executor.engine_driver import Driver, load, prompt

PROMPTS = st.lists(st.integers(1, 300), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("remaining", "budget", "given"),
    [
        ([], 8, []),
        ([5], 8, [5]),
        ([50], 8, [8]),
        ([10, 10, 10], 12, [10, 2, 0]),  # equals: first come, first served
        ([10, 6], 8, [8, 0]),  # hardly shorter
        ([10, 5], 8, [4, 4]),  # half as long
        ([10, 5], 7, [4, 3]),
        ([100, 30, 10, 20], 40, [20, 0, 10, 10]),  # shortest first
        ([100, 9, 60, 9], 12, [6, 6, 0, 0]),  # and of those the first
        ([6, 2, 3, 50], 20, [6, 2, 3, 9]),  # the oldest cannot use its half
        ([100, 3, 4], 40, [33, 3, 4]),  # the short ones cannot use theirs
        ([100, 3], 1, [1, 0]),
        ([100, 3], 0, [0, 0]),
    ],
)
def test_a_step_is_shared(remaining: list[int], budget: int, given: list[int]) -> None:
    assert shares(remaining, budget) == given


@pytest.mark.parametrize(
    ("remaining", "priorities", "budget", "given"),
    [
        ([10, 5], [1, 1], 8, [4, 4]),
        ([10, 5], [2, 1], 8, [8, 0]),  # even where it is half as long
        ([3, 10, 5], [2, 1, 1], 11, [3, 4, 4]),
        ([3, 10, 5], [2, 2, 1], 8, [3, 5, 0]),
        ([3, 3, 10], [2, 1, 0], 8, [3, 3, 2]),
    ],
)
def test_a_higher_priority_has_the_step_first(
    remaining: list[int], priorities: list[int], budget: int, given: list[int]
) -> None:
    assert shares_by_priority(remaining, budget, priorities) == given


@given(PROMPTS, st.integers(0, 500))
def test_all_of_a_step_is_used_and_at_least_half_by_the_oldest(
    remaining: list[int], budget: int
) -> None:
    parts = shares(remaining, budget)
    assert sum(parts) == min(budget, sum(remaining))
    assert all(0 <= part <= tokens for part, tokens in zip(parts, remaining, strict=True))
    assert parts[0] >= min(remaining[0], budget - budget // 2)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(8, 40), st.integers(1, 60))
def test_whatever_comes_every_prompt_is_done_in_twice_its_own_time_and_that_of_the_older(
    remaining: list[int], budget: int, newcomer: int
) -> None:
    left, waited, steps = list(remaining), len(remaining), 0
    while waited:
        steps += 1
        after = [tokens - part for tokens, part in zip(left, shares(left, budget), strict=True)]
        waited = sum(1 for tokens in after[:waited] if tokens)
        left = [tokens for tokens in after if tokens] + [newcomer]
    half = budget - budget // 2
    assert steps <= sum(-(-tokens // half) for tokens in remaining)


@given(st.lists(st.integers(51, 100), min_size=1, max_size=12), st.integers(1, 400))
def test_among_prompts_of_about_one_length_nobody_is_later_than_in_order_of_arrival(
    lengths: list[int], budget: int
) -> None:
    left, done_at, step = list(lengths), [0] * len(lengths), 0
    while any(left):
        step += 1
        waiting = [index for index, tokens in enumerate(left) if tokens]
        for index, part in zip(waiting, shares([left[i] for i in waiting], budget), strict=True):
            left[index] -= part
            done_at[index] = done_at[index] or (0 if left[index] else step)
    ahead = [sum(lengths[: index + 1]) for index in range(len(lengths))]
    assert done_at == [-(-tokens // budget) for tokens in ahead]


def first_tokens(reports: list[Report]) -> dict[str, int]:
    """The step, counted from 1, in which each had its first token."""
    return {
        tokens.request_id: step
        for step, report in enumerate(reports, start=1)
        for tokens in report.tokens
        if tokens.index == 0
    }


def test_fifty_prompts_of_100_do_not_wait_for_one_of_32k() -> None:
    model = Simulation(SimulatedSettings(max_context_tokens=40_000, max_step_tokens=512))
    model.begin([ask("long", 32_768, 1)])
    reports = [model.next_step()[1]]
    model.begin([ask(f"short {i}", 100, 1) for i in range(50)])
    while model.has_work():
        reports.append(model.next_step()[1])
    began = first_tokens(reports)
    # 256 tokens a step for 50 prompts of 100, two or three of which are done in each.
    assert [began[f"short {i}"] for i in range(50)] == [
        1 + -(-100 * (i + 1) // 256) for i in range(50)
    ]
    assert began["short 49"] == 21
    # The long one is later by what the short ones computed, no more: (32,768 + 5,000) / 512.
    assert began["long"] == 74


def ask(name: str, length: int, new: int, priority: int = 0) -> Submit:
    return Submit(name, 1, [0] * length, length, new, Sampling(ignore_eos=True), priority)


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> ContinuousEngine:
    return load(tiny_folder, prefix_sharing=False, max_seqs=16, max_step_tokens=256)[0]


def test_on_a_real_model_short_prompts_do_not_wait_for_a_long_one_either(
    engine: ContinuousEngine,
) -> None:
    driver = Driver(engine, max_tokens=40)
    driver.submit("long", prompt(1, 800), 1)
    driver.step()
    for i in range(8):
        driver.submit(f"short {i}", prompt(2 + i, 10), 1)
    driver.run()
    began = first_tokens(driver.reports)
    assert [began[f"short {i}"] for i in range(8)] == [2, 2, 3, 3, 4, 4, 5, 5]
    assert began["long"] == 22


def what(sample: StepSample | None) -> StepSample | None:
    """The contents of a step without its time."""
    return None if sample is None else msgspec.structs.replace(sample, duration_s=0.0)


# Steps before the next one comes, length of the prompt, tokens to come, priority.
ARRIVALS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 120), st.integers(1, 6), st.integers(0, 2)),
    min_size=1,
    max_size=10,
)


@settings(max_examples=20)
@given(arrivals=ARRIVALS, budget=st.integers(12, 100))
def test_a_real_model_and_a_simulated_one_compute_the_same_in_every_step(
    engine: ContinuousEngine, arrivals: list[tuple[int, int, int, int]], budget: int
) -> None:
    driver, model = Driver(engine, budget), Simulation(SimulatedSettings())
    model.limit(1, budget)
    for number, (steps, length, new, priority) in enumerate(arrivals):
        name = str(number)
        driver.submit(name, prompt(number, length), new, priority=priority)
        model.begin([ask(name, length, new, priority)])
        for _ in range(steps):
            if model.has_work():
                assert_alike(driver.step(), model.next_step()[1])
    while model.has_work():
        assert_alike(driver.step(), model.next_step()[1])
    assert not engine.has_work()


def assert_alike(real: Report, simulated: Report) -> None:
    assert what(real.sample) == what(simulated.sample)
    assert {tokens.request_id for tokens in real.tokens} == {
        tokens.request_id for tokens in simulated.tokens
    }
    assert real.stalled == []


def test_a_higher_number_goes_first_whatever_engines_call_higher() -> None:
    """Engines differ in the direction; ours is that of the configuration, on every executor."""
    # Sorted as executors have them: 20 tokens of priority 2, then 30 of priority 1.
    assert shares_by_priority([20, 30], 25, [2, 1]) == [20, 5]
    for splits in (True, False):
        simulation = Simulation(
            SimulatedSettings(max_step_tokens=32, splits_prefill=splits, c_s=0.01)
        )
        for name, priority in (("low", 1), ("high", 2)):
            simulation.begin([Submit(name, 1, [0] * 30, 30, 5, Sampling(), priority)])
        _, report = simulation.next_step()
        assert [tokens.request_id for tokens in report.tokens] == ["high"]
