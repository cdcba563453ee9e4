"""Bias, penalties and min_p: the exact logits that each rule leaves, alone and together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.adjustments import Adjustment, adjust
from executor.contract import Sampling
from executor.sampling import Row, choose

VOCABULARY = 12
LOGITS = (2.0, -1.0, 0.5, 4.0, -2.0, 1.0)


def adjusted(
    logits: Sequence[float], *, prompt: Sequence[int] = (), said: Sequence[int] = (), **rules: Any
) -> list[float]:
    """The logits after the rules of a sequence with this prompt that has said this."""
    made = Adjustment.of(Sampling(**rules), [*prompt, *said], len(prompt), vocabulary=len(logits))
    assert made is not None
    row = torch.tensor([logits], dtype=torch.float32)
    adjust(row, [0], [made])
    return [round(value, 6) for value in row[0].tolist()]


def test_a_bias_is_added_to_its_token() -> None:
    bias = ((0, -100.0), (4, 100.0), (2, 0.25))
    assert adjusted(LOGITS, logit_bias=bias) == [-98.0, -1.0, 0.75, 4.0, 98.0, 1.0]


def test_presence_counts_once_what_was_generated_and_nothing_of_the_prompt() -> None:
    got = adjusted(LOGITS, prompt=[5, 5], said=[3, 0, 3], presence_penalty=1.5)
    assert got == [0.5, -1.0, 0.5, 2.5, -2.0, 1.0]


def test_frequency_counts_each_time_that_a_token_was_generated() -> None:
    got = adjusted(LOGITS, prompt=[5, 5], said=[3, 0, 3, 3], frequency_penalty=0.5)
    assert got == [1.5, -1.0, 0.5, 2.5, -2.0, 1.0]


def test_a_negative_penalty_makes_likelier_what_was_said() -> None:
    got = adjusted(LOGITS, said=[1], presence_penalty=-1.0, frequency_penalty=-0.5)
    assert got == [2.0, 0.5, 0.5, 4.0, -2.0, 1.0]


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_text() -> None:
    got = adjusted(LOGITS, prompt=[1, 3, 3], said=[0], repetition_penalty=2.0)
    assert got == [1.0, -2.0, 0.5, 2.0, -2.0, 1.0]


def test_together_the_bias_comes_first_then_repetition_then_what_is_taken_off() -> None:
    got = adjusted(
        LOGITS,
        prompt=[5],
        said=[1, 1],
        logit_bias=((1, 3.0), (2, 1.0), (5, -2.0)),
        repetition_penalty=2.0,
        frequency_penalty=0.25,
        presence_penalty=0.1,
    )
    # 1: (-1 + 3) / 2 - 2 * 0.25 - 0.1; 5: (1 - 2) * 2.
    assert got == [2.0, 0.4, 1.5, 4.0, -2.0, -2.0]


def test_rules_that_ask_for_nothing_need_no_adjustment() -> None:
    plain = Sampling(temperature=1.0, top_p=0.5, min_p=0.1, logprobs=3)
    assert Adjustment.of(plain, [1, 2], 1, vocabulary=6) is None


def test_a_bias_outside_the_vocabulary_is_for_nobody() -> None:
    bias = ((6, 9.0), (-1, 9.0), (10**12, 9.0))
    assert adjusted(LOGITS, logit_bias=bias) == list(LOGITS)


def test_before_anything_is_said_penalties_change_nothing() -> None:
    assert adjusted(LOGITS, prompt=[1, 2], presence_penalty=2.0) == list(LOGITS)


def token(logits: Sequence[float] = LOGITS, said: Sequence[int] = (), **rules: Any) -> int:
    """The likeliest token after the rules."""
    sampling = Sampling(**rules)
    made = Adjustment.of(sampling, said, 0, vocabulary=len(logits))
    return int(choose(torch.tensor([logits]), [Row(sampling, len(said), (), made)]).item())


def test_a_greedy_row_takes_the_likeliest_after_bias_and_penalties() -> None:
    assert token() == 3
    assert token(logit_bias=((3, -100.0),)) == 0
    assert token(logit_bias=((4, 100.0),)) == 4
    assert token(said=[3], frequency_penalty=1.9) == 3
    assert token(said=[3, 3], frequency_penalty=1.9) == 0
    assert token(said=[3], repetition_penalty=2.5) == 0


@pytest.mark.parametrize("rules", [{}, {"temperature": 1.0, "seed": 4}])
def test_a_token_that_must_not_come_does_not_come_by_its_bias(rules: dict[str, Any]) -> None:
    sampling = Sampling(logit_bias=((3, 100.0),), **rules)
    made = Adjustment.of(sampling, [], 0, vocabulary=len(LOGITS))
    tokens = choose(
        torch.tensor([LOGITS]).repeat(50, 1), [Row(sampling, i, (3,), made) for i in range(50)]
    )
    assert 3 not in tokens.tolist()


def drawn(shares: Sequence[float], **rules: Any) -> set[int]:
    logits = torch.tensor([shares]).log().repeat(2000, 1)
    rows = [Row(Sampling(seed=5, **rules), i) for i in range(2000)]
    return set(choose(logits, rows).tolist())


SHARES = (0.4, 0.25, 0.19, 0.1, 0.06)


def test_min_p_leaves_out_who_is_less_likely_than_that_share_of_the_likeliest() -> None:
    assert drawn(SHARES, temperature=1.0) == {0, 1, 2, 3, 4}
    assert drawn(SHARES, temperature=1.0, min_p=0.2) == {0, 1, 2, 3}
    assert drawn(SHARES, temperature=1.0, min_p=0.45) == {0, 1, 2}
    assert drawn(SHARES, temperature=1.0, min_p=1.0) == {0}


def test_min_p_looks_at_the_shares_that_the_temperature_leaves() -> None:
    # At 0.5 they are as the squares: 0.19 is 0.2256 of 0.4 then, and 0.25 is 0.3906 of it.
    assert drawn(SHARES, temperature=0.5, min_p=0.23) == {0, 1}
    assert drawn(SHARES, temperature=0.5, min_p=0.22) == {0, 1, 2}


def test_top_p_and_top_k_choose_among_what_min_p_left() -> None:
    # Of the 0.84 that are left, the first two hold 0.774.
    assert drawn(SHARES, temperature=1.0, min_p=0.45, top_p=0.77) == {0, 1}
    assert drawn(SHARES, temperature=1.0, min_p=0.45, top_p=0.78) == {0, 1, 2}
    assert drawn(SHARES, temperature=1.0, min_p=0.45, top_k=2) == {0, 1}


def _sampling(rules: dict[str, Any]) -> Sampling:
    return Sampling(**rules)


RULES = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7, 1.0, 1.6]),
        "top_p": st.sampled_from([1.0, 0.8]),
        "top_k": st.sampled_from([0, 1, 4]),
        "min_p": st.sampled_from([0.0, 0.1, 0.6]),
        "seed": st.integers(0, 2**63 - 1),
        "presence_penalty": st.sampled_from([0.0, 1.1, -0.7]),
        "frequency_penalty": st.sampled_from([0.0, 0.4, -0.3]),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.6]),
        "logit_bias": st.lists(
            st.tuples(st.integers(0, VOCABULARY - 1), st.floats(-5, 5)),
            max_size=3,
            unique_by=lambda pair: pair[0],
        ).map(tuple),
    }
).map(_sampling)
TEXT = st.lists(st.integers(0, VOCABULARY - 1), max_size=9)
SEQUENCE = st.tuples(RULES, TEXT, TEXT)


def row_of(sampling: Sampling, prompt: list[int], said: list[int]) -> Row:
    made = Adjustment.of(sampling, prompt + said, len(prompt), vocabulary=VOCABULARY)
    return Row(sampling, len(said), (), made)


@settings(max_examples=60, deadline=None)
@given(st.lists(SEQUENCE, min_size=1, max_size=6), st.integers(0, 2**31), st.randoms())
def test_a_token_does_not_depend_on_who_else_is_in_the_step(
    sequences: list[tuple[Sampling, list[int], list[int]]], seed: int, chance: Any
) -> None:
    rows = [row_of(*sequence) for sequence in sequences]
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows), VOCABULARY, generator=generator) * 3
    alone = [int(choose(logits[i : i + 1].clone(), [row]).item()) for i, row in enumerate(rows)]
    assert choose(logits.clone(), rows).tolist() == alone
    order = list(range(len(rows)))
    chance.shuffle(order)
    shuffled = choose(logits[order].clone(), [rows[i] for i in order]).tolist()
    assert shuffled == [alone[i] for i in order]


@settings(max_examples=60, deadline=None)
@given(st.lists(SEQUENCE, min_size=1, max_size=5), st.integers(0, 2**31))
def test_the_logits_are_those_of_the_rules_token_by_token(
    sequences: list[tuple[Sampling, list[int], list[int]]], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(sequences), VOCABULARY, generator=generator)
    expected = [
        [_by_hand(logits[i, token].item(), token, *sequence) for token in range(VOCABULARY)]
        for i, sequence in enumerate(sequences)
    ]
    made = {i: row_of(*sequence).adjustment for i, sequence in enumerate(sequences)}
    there = {i: one for i, one in made.items() if one is not None}
    if there:
        adjust(logits, list(there), list(there.values()))
    torch.testing.assert_close(logits, torch.tensor(expected))


def _by_hand(
    logit: float, token: int, sampling: Sampling, prompt: list[int], said: list[int]
) -> float:
    logit += dict(sampling.logit_bias).get(token, 0.0)
    if token in prompt + said:
        rate = sampling.repetition_penalty
        logit = logit / rate if logit > 0 else logit * rate
    logit -= sampling.frequency_penalty * said.count(token)
    return logit - sampling.presence_penalty * (token in said)


@settings(max_examples=30, deadline=None)
@given(RULES, TEXT, st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=300))
def test_made_anew_from_prompt_and_text_it_is_as_if_it_had_been_there(
    sampling: Sampling, prompt: list[int], said: list[int]
) -> None:
    grown = row_of(sampling, prompt, []).adjustment
    anew = row_of(sampling, prompt, said).adjustment
    if grown is None or anew is None:
        assert grown is anew
        return
    for token in said:
        grown.add(token)
    logits = torch.linspace(-3, 3, VOCABULARY).repeat(2, 1)
    adjust(logits, [0, 1], [grown, anew])
    assert torch.equal(logits[0], logits[1])
