"""Padded batches by rules of sampling: log-probabilities of texts and prompts, penalties, bias."""

from pathlib import Path
from typing import Any

import pytest

from executor.contract import Sampling
from tests.executor.engine_driver import Driver, load, load_padded, prompt
from tests.executor.test_continuous_sampling import assert_those_of_the_model, told

ECHO = Sampling(ignore_eos=True, logprobs=1, prompt_logprobs=True)
ASKS = Sampling(temperature=1.3, seed=5, ignore_eos=True, presence_penalty=1.0, logprobs=3)


@pytest.mark.parametrize("leave", ["early", "together"])
def test_what_is_told_is_that_of_the_model_by_itself_whoever_is_beside(
    tiny_folder: Path, reference: Any, leave: str
) -> None:
    driver = Driver(load_padded(tiny_folder, leave=leave)[0])
    driver.submit("beside", prompt(8, 33), 2)
    driver.submit("echo", prompt(3, 70), 4, sampling=ECHO)
    driver.submit("asks", prompt(4, 9), 9, sampling=ASKS)
    driver.submit("one", [9], 3, sampling=ECHO)
    driver.run()
    for name, tokens, top in (
        ("echo", prompt(3, 70), 1),
        ("asks", prompt(4, 9), 3),
        ("one", [9], 1),
    ):
        of_prompt, ours = told(driver.reports, name)
        whole = tokens + driver.text[name]
        assert_those_of_the_model(reference, whole, ours, first=len(tokens), top=top)
        if name != "asks":
            assert_those_of_the_model(reference, tokens, of_prompt, first=1, top=1)
        else:
            assert of_prompt == []
    silent = [part for report in driver.reports for part in report.tokens]
    assert {part.logprobs for part in silent if part.request_id == "beside"} == {None}


def test_texts_by_every_rule_are_those_of_continuous_batching(tiny_folder: Path) -> None:
    rules = [
        Sampling(ignore_eos=True, frequency_penalty=0.8, presence_penalty=0.4),
        Sampling(ignore_eos=True, repetition_penalty=1.3, logit_bias=((7, 2.0), (9, -100.0))),
        Sampling(ignore_eos=True, temperature=0.9, seed=6, min_p=0.05, frequency_penalty=1.5),
        Sampling(ignore_eos=True, temperature=1.1, seed=7, top_k=40, top_p=0.9, min_tokens=3),
    ]
    texts = []
    for engine in (load_padded(tiny_folder)[0], load(tiny_folder)[0]):
        driver = Driver(engine)
        for number, rule in enumerate(rules):
            driver.submit(str(number), prompt(number, 5 + 9 * number), 12, sampling=rule)
        texts.append(driver.run())
    assert texts[0] == texts[1]
