"""The real engine: what is submitted comes back whole, and every step says what it held."""

from pathlib import Path
from typing import Any

import pytest
import torch

from executor.continuous import ContinuousEngine
from executor.contract import Key, Report, Sampling, Submit
from tests.executor.engine_driver import GREEDY, Driver, assert_same, load, prompt

PROMPTS = [prompt(i, length) for i, length in enumerate((5, 40, 17, 90, 33, 8))]


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> ContinuousEngine:
    """One for the tests that leave it as they found it."""
    return load(tiny_folder)[0]


@pytest.fixture
def driver(engine: ContinuousEngine) -> Driver:
    assert not engine.has_work()
    return Driver(engine)


def test_greedy_text_is_that_of_the_model_by_itself(driver: Driver, reference: Any) -> None:
    for i, tokens in enumerate(PROMPTS):
        driver.submit(str(i), tokens, 20)
    driver.run()
    for i, tokens in enumerate(PROMPTS):
        whole = reference.generate(
            torch.tensor([tokens]),
            max_new_tokens=20,
            do_sample=False,
            suppress_tokens=[2],
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
        )
        assert_same(reference, tokens, driver.text[str(i)], whole[0, len(tokens) :].tolist())
        assert driver.ended[str(i)].reason == "length"


def test_every_step_reports_what_it_held(driver: Driver) -> None:
    driver.submit("a", prompt(1, 10), 3)
    driver.submit("b", prompt(2, 6), 2)
    driver.run()
    samples = [report.sample for report in driver.reports]
    assert all(sample is not None and sample.duration_s > 0 for sample in samples)
    assert [
        (s.sequences, s.decodes, s.context_tokens, s.prefill_tokens, s.prefill_squares)
        for s in samples
        if s is not None
    ] == [(2, 0, 0, 16, 136), (2, 2, 16, 0, 0), (1, 1, 11, 0, 0)]
    assert [report.kv_tokens for report in driver.reports] == [64, 32, 0]
    assert [report.steps for report in driver.reports] == [1, 1, 1]


def test_a_text_ends_at_the_end_of_text_token_which_is_counted(driver: Driver) -> None:
    free = Sampling()
    found = None
    for seed in range(60):
        driver.submit("s", prompt(seed, 6), 40, sampling=free)
        text = driver.run()["s"]
        if driver.ended["s"].reason == "stop":
            found = text
            break
    assert found is not None
    assert found[-1] == 2
    assert 2 not in found[:-1]


def test_stop_token_ids_end_a_text(driver: Driver) -> None:
    driver.submit("a", PROMPTS[1], 12)
    whole = driver.run()["a"]
    driver.submit("b", PROMPTS[1], 12, sampling=Sampling(stop_token_ids=(whole[4], 10**9)))
    assert driver.run()["b"] == whole[: whole.index(whole[4]) + 1]
    assert driver.ended["b"].reason == "stop"


def test_before_min_tokens_no_token_that_would_end_the_text_is_chosen(driver: Driver) -> None:
    driver.submit("a", PROMPTS[1], 12)
    whole = driver.run()["a"]
    rules = Sampling(min_tokens=8, stop_token_ids=tuple(whole))
    driver.submit("b", PROMPTS[1], 12, sampling=rules)
    text = driver.run()["b"]
    assert len(text) >= 8
    assert not set(text[:8]) & {2, *whole}


def test_a_sampled_text_that_is_given_back_goes_on_as_it_would_have(driver: Driver) -> None:
    rules = Sampling(temperature=1.0, top_p=0.95, seed=42, ignore_eos=True)
    driver.submit("whole", PROMPTS[2], 20, sampling=rules)
    whole = driver.run()["whole"]
    driver.submit("broken", PROMPTS[2], 20, sampling=rules)
    driver.submit("other", PROMPTS[3], 9)
    for _ in range(7):
        driver.step()
    driver.release("broken")
    driver.resubmit("broken")
    assert driver.run()["broken"] == whole


def test_releases_are_acknowledged_running_unknown_or_idle(driver: Driver) -> None:
    driver.submit("a", PROMPTS[3], 50)
    driver.step()
    driver.work(release=[Key("a", 1), Key("nobody", 3)])
    assert driver.engine.has_work()
    report = driver.step()
    assert report.released == [Key("a", 1), Key("nobody", 3)]
    assert (report.steps, report.sample, report.kv_tokens) == (0, None, 0)
    assert not driver.engine.has_work()


def test_an_attempt_that_is_submitted_and_released_in_one_message_does_not_run(
    driver: Driver,
) -> None:
    key = Key("a", 1)
    driver.work(submit=[Submit("a", 1, PROMPTS[0], 5, 9, GREEDY)], release=[key])
    report = driver.step()
    assert (report.steps, report.released, report.tokens) == (0, [key], [])
    assert not driver.engine.has_work()


def test_new_limits_are_acknowledged_even_when_idle(driver: Driver) -> None:
    driver.epoch = 7
    driver.work()
    assert driver.engine.has_work()
    assert (driver.step().epoch, driver.reports[-1].steps) == (7, 0)
    driver.work()
    assert not driver.engine.has_work()


def test_a_lower_token_limit_holds_from_the_next_step_on(driver: Driver) -> None:
    driver.submit("a", prompt(77, 100), 2)
    driver.max_tokens = 30
    driver.work()
    sizes = [report.sample.prefill_tokens for report in iterate(driver) if report.sample]
    assert sizes == [30, 30, 30, 10, 0]


def test_a_token_limit_beyond_the_capacity_is_clamped(tiny_folder: Path) -> None:
    engine, ready = load(tiny_folder, max_step_tokens=64)
    assert ready.capacity.max_step_tokens == 64
    driver = Driver(engine, max_tokens=10**6)
    driver.submit("a", prompt(1, 100), 1)
    sizes = [report.sample.prefill_tokens for report in iterate(driver) if report.sample]
    assert sizes == [64, 36]


def iterate(driver: Driver) -> list[Report]:
    reports = []
    while driver.engine.has_work():
        reports.append(driver.step())
    return reports


@pytest.mark.parametrize(
    ("tokens", "new", "detail"),
    [
        (prompt(1, 1000), 25, "1000 tokens and 25 to come exceed max_context_tokens = 1024"),
        ([], 5, "0 tokens and 5 to come: neither may be 0"),
        (prompt(1, 5), 0, "5 tokens and 0 to come: neither may be 0"),
        ([5, 384], 5, "a token id is outside the vocabulary of 384"),
        ([-1, 5], 5, "a token id is outside the vocabulary of 384"),
    ],
)
def test_what_can_never_run_is_given_back_and_its_neighbours_run(
    driver: Driver, tokens: list[int], new: int, detail: str
) -> None:
    driver.submit("good", PROMPTS[0], 3)
    driver.submit("bad", tokens, new)
    driver.run()
    (returned,) = driver.returned
    assert (returned.request_id, returned.reason, returned.fatal) == ("bad", "does_not_fit", True)
    assert returned.detail.startswith(detail)
    assert len(driver.text["good"]) == 3


def test_a_sequence_as_long_as_the_memory_runs_and_one_longer_does_not(tiny_folder: Path) -> None:
    engine, ready = load(tiny_folder, num_blocks=4, block_size=16)
    assert (ready.capacity.kv_tokens, ready.capacity.max_context_tokens) == (64, 64)
    driver = Driver(engine)
    driver.submit("fits", prompt(1, 50), 14)
    driver.submit("not", prompt(1, 50), 15)
    driver.run()
    assert len(driver.text["fits"]) == 14
    assert [returned.request_id for returned in driver.returned] == ["not"]
