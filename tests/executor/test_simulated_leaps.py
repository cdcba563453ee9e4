"""Many equal steps taken as one are the very steps, and tell the very tokens, only later."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.contract import Fault, Finished, Key, Report, Sampling, SimulatedSettings, Submit
from executor.simulated_leaps import LeapingSimulation
from executor.simulation import Simulation

FOREVER = {"begin_within_s": math.inf, "end_within_s": math.inf, "tell_after_s": math.inf}
COSTS: dict[str, Any] = {"a_s": 1.0, "b_s": 0.01, "c_s": 0.1}


def ask(name: str, prompt: int, output: int) -> Submit:
    return Submit(name, 1, [0] * prompt, prompt, output, Sampling())


def told(report: Report) -> dict[str, tuple[int, int]]:
    """Index of the first and number of the tokens of each row."""
    return {t.request_id: (t.index, len(t.ids)) for t in report.tokens}


def begun(*submits: Submit, **settings: Any) -> LeapingSimulation:
    model = LeapingSimulation(SimulatedSettings(**(COSTS | settings)))
    model.begin(submits)
    return model


def test_decoding_to_the_next_end_is_one_leap() -> None:
    model = begun(ask("a", 2, 4), ask("b", 3, 9))
    first_s, first = model.leap(**FOREVER)
    assert (first_s, first.steps, told(first)) == (1.2, 1, {"a": (0, 1), "b": (0, 1)})
    then_s, then = model.leap(**FOREVER)
    # Context 5, 7, 9 before each of three steps of two rows.
    assert then_s == pytest.approx(3 * 1.2 + 0.01 * (5 + 7 + 9))
    assert then.steps == 3
    assert then.sample is not None
    assert (then.sample.sequences, then.sample.decodes, then.sample.context_tokens) == (2, 2, 7)
    assert then.sample.duration_s == then_s
    assert told(then) == {"a": (1, 3)}
    assert then.finished == [Finished("a", 1, "length")]
    assert told(model.leap(**FOREVER)[1]) == {"b": (1, 8)}


def test_all_steps_begin_before_one_bound_and_end_by_the_other() -> None:
    settings: dict[str, Any] = {"b_s": 0.0, "c_s": 0.0}
    for bounds, steps in (
        ({"begin_within_s": 2.5}, 3),
        ({"begin_within_s": 3.0}, 3),
        ({"end_within_s": 2.5}, 2),
        ({"end_within_s": 3.0}, 3),
        ({"end_within_s": 0.5}, 1),
        ({"begin_within_s": 0.0}, 1),
    ):
        model = begun(ask("a", 1, 50), **settings)
        model.leap(**FOREVER)
        assert model.leap(**(FOREVER | bounds))[1].steps == steps, bounds


def test_tokens_are_told_when_asked_for() -> None:
    model = begun(ask("a", 1, 50), b_s=0.0, c_s=0.0)
    model.leap(**FOREVER)
    quiet = FOREVER | {"begin_within_s": 3.0, "tell_after_s": 3.5}
    assert told(model.leap(**quiet)[1]) == {}
    assert told(model.leap(**(quiet | {"tell_after_s": 3.0}))[1]) == {"a": (1, 6)}


def test_what_was_not_told_comes_with_the_acknowledgement_of_a_release() -> None:
    model = begun(ask("a", 1, 50), ask("b", 1, 50))
    model.leap(**FOREVER)
    model.leap(**(FOREVER | {"begin_within_s": 2.0}))
    model.release([Key("a", 1)])
    report = model.leap(**FOREVER)[1]
    assert (report.released, report.steps) == ([Key("a", 1)], 1)
    assert told(report) == {"a": (1, 2)}


def test_what_was_not_told_comes_with_the_word_that_a_row_is_given_back() -> None:
    model = begun(ask("a", 1, 50))
    model.leap(**FOREVER)
    model.leap(**(FOREVER | {"begin_within_s": 2.0}))
    model.inject(Fault("fail"))
    report = model.leap(**FOREVER)[1]
    assert [returned.request_id for returned in report.returned] == ["a"]
    assert told(report) == {"a": (1, 2)}


def test_a_leap_stops_where_memory_does() -> None:
    model = begun(ask("a", 2, 50), ask("b", 2, 3), kv_tokens=52)
    model.leap(**FOREVER)
    assert model.leap(**FOREVER)[1].steps == 2
    # One row of four tokens is left, and 48 tokens of memory.
    assert model.leap(**FOREVER)[1].steps == 47


def test_a_completion_ends_where_it_is_said_to() -> None:
    model = LeapingSimulation(SimulatedSettings(a_s=1.0), {"a": 3})
    model.begin([ask("a", 1, 50)])
    model.leap(**FOREVER)
    report = model.leap(**FOREVER)[1]
    assert (report.steps, report.finished) == (2, [Finished("a", 1, "stop")])


sizes = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=8)


@given(sizes, st.sampled_from(["E1", "E2", "E3"]), st.integers(1, 64), st.integers(70, 200))
def test_leaps_end_every_row_where_single_steps_do(
    asked: list[tuple[int, int]], kind: str, budget: int, memory: int
) -> None:
    settings = SimulatedSettings(
        **COSTS,
        jitter=0.2,
        max_step_tokens=64,
        kv_tokens=memory,
        runs_to_completion=kind == "E1",
        splits_prefill=kind == "E3",
    )
    submits = [ask(f"r{index}", *lengths) for index, lengths in enumerate(asked)]
    ends: list[dict[str, tuple[float, int, str]]] = []
    for model in (Simulation(settings), LeapingSimulation(settings)):
        model.limit(0, budget)
        model.begin(submits)
        now, made, ended = 0.0, dict.fromkeys((s.request_id for s in submits), 0), {}
        while model.has_work():
            if isinstance(model, LeapingSimulation):
                seconds, report = model.leap(**FOREVER)
            else:
                seconds, report = model.next_step()
            now += seconds
            for tokens in report.tokens:
                assert tokens.index == made[tokens.request_id]
                made[tokens.request_id] += len(tokens.ids)
            over = [(done.request_id, str(done.reason)) for done in report.finished]
            over += [(back.request_id, str(back.reason)) for back in report.returned]
            for name, reason in over:
                ended[name] = (round(now, 6), made[name], reason)
        ends.append(ended)
    assert ends[0] == ends[1]
