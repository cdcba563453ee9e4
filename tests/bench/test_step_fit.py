from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bench.probes import BLOCK, probes_of
from bench.profile_report import as_yaml, table
from bench.step_fit import NothingToFit, cells_of, fit
from controller.config_executors import SimulatedExecutor
from executor.contract import Capacity, StepSample
from tests.bench.profiled import ABOUT, CAPACITY


def decode(rows: int, duration_s: float, *, context: int = 100) -> tuple[int, StepSample]:
    return context, StepSample(duration_s, rows, rows, rows * context, 0, 0)


@given(
    max_seqs=st.integers(1, 300),
    max_step_tokens=st.integers(1, 9000),
    kv_tokens=st.integers(200, 100_000),
    max_context_tokens=st.integers(16, 9000),
    splits=st.booleans(),
    whole=st.booleans(),
)
def test_probes_stay_within_the_capacity(
    max_seqs: int,
    max_step_tokens: int,
    kv_tokens: int,
    max_context_tokens: int,
    splits: bool,
    whole: bool,
) -> None:
    capacity = Capacity(
        model="m",
        device="cpu",
        max_seqs=max_seqs,
        max_step_tokens=max_step_tokens,
        kv_tokens=kv_tokens,
        max_context_tokens=max_context_tokens,
        runs_to_completion=whole,
        splits_prefill=splits and not whole,
    )
    probes = probes_of(capacity)
    assert any(probe.new_tokens > 1 for probe in probes)
    for probe in probes:
        assert 1 <= probe.sizes[-1] <= probe.sizes[0] <= max_seqs
        assert list(probe.sizes) == sorted(set(probe.sizes), reverse=True)
        assert 1 <= probe.prompt <= max_context_tokens - probe.new_tokens
        assert probe.prompt + BLOCK <= kv_tokens
        if not capacity.splits_prefill:
            assert probe.prompt <= max_step_tokens
        if probe.new_tokens == 1:
            assert probe.prompt * probe.sizes[0] <= max_step_tokens


def test_the_first_step_of_a_kind_counts_only_where_it_is_alone() -> None:
    (cell,) = cells_of([decode(2, 9.0), decode(2, 1.0), decode(2, 3.0), decode(2, 2.0)])
    assert (cell.middle.duration_s, len(cell.samples)) == (2.0, 3)
    (alone,) = cells_of([decode(2, 9.0)])
    assert alone.middle.duration_s == 9.0


def test_the_knee_is_found_where_there_is_one_and_nowhere_else() -> None:
    sizes = (1, 2, 3, 4, 6, 8, 12, 16)
    straight = [decode(n, 0.01 + 0.001 * n, context=c) for n in sizes for c in (10, 300)]
    bent = [
        decode(n, 0.01 + 0.001 * n + 0.004 * max(0, n - 6), context=c)
        for n in sizes
        for c in (10, 300)
    ]
    found = fit(cells_of(straight)).estimate
    assert (found.knee, found.c_above) == (16, found.c)
    found = fit(cells_of(bent)).estimate
    assert found.knee == 6
    assert (found.c, found.c_above) == pytest.approx((0.001, 0.005), rel=1e-2)


def test_what_cannot_be_fitted_is_told() -> None:
    with pytest.raises(NothingToFit, match="give it more --seconds"):
        fit([])
    with pytest.raises(NothingToFit, match="a step of 2 rows and 0 prompt tokens takes no time"):
        fit(cells_of([decode(2, 0.0)]))


def test_the_table_has_what_was_measured_beside_what_is_fitted() -> None:
    steps = [decode(n, 0.010 + 0.001 * n) for n in (1, 2, 4) for _ in range(3)]
    prefill = (8, StepSample(0.022, 2, 0, 0, 16, 128))
    lines = table(fit(cells_of([*steps, prefill]))).splitlines()
    assert lines[0].split()[:2] == ["step", "measured,"]
    assert [line.split("  ")[0] for line in lines[2:6]] == [
        "decode 1 at 100",
        "decode 2 at 100",
        "decode 4 at 100",
        "prefill 2 x 8",
    ]
    assert lines[3].split()[4:9] == ["12.000", "12.000", "to", "12.000", "2"]
    assert lines[-1].startswith("all: 4 kinds of step, 0.0% in the median")


def test_the_file_holds_the_coefficients_with_their_units_and_says_where_they_are_from() -> None:
    steps = [decode(n, 0.010 + 0.0012345 * n, context=c) for n in (1, 2, 4) for c in (1, 9)]
    text = as_yaml(fit(cells_of(steps)), ABOUT)
    assert text.splitlines()[:2] == [
        "# Measured by `headway profile`: executor main (continuous, it's tiny) on cpu,",
        "# 2026-01-02 03:04 UTC, 6 steps in 6 s.",
    ]
    written = yaml.safe_load(text)
    assert (written["d"], written["e"], written["model"]) == (0, 0, "it's tiny")
    read = SimulatedExecutor.model_validate(written)
    assert (read.a, read.c) == pytest.approx((0.010, 0.0012345), rel=2e-3)
    assert (read.max_seqs, read.kv_tokens) == (CAPACITY.max_seqs, CAPACITY.kv_tokens)
    fast = replace(ABOUT, kind="simulated")
    tiny = [decode(n, 1e-9 * n, context=c) for n in (1, 2, 4) for c in (1, 9)]
    assert "c: 1ns" in as_yaml(fit(cells_of(tiny)), fast)
