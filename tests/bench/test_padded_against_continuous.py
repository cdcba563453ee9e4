"""Three ways of batching one line: what each does is measured alike, and the bound is exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.batching_bound import Ideal, StepTimes
from bench.batching_drive import Ask, Clock, drive, lengths
from bench.padded_against_continuous import (
    CONTINUOUS,
    EARLY,
    IDEAL,
    OLD,
    Plan,
    Sides,
    load,
    table,
)
from executor.contract import StepSample
from tests.executor.engine_driver import prompt
from tests.tiny_model import build


def ask(time_s: float, prompt_tokens: int, new: int) -> Ask:
    return Ask(time_s, [5] * prompt_tokens, new)


def test_the_bound_takes_every_seat_at_the_next_step() -> None:
    """Steps of 1 s and 0.1 s more a row, 0.01 s a prompt token; two seats for three requests."""
    ideal = Ideal(lambda size: 1.0 + 0.1 * size, 0.01)
    asked = [ask(0.0, 10, 1), ask(0.0, 10, 3), ask(0.0, 5, 2)]
    played = drive(ideal, asked, seats=2, step_tokens=512, joins=True, clock=ideal)
    assert played.ended_s == pytest.approx([1.4, 3.85, 3.85])
    assert played.written_s == played.ended_s
    # Nobody waits any more once the first seat is taken again.
    assert played.fed_s == pytest.approx(1.4)
    assert played.fed_tokens == 2
    assert played.response_s == pytest.approx((1.4 + 3.85 + 3.85) / 3)


def test_without_joining_a_batch_waits_for_the_one_before() -> None:
    ideal = Ideal(lambda size: 1.0, 0.0)
    asked = [ask(0.0, 1, 1), ask(0.0, 1, 3), ask(0.0, 1, 2), ask(9.0, 1, 1)]
    played = drive(ideal, asked, seats=2, step_tokens=512, joins=False, clock=ideal)
    assert played.ended_s == [1.0, 3.0, 5.0, 10.0]
    assert (played.fed_s, played.fed_tokens) == (9.0, 6)


def test_throughput_is_measured_until_nobody_waits() -> None:
    """The last one would take the second seat at 1.0, after two tokens."""
    ideal = Ideal(lambda size: 1.0, 0.0)
    asked = [ask(0.0, 1, 1), ask(0.0, 1, 3), ask(0.0, 1, 2)]
    played = drive(ideal, asked, seats=2, step_tokens=512, joins=True, clock=ideal, fed_only=True)
    assert (played.tokens_per_s, played.fed_s) == (2.0, 1.0)
    assert played.ended_s == [1.0, 0.0, 0.0]
    assert not ideal.has_work()


def test_lengths_are_those_recorded_evenly_and_scaled() -> None:
    found = lengths(range(1, 1001), 10, mean=48.0, seed="a")
    assert sorted(found) == [5, 14, 24, 34, 43, 53, 62, 72, 82, 91]
    assert found != lengths(range(1, 1001), 10, mean=48.0, seed="b")


def test_a_size_that_was_not_seen_takes_what_its_neighbours_say() -> None:
    def decode(size: int, seconds: float, prefill: int = 0) -> StepSample:
        return StepSample(seconds, size, size, 0, prefill, 0)

    times = StepTimes(
        [decode(2, 1.0), decode(2, 3.0), decode(2, 1.2), decode(4, 2.2), decode(4, 9.9, prefill=1)]
    )
    assert [times(size) for size in (1, 2, 3, 4, 9)] == pytest.approx([1.2, 1.2, 1.7, 2.2, 2.2])


def test_all_sides_serve_the_same_line_of_a_real_model(tmp_path: Path) -> None:
    plan = Plan(seats=3, batches=1, arrivals=3, load=0.8, mean=6.0)
    asked = [prompt(i, 5 + i) for i in range(4)]
    engines = load(str(build(tmp_path / "tiny")), plan)
    sides = Sides(engines, asked, [2, 9, 30], plan)
    told: list[str] = []
    sides.round(0, told.append)
    assert [text.split(":")[0] for text in told] == [
        f"round 1, {name}" for name in (OLD, EARLY, CONTINUOUS, IDEAL)
    ]
    rows = table(sides).splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == [
        f"| {name}" for name in (OLD, EARLY, CONTINUOUS, IDEAL, "often quoted")
    ]
    assert sides.found[EARLY].text_s == sides.found[EARLY].response_s
    assert rows[2].count("1.000") == 1
    # In the old way a text is there before anybody is told that it is over.
    both = [Ask(0.0, asked[0], 2), Ask(0.0, asked[1], 9)]
    old = drive(engines[OLD], both, seats=3, step_tokens=64, joins=False, clock=Clock())
    assert old.written_s[0] < old.written_s[1] == old.ended_s[0] == old.ended_s[1]
