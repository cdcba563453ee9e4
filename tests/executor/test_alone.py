"""However requests are batched, each has the text that it has alone, token for token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from executor.contract import Sampling
from executor.engine import Engine
from tests.executor.alone import TIE, Alone, write_alone
from tests.executor.engine_driver import Driver, load, load_padded

ids = st.integers(0, 383)


@dataclass(frozen=True, slots=True)
class Ask:
    """A greedy request that comes before step `turn`."""

    turn: int
    tokens: list[int]
    new: int
    sampling: Sampling


asks = st.builds(
    Ask,
    turn=st.sampled_from((0, 0, 0, 3, 9)),
    tokens=st.lists(ids, min_size=1, max_size=60),
    new=st.integers(1, 24),
    sampling=st.builds(
        Sampling,
        min_tokens=st.sampled_from((0, 0, 5)),
        ignore_eos=st.booleans(),
        # One token in twenty ends a text, so that most end somewhere on the way.
        stop_token_ids=st.lists(ids, max_size=20).map(tuple),
    ),
)


@pytest.fixture(scope="module")
def padded(tiny_folder: Path) -> Engine:
    return load_padded(tiny_folder)[0]


@pytest.fixture(scope="module")
def continuous(tiny_folder: Path) -> Engine:
    return load(tiny_folder)[0]


@pytest.mark.timeout(180)  # many steps of two engines, where others use the machine
@given(asked=st.lists(asks, min_size=1, max_size=8), max_tokens=st.sampled_from((64, 150, 2048)))
@settings(
    max_examples=16,
    deadline=None,
    derandomize=True,
    # Shrinking would take longer than a test may.
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_text_is_that_of_its_request_alone(
    padded: Engine, continuous: Engine, reference: Any, asked: list[Ask], max_tokens: int
) -> None:
    """Of random prompts, lengths, ends and batch sizes, in one batch or joining it or behind it."""
    expected = [write_alone(reference, ask.tokens, ask.new, sampling=ask.sampling) for ask in asked]
    for engine in (padded, continuous):
        driver = play(engine, asked, max_tokens=max_tokens)
        for index, alone in enumerate(expected):
            name = str(index)
            alone.assert_same(driver.text[name], driver.ended[name].reason)


def play(engine: Engine, asked: list[Ask], *, max_tokens: int) -> Driver:
    """Let everybody come in time, and go on until all are done."""
    driver, turn = Driver(engine, max_tokens), 0
    coming = sorted(enumerate(asked), key=lambda numbered: numbered[1].turn)
    while coming or engine.has_work():
        while coming and (coming[0][1].turn <= turn or not engine.has_work()):
            index, ask = coming.pop(0)
            driver.submit(str(index), ask.tokens, ask.new, sampling=ask.sampling)
        driver.step()
        turn += 1
    return driver


def test_a_text_that_differs_is_told_from_one_that_parts_at_a_tie() -> None:
    alone = Alone([7, 8, 9], "length", [(7, 3, 1.0), (8, 4, TIE / 2), (9, 5, 1.0)])
    alone.assert_same([7, 8, 9], "length")
    alone.assert_same([7, 4, 1], "stop")
    for wrong, reason in (([7, 5, 9], "length"), ([3, 8, 9], "length"), ([7, 8, 9], "stop")):
        with pytest.raises(AssertionError):
            alone.assert_same(wrong, reason)  # type: ignore[arg-type]  # one of two words
    with pytest.raises(AssertionError):
        alone.assert_same([7, 8], "length")
