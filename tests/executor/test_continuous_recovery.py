"""The real engine when steps fail or memory runs out: nothing is lost, nothing leaks."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from executor import continuous
from executor.continuous import ContinuousEngine
from executor.contract import Sampling
from tests.executor.engine_driver import GREEDY, Driver, assert_same, held, load, prompt

PROMPTS = [prompt(i, length) for i, length in enumerate((5, 40, 17, 90, 33, 8))]
Fail = Callable[[ContinuousEngine, Exception], Callable[[], None]]


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> ContinuousEngine:
    """One for the tests that leave it as they found it."""
    return load(tiny_folder)[0]


@pytest.fixture
def driver(engine: ContinuousEngine) -> Driver:
    assert not engine.has_work()
    return Driver(engine)


def fail_in_model(engine: ContinuousEngine, error: Exception) -> Callable[[], None]:
    def fail(*_: Any) -> None:
        raise error

    model: Any = engine._batch._model
    handle = model.register_forward_pre_hook(fail)

    def restore() -> None:
        handle.remove()

    return restore


def fail_in_choice(engine: ContinuousEngine, error: Exception) -> Callable[[], None]:
    def fail(*_: Any) -> torch.Tensor:
        raise error

    patch = pytest.MonkeyPatch()
    patch.setattr(continuous, "choose", fail)
    return patch.undo


@pytest.mark.parametrize("fail", [fail_in_model, fail_in_choice])
@pytest.mark.parametrize("max_tokens", [2048, 48])
def test_after_a_step_that_raised_the_texts_are_those_of_an_undisturbed_run(
    driver: Driver,
    reference: Any,
    fail: Fail,
    max_tokens: int,
) -> None:
    rules = [GREEDY, Sampling(temperature=0.8, seed=9, ignore_eos=True)] * 3
    whole = Driver(driver.engine)
    for side in (whole, driver):
        side.max_tokens = max_tokens
        for i, tokens in enumerate(PROMPTS):
            side.submit(str(i), tokens, 12, sampling=rules[i])
        if side is whole:
            side.run()
    for _ in range(3):
        driver.step()
    restore = fail(driver.engine, RuntimeError("a kernel broke"))
    report = driver.step()
    restore()
    assert {key.request_id for key in report.returned} == set("012345") - set(driver.ended)
    assert {(r.reason, r.fatal, r.attempt) for r in report.returned} == {("error", False, 1)}
    assert report.returned[0].detail == "RuntimeError: a kernel broke"
    assert (report.steps, report.sample, report.kv_tokens) == (0, None, 0)
    assert held(driver.engine) == (0, True)
    for returned in report.returned:
        driver.resubmit(returned.request_id)
    driver.run()
    for i, tokens in enumerate(PROMPTS):
        assert_same(reference, tokens, driver.text[str(i)], whole.text[str(i)])
    assert held(driver.engine) == (0, True)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_running_out_of_memory_is_told_apart_from_other_errors(
    driver: Driver, error: Exception
) -> None:
    driver.submit("a", PROMPTS[0], 3)
    restore = fail_in_model(driver.engine, error)
    report = driver.step()
    restore()
    assert [(r.request_id, r.reason) for r in report.returned] == [("a", "out_of_memory")]


def test_no_memory_leaks_over_random_submits_releases_and_failures(tiny_folder: Path) -> None:
    engine, _ = load(tiny_folder, num_blocks=40, block_size=8, max_seqs=6)
    driver, chance, living = Driver(engine), random.Random(0), set[str]()
    for number in range(300):
        name = str(number)
        if len(living) < 6 and chance.random() < 0.5:
            seed = chance.randrange(4)
            driver.submit(name, prompt(seed, chance.randrange(1, 60)), chance.randrange(1, 30))
            living.add(name)
        if living and chance.random() < 0.15:
            victim = chance.choice(sorted(living))
            driver.release(victim)
            if chance.random() < 0.5 and victim not in driver.ended:
                driver.resubmit(victim)
            else:
                living.discard(victim)
        restore = fail_in_model(engine, ValueError("x")) if chance.random() < 0.05 else None
        if engine.has_work():
            report = driver.step()
            for returned in report.returned:
                driver.resubmit(returned.request_id)
        if restore:
            restore()
        living -= set(driver.ended)
    driver.run()
    assert held(engine) == (0, True)
    assert len(driver.ended) > 60


def test_who_stands_still_for_want_of_memory_is_reported_and_still_finishes(
    tiny_folder: Path, reference: Any
) -> None:
    engine, _ = load(tiny_folder, num_blocks=12, block_size=8)
    driver, whole = Driver(engine), Driver(load(tiny_folder)[0])
    for side in (driver, whole):
        for name in "abc":
            side.submit(name, prompt(ord(name), 20), 30)
        side.run()
    stalled = [key for report in driver.reports for key in report.stalled]
    assert {key.request_id for key in stalled} & {"b", "c"}
    assert not [key for report in whole.reports for key in report.stalled]
    for name in "abc":
        tokens = prompt(ord(name), 20)
        assert_same(reference, tokens, driver.text[name], whole.text[name])
    assert held(engine) == (0, True)
