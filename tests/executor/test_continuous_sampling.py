"""The real engine by rules of sampling: log-probabilities of texts and prompts, penalties, bias."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from executor.continuous import ContinuousEngine
from executor.contract import Report, Sampling, TokenLogprob
from tests.executor.engine_driver import Driver, load, prompt

PROMPT = prompt(3, 70)


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> ContinuousEngine:
    return load(tiny_folder)[0]


@pytest.fixture
def driver(engine: ContinuousEngine) -> Driver:
    assert not engine.has_work()
    return Driver(engine)


def told(reports: Sequence[Report], name: str) -> tuple[list[TokenLogprob], list[TokenLogprob]]:
    """What the reports say of the tokens of a prompt, and of those of its completion."""
    parts = [
        part.logprobs
        for report in reports
        for part in report.tokens
        if part.request_id == name and part.logprobs is not None
    ]
    assert all(not part.prompt for part in parts[1:])
    return parts[0].prompt, [one for part in parts for one in part.tokens]


def assert_those_of_the_model(
    reference: Any, tokens: list[int], ours: list[TokenLogprob], *, first: int, top: int
) -> None:
    """Each is, within 1e-4, that of the model by itself for the tokens from `first` on."""
    with torch.inference_mode():
        logits = reference(torch.tensor([tokens])).logits[0].float()
    expected = logits.log_softmax(dim=-1)
    assert len(ours) == len(tokens) - first
    for one, at in zip(ours, range(first, len(tokens)), strict=True):
        row = expected[at - 1]
        assert one.logprob == pytest.approx(row[tokens[at]].item(), abs=1e-4)
        values = [value for _, value in one.top]
        assert values == pytest.approx(row.topk(top).values.tolist(), abs=1e-4)
        assert [row[token].item() for token, _ in one.top] == pytest.approx(values, abs=1e-4)


def test_every_token_comes_with_its_log_probability_and_the_likeliest(
    driver: Driver, reference: Any
) -> None:
    rules = Sampling(temperature=1.3, seed=5, ignore_eos=True, presence_penalty=1.0, logprobs=3)
    driver.submit("asks", PROMPT, 12, sampling=rules)
    driver.submit("does not", prompt(4, 20), 12)
    text = driver.run()["asks"]
    of_prompt, ours = told(driver.reports, "asks")
    assert of_prompt == []
    assert_those_of_the_model(reference, PROMPT + text, ours, first=len(PROMPT), top=3)
    others = [part for report in driver.reports for part in report.tokens]
    assert {part.logprobs is None for part in others if part.request_id == "does not"} == {True}


ECHO = Sampling(ignore_eos=True, logprobs=1, prompt_logprobs=True)


@pytest.mark.parametrize("max_tokens", [2048, 16])
def test_a_prompt_is_told_with_the_first_token_whatever_parts_it_came_in(
    driver: Driver, reference: Any, max_tokens: int
) -> None:
    driver.max_tokens = max_tokens
    driver.submit("beside", prompt(8, 33), 6)
    driver.submit("echo", PROMPT, 4, sampling=ECHO)
    driver.submit("another", prompt(9, 41), 1, sampling=ECHO)
    text = driver.run()["echo"]
    of_prompt, ours = told(driver.reports, "echo")
    assert_those_of_the_model(reference, PROMPT, of_prompt, first=1, top=1)
    assert_those_of_the_model(reference, PROMPT + text, ours, first=len(PROMPT), top=1)
    of_another, _ = told(driver.reports, "another")
    assert_those_of_the_model(reference, prompt(9, 41), of_another, first=1, top=1)


def test_a_prompt_that_others_have_computed_is_told_in_full(driver: Driver, reference: Any) -> None:
    tokens = prompt(21, 70)
    driver.submit("first", tokens, 3)
    driver.run()
    driver.submit("echo", tokens, 3, sampling=ECHO)
    text = driver.run()["echo"]
    assert text == driver.text["first"]
    of_prompt, _ = told(driver.reports, "echo")
    assert_those_of_the_model(reference, tokens, of_prompt, first=1, top=1)
    # Others may go on from it.
    driver.submit("third", tokens, 3)
    driver.run()
    assert driver.text["third"] == text
    prefills = [report.sample.prefill_tokens for report in driver.reports if report.sample]
    assert [tokens for tokens in prefills if tokens] == [70, 70, 70 - 64]


def test_a_prompt_of_one_token_has_nothing_to_tell(driver: Driver) -> None:
    driver.submit("echo", [9], 2, sampling=ECHO)
    driver.run()
    of_prompt, ours = told(driver.reports, "echo")
    assert (of_prompt, len(ours)) == ([], 2)


def test_the_logits_of_prompts_are_read_in_steps_that_memory_can_bear(
    engine: ContinuousEngine, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine._batch, "_read_tokens", 30)
    driver.submit("decodes", prompt(1, 9), 9)
    driver.step()
    driver.submit("echo", PROMPT, 1, sampling=ECHO)
    driver.run()
    prefills = [report.sample.prefill_tokens for report in driver.reports if report.sample]
    assert prefills[:5] == [9, 30, 30, 10, 0]
    # Who waits for a place in such a step does not stand still for want of memory.
    assert [report.stalled for report in driver.reports] == [[]] * len(driver.reports)
    assert len(told(driver.reports, "echo")[0]) == len(PROMPT) - 1


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_what_is_given_back_is_told_once_before_and_after(driver: Driver, steps: int) -> None:
    driver.max_tokens = 32
    driver.submit("whole", PROMPT, 9, sampling=ECHO)
    driver.run()
    whole = told(driver.reports, "whole")
    driver.reports.clear()
    driver.submit("broken", PROMPT, 9, sampling=ECHO)
    for _ in range(steps):
        driver.step()
    driver.release("broken")
    driver.resubmit("broken")
    driver.run()
    assert driver.text["broken"] == driver.text["whole"]
    of_prompt, ours = told(driver.reports, "broken")
    for got, expected in zip((of_prompt, ours), whole, strict=True):
        assert [one.logprob for one in got] == pytest.approx(
            [one.logprob for one in expected], abs=1e-4
        )


PENALISED = (
    Sampling(ignore_eos=True, frequency_penalty=0.8, presence_penalty=0.4),
    Sampling(ignore_eos=True, repetition_penalty=1.3, logit_bias=((7, 2.0), (9, -100.0))),
    Sampling(ignore_eos=True, temperature=0.9, seed=6, min_p=0.05, frequency_penalty=1.5),
)


@pytest.mark.parametrize("rules", PENALISED)
def test_a_penalised_text_that_is_given_back_goes_on_as_it_would_have(
    driver: Driver, rules: Sampling
) -> None:
    driver.submit("whole", PROMPT[:20], 30, sampling=rules)
    whole = driver.run()["whole"]
    driver.submit("broken", PROMPT[:20], 30, sampling=rules)
    driver.submit("other", prompt(5, 30), 12)
    for _ in range(11):
        driver.step()
    driver.release("broken")
    driver.resubmit("broken")
    assert driver.run()["broken"] == whole


def test_a_frequency_penalty_ends_a_loop_and_a_bias_forces_and_bans(driver: Driver) -> None:
    plain, forced = Sampling(ignore_eos=True), Sampling(ignore_eos=True, logit_bias=((11, 100.0),))
    driver.submit("forced", PROMPT, 20, sampling=forced)
    assert driver.run()["forced"] == [11] * 20
    never = Sampling(ignore_eos=True, logit_bias=((11, 100.0),), frequency_penalty=2.0)
    driver.submit("less and less", PROMPT, 120, sampling=never)
    assert 40 < driver.run()["less and less"].count(11) < 70
    driver.submit("plain", PROMPT, 8, sampling=plain)
    first = driver.run()["plain"][0]
    banned = Sampling(ignore_eos=True, logit_bias=((first, -100.0),))
    driver.submit("banned", PROMPT, 8, sampling=banned)
    assert first not in driver.run()["banned"]
    driver.submit(
        "outside", PROMPT, 8, sampling=Sampling(ignore_eos=True, logit_bias=((384, 9.0),))
    )
    assert driver.run()["outside"] == driver.text["plain"]


def test_memory_that_runs_out_under_a_prompt_that_is_read_costs_it_nothing(
    tiny_folder: Path, reference: Any
) -> None:
    engine, _ = load(tiny_folder, num_blocks=16, block_size=8)
    driver = Driver(engine, max_tokens=24)
    for name in "ab":
        driver.submit(name, prompt(ord(name), 20), 40)
    for _ in range(20):
        driver.step()
    driver.submit("echo", PROMPT[:60], 3, sampling=ECHO)
    driver.run()
    text = driver.text["echo"]
    of_prompt, ours = told(driver.reports, "echo")
    assert_those_of_the_model(reference, PROMPT[:60], of_prompt, first=1, top=1)
    assert_those_of_the_model(reference, PROMPT[:60] + text, ours, first=60, top=1)
    assert [key for report in driver.reports for key in report.stalled]
