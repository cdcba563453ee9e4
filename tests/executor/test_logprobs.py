"""Log-probabilities: those of the model itself, whatever rules the choice is made by."""

from __future__ import annotations

import math

import pytest
import torch

from executor.adjustments import Adjustment
from executor.contract import Sampling, TokenLogprob
from executor.logprobs import Asked, of_prompt
from executor.sampling import Row, choose

SHARES = (0.5, 0.125, 0.25, 0.0625, 0.0625)


def logits(rows: int = 1, shift: float = 7.0) -> torch.Tensor:
    """Logits of these shares; a constant is added, as models do."""
    return (torch.tensor([SHARES]).log() + shift).repeat(rows, 1)


def close(told: TokenLogprob, logprob: float, *top: tuple[int, float]) -> bool:
    assert told.logprob == pytest.approx(logprob, abs=1e-6)
    assert [token for token, _ in told.top] == [token for token, _ in top]
    assert [value for _, value in told.top] == pytest.approx([value for _, value in top], abs=1e-6)
    return True


def test_a_token_has_its_own_and_those_of_the_likeliest_in_order() -> None:
    asked = Asked(logits(), [Row(Sampling(logprobs=3), 0)])
    told = asked.of(torch.tensor([1]))
    top = [(0, math.log(0.5)), (2, math.log(0.25)), (1, math.log(0.125))]
    assert close(told[0], math.log(0.125), *top)
    # The very same number, so that whoever compares them finds the chosen one among them.
    assert told[0].logprob == told[0].top[2][1]


def test_only_rows_that_ask_are_told_and_each_as_many_as_it_asks_for() -> None:
    rows = [Row(Sampling(logprobs=n), 0) for n in (None, 0, 2, 20)]
    told = Asked(logits(4), rows).of(torch.tensor([0, 1, 2, 3]))
    assert list(told) == [1, 2, 3]
    assert [len(one.top) for one in told.values()] == [0, 2, 5]
    assert [one.logprob for one in told.values()] == pytest.approx(
        [math.log(SHARES[token]) for token in (1, 2, 3)], abs=1e-6
    )
    assert Asked(logits(), [Row(Sampling(), 0)]).of(torch.tensor([0])) == {}


def test_temperature_bias_penalties_and_forbidden_tokens_do_not_show() -> None:
    sampling = Sampling(
        temperature=1.7,
        seed=3,
        min_p=0.3,
        logit_bias=((4, 100.0),),
        presence_penalty=2.0,
        logprobs=1,
    )
    made = Adjustment.of(sampling, [0, 0], 0, vocabulary=5)
    rows = [Row(sampling, 2, (0,), made)]
    step = logits()
    asked = Asked(step, rows)
    tokens = choose(step, rows)
    assert tokens.tolist() == [4]
    assert close(asked.of(tokens)[0], math.log(0.0625), (0, math.log(0.5)))


def test_what_is_told_does_not_depend_on_who_else_asks() -> None:
    generator = torch.Generator().manual_seed(0)
    # Half of them tie.
    step = torch.randn(5, 300, generator=generator).round()
    rows = [Row(Sampling(logprobs=n), 0) for n in (5, 0, 20, None, 3)]
    tokens = torch.tensor([7, 8, 9, 10, 11])
    together = Asked(step, rows).of(tokens)
    for i, row in enumerate(rows):
        alone = Asked(step[i : i + 1], [row]).of(tokens[i : i + 1])
        assert alone.get(0) == together.get(i)


@pytest.mark.parametrize("length", [1, 5, 700])
def test_a_prompt_has_one_for_each_token_that_follows(length: int) -> None:
    generator = torch.Generator().manual_seed(1)
    step = torch.randn(length, 40, generator=generator, dtype=torch.bfloat16)
    targets = torch.randint(40, (length,), generator=generator).tolist()
    expected = step.float().log_softmax(dim=-1)
    told = of_prompt(step, targets, 2)
    own = [expected[i, target].item() for i, target in enumerate(targets)]
    assert [one.logprob for one in told] == pytest.approx(own, abs=1e-5)
    assert [len(one.top) for one in told] == [2] * length
    assert [one.top[0][1] for one in told] == pytest.approx(
        expected.amax(dim=-1).tolist(), abs=1e-5
    )


def test_the_last_logits_of_a_prompt_are_of_no_token_in_it() -> None:
    assert len(of_prompt(logits(3), [1, 0], 0)) == 2
    assert of_prompt(logits(1), [], 5) == []
