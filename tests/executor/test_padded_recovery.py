"""Batches that run to completion when steps fail or memory runs out: nothing is lost."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from executor.contract import Sampling
from executor.padded import PaddedEngine
from tests.executor.alone import write_alone
from tests.executor.engine_driver import GREEDY, Driver, load_padded, prompt

PROMPTS = [prompt(i, length) for i, length in enumerate((5, 40, 17, 90, 33, 8))]


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> PaddedEngine:
    """With memory for 240 tokens."""
    return load_padded(tiny_folder, kv_tokens=240)[0]


@pytest.fixture
def driver(engine: PaddedEngine) -> Driver:
    assert not engine.has_work()
    return Driver(engine)


@contextmanager
def failing(engine: PaddedEngine, error: Exception) -> Iterator[None]:
    def fail(*_: Any) -> None:
        raise error

    model: Any = engine._batch._model
    handle = model.register_forward_pre_hook(fail)
    yield
    handle.remove()


@pytest.mark.parametrize("max_tokens", [2048, 20])
def test_after_a_step_that_raised_everybody_is_given_back_and_goes_on_as_if_nothing_had_been(
    driver: Driver, engine: PaddedEngine, reference: Any, max_tokens: int
) -> None:
    """In the second step: of a batch that decodes, or is still prefilled; with one behind it."""
    driver.max_tokens = max_tokens
    for name in "abc":
        driver.submit(name, prompt(ord(name), 12), 6)
    driver.step()
    driver.submit("behind", prompt(9, 8), 4)
    with failing(engine, RuntimeError("a kernel broke")):
        report = driver.step()
    assert sorted(key.request_id for key in report.returned) == ["a", "b", "behind", "c"]
    assert {(r.reason, r.fatal, r.detail) for r in report.returned} == {
        ("error", False, "RuntimeError: a kernel broke")
    }
    assert (report.steps, report.sample, report.kv_tokens) == (0, None, 0)
    assert report.warning.startswith("a step failed, 4 requests are given back")
    assert not engine.has_work()
    for returned in report.returned:
        driver.resubmit(returned.request_id)
    driver.run()
    for name, length, new in (("a", 12, 6), ("b", 12, 6), ("c", 12, 6), ("behind", 8, 4)):
        tokens = prompt(9 if name == "behind" else ord(name), length)
        write_alone(reference, tokens, new, sampling=GREEDY).assert_same(
            driver.text[name], "length"
        )


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_running_out_of_memory_is_told_apart_from_other_errors(
    driver: Driver, engine: PaddedEngine, error: Exception
) -> None:
    driver.submit("a", PROMPTS[0], 3)
    with failing(engine, error):
        report = driver.step()
    assert [(r.request_id, r.reason) for r in report.returned] == [("a", "out_of_memory")]


def test_a_batch_that_is_padded_beyond_the_memory_begins_without_its_youngest(
    driver: Driver, reference: Any
) -> None:
    for name, length in (("long", 90), ("b", 9), ("c", 9)):
        driver.submit(name, prompt(1, length), 4)
    report = driver.step()
    (returned,) = report.returned
    assert (returned.request_id, returned.reason, returned.fatal) == ("c", "out_of_memory", False)
    assert returned.detail == "3 rows of 91 tokens exceed kv_tokens = 240"
    assert (len(report.tokens), report.kv_tokens, report.warning) == (2, 180, "")
    driver.resubmit("c")
    driver.run()
    for name, length in (("long", 90), ("b", 9), ("c", 9)):
        alone = write_alone(reference, prompt(1, length), 4, sampling=GREEDY)
        alone.assert_same(driver.text[name], "length")


def test_a_batch_that_grows_beyond_the_memory_gives_its_lowest_and_youngest_back(
    driver: Driver, reference: Any
) -> None:
    for name, priority in (("a", 1), ("b", 0), ("c", 0), ("d", 1)):
        driver.submit(name, prompt(ord(name), 55), 12, priority=priority)
    driver.run()
    # Four rows of 60 tokens fit; then three of 80 would, which is more than they come to.
    assert [(r.request_id, r.reason) for r in driver.returned] == [("c", "out_of_memory")]
    assert len(driver.text["c"]) == 6
    assert max(report.kv_tokens or 0 for report in driver.reports) == 240
    driver.resubmit("c")
    driver.run()
    for name in "abcd":
        alone = write_alone(reference, prompt(ord(name), 55), 12, sampling=GREEDY)
        alone.assert_same(driver.text[name], "length")


def test_one_as_long_as_the_memory_runs_and_one_longer_does_not(driver: Driver) -> None:
    driver.submit("fits", prompt(1, 230), 10)
    driver.submit("not", prompt(1, 230), 11)
    driver.run()
    assert len(driver.text["fits"]) == 10
    (returned,) = driver.returned
    assert (returned.request_id, returned.reason, returned.fatal) == ("not", "does_not_fit", True)


def test_in_the_old_way_those_who_are_done_make_room_first(tiny_folder: Path) -> None:
    engine, _ = load_padded(tiny_folder, kv_tokens=100, leave="together")
    driver = Driver(engine)
    for name, new in (("a", 2), ("b", 3), ("c", 30)):
        driver.submit(name, prompt(1, 30), new)
    driver.run()
    assert driver.returned == []
    ends = [[f.request_id for f in report.finished] for report in driver.reports]
    assert [end for end in ends if end] == [["a", "b"], ["c"]]
    assert len(driver.text["c"]) == 30


def test_nothing_is_lost_or_kept_over_random_submits_releases_and_failures(
    engine: PaddedEngine,
) -> None:
    driver, chance, living = Driver(engine), random.Random(0), set[str]()
    gone = set[str]()
    for number in range(300):
        name = str(number)
        driver.max_tokens = chance.choice((40, 200))
        if len(living) < 6 and chance.random() < 0.5:
            rules = chance.choice((GREEDY, Sampling(temperature=1.0, seed=number)))
            length, new = chance.randrange(1, 60), chance.randrange(1, 30)
            driver.submit(name, prompt(number, length), new, sampling=rules)
            living.add(name)
        if living and chance.random() < 0.15:
            victim = chance.choice(sorted(living))
            driver.release(victim)
            if chance.random() < 0.5 and victim not in driver.ended:
                driver.resubmit(victim)
            else:
                living.discard(victim)
                gone.add(victim)
        if engine.has_work():
            if chance.random() < 0.05:
                with failing(engine, ValueError("x")):
                    report = driver.step()
            else:
                report = driver.step()
            for returned in report.returned:
                driver.resubmit(returned.request_id)
        living -= set(driver.ended)
    while engine.has_work():
        for returned in driver.step().returned:
            driver.resubmit(returned.request_id)
    assert engine._batch.held_tokens() == 0
    assert set(driver.requests) - gone <= set(driver.ended)
    assert len(driver.ended) > 30
