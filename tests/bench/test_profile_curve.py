from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.held_out import check, split
from bench.profile_curve import Mix, beyond, curve_of, table
from bench.profile_plot import CannotPlot, plot
from bench.profile_plot import check as check_plot
from bench.step_fit import cells_of
from executor.contract import StepSample
from tests.bench.profiled import CAPACITY, decode
from tests.controller.stage import model

# A step of 10 ms, and 1 ms for each row; a token of prompt is 0.1 ms.
MODEL = model(a=0.010, c=0.001, d=0.0001)
MIX = Mix(prompt=40, output=20)
WHOLE = msgspec.structs.replace(CAPACITY, runs_to_completion=True, splits_prefill=False)
APART = msgspec.structs.replace(CAPACITY, splits_prefill=False)


def test_a_row_that_is_done_costs_the_others_the_prompt_that_replaces_it() -> None:
    curve = curve_of(MODEL, CAPACITY, MIX)
    assert [point.size for point in curve.points] == [1, 2, 3, 4, 6, 8, 12, 16]
    eight = curve.points[5]
    assert eight.step_s == pytest.approx(0.018)
    assert eight.decoded_per_s == pytest.approx(8 / 0.018)
    # Of eight rows 0.4 end in a step, and each time a prompt takes 4 ms.
    assert eight.itl_s == pytest.approx(0.018 + 0.4 * 0.004)
    assert eight.tokens_per_s == pytest.approx(8 / 0.0196)


def test_where_prompts_are_steps_of_their_own_all_wait_for_them() -> None:
    eight = curve_of(MODEL, APART, MIX).points[5]
    assert eight.itl_s == pytest.approx(0.018 + 0.4 * (0.011 + 0.004))


def test_a_batch_that_runs_to_completion_lasts_as_long_as_its_steps() -> None:
    eight = curve_of(MODEL, WHOLE, MIX).points[5]
    assert eight.step_s == pytest.approx(0.018)
    assert 20 * eight.itl_s == pytest.approx(0.018 + 8 * 0.004 + 19 * 0.018)


def test_the_knee_is_where_throughput_over_latency_is_largest() -> None:
    """Of steps of `a + c n` it is at n = a / c, Kleinrock's point of half the throughput."""
    free = model(a=0.008, c=0.001)
    assert curve_of(free, CAPACITY, MIX).knee == 8
    curve = curve_of(model(a=0.100, c=0.001), CAPACITY, MIX)
    assert curve.knee is None
    assert table(curve).splitlines()[-1] == "no knee up to 16 rows: more at once would still pay"


def test_the_table_has_every_size_and_marks_the_knee() -> None:
    lines = table(curve_of(model(a=0.008, c=0.001), CAPACITY, MIX)).splitlines()
    assert lines[0].startswith("by batch size: decodes alone at a context of 50 tokens")
    assert [line.split()[0] for line in lines[5:-1]] == ["1", "2", "3", "4", "6", "8", "12", "16"]
    assert [line for line in lines if line.endswith("<- knee")] == [lines[10]]
    assert lines[10].split()[:6] == ["8", "16.00", "500.0", "16.00", "500.0", "25.00"]


def test_what_is_reckoned_beyond_what_was_measured_is_told() -> None:
    cells = cells_of([decode(rows, 0.01) for rows in (1, 4, 8)])
    curve = curve_of(MODEL, CAPACITY, MIX)
    assert beyond(curve, cells) == "beyond what was measured: more than 8 rows"
    long = curve_of(MODEL, CAPACITY, Mix(400, 20))
    assert beyond(long, cells) == (
        "beyond what was measured: more than 8 rows and a context of 100 tokens"
    )
    assert beyond(curve, cells_of([decode(16, 0.01)])) is None


def test_sizes_end_where_memory_does_and_lengths_where_a_sequence_must() -> None:
    assert curve_of(MODEL, CAPACITY, Mix(300, 500)).points[-1].size == 5
    assert Mix(3000, 1000).within(CAPACITY) == Mix(768, 256)
    assert Mix(600, 100).within(APART) == Mix(525, 87)
    assert Mix(3, 1).within(CAPACITY) == Mix(3, 1)


def test_a_picture_is_of_a_kind_that_is_known_and_the_same_each_time(tmp_path: Path) -> None:
    curve = curve_of(model(a=0.008, c=0.001), CAPACITY, MIX)
    for name in ("curve.svg", "again.svg"):
        check_plot(tmp_path / name)
        plot(curve, "a title", tmp_path / name)
    drawn = (tmp_path / "curve.svg").read_text()
    assert drawn == (tmp_path / "again.svg").read_text()
    assert "a title" in drawn
    assert "knee" in drawn
    with pytest.raises(CannotPlot, match=r"should end with \.svg or \.png"):
        check_plot(tmp_path / "curve.pdf")
    with pytest.raises(CannotPlot, match="there is no folder"):
        check_plot(tmp_path / "no" / "curve.svg")


def test_held_out_are_sizes_and_prompts_between_others_always_the_same() -> None:
    decodes = [decode(n, 0.010 + 0.001 * n) for n in (1, 2, 3, 4, 6, 8)]
    prompts = [(n, StepSample(0.011 + 1e-4 * n, 1, 0, 0, n, n * n)) for n in (8, 16, 32, 64, 128)]
    shown, held = split(cells_of([*decodes, *prompts]))
    assert [(c.shape.sequences, c.shape.prefill_tokens) for c in held] == [
        (2, 0),
        (4, 0),
        (1, 16),
    ]
    assert len(shown) == 8


def test_what_was_held_out_tells_a_fit_that_holds_from_one_that_does_not() -> None:
    good = [decode(n, 0.010 + 0.001 * n) for n in (1, 2, 3, 4, 6, 8)]
    found = check(cells_of(good))
    assert found is not None
    assert found.kinds == 2
    assert found.median == pytest.approx(0.0, abs=1e-4)
    # What the fit is not shown takes twice as long: it cannot know.
    worse = [
        decode(n, (2.0 if n in (2, 4) else 1.0) * (0.010 + 0.001 * n)) for n in (1, 2, 3, 4, 6, 8)
    ]
    found = check(cells_of(worse))
    assert found is not None
    assert found.median == pytest.approx(0.5, abs=1e-3)
    assert found.told().startswith("held out: 2 kinds of step, which a fit to the others tells")


def test_too_few_kinds_of_step_to_keep_some_back_are_told_as_such() -> None:
    assert check(cells_of([decode(1, 0.01), decode(2, 0.02)])) is None
