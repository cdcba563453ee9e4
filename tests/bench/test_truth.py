"""What the simulator predicts is held against what real engines did."""

from __future__ import annotations

import time

import pytest

from bench.case import Case, Contender, play
from bench.presets import executor_of
from bench.traces import Fitting
from bench.truth import compare, read_log
from controller.config import Config
from tests.bench.published import TRACES

pytestmark = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the published traces are not there (HEADWAY_TRACES)"
)


def test_a_log_of_vllm_is_predicted_from_its_first_half_within_15_percent() -> None:
    name = "vllm019_llama31_8b_rtx4090"
    served, gauges = read_log(TRACES / f"{name}_sharegpt300.csv", TRACES / f"{name}_timeseries.csv")
    errors = {one.name: one.error for one in compare(served, gauges)}
    assert set(errors) == {f"{what} p{p}" for what in ("TTFT", "TPOT", "E2E") for p in (50, 90)}
    assert max(abs(error) for error in errors.values()) < 0.15, errors


def test_chat_as_azure_recorded_it_is_played_far_faster_than_it_was() -> None:
    case = Case(
        Config(),
        {"main": executor_of("E3")},
        str(TRACES / "azure_llm_2023_conv.csv"),
        Contender.parse("static:B=48,T=512"),
        seed=1,
        fitting=Fitting(load=0.7, limit_s=900.0),
    )
    # What it costs, not how long it takes: other programs may have the processor meanwhile.
    begun = time.process_time()
    outcome = play(case)
    assert outcome.window_s == 840.0
    # Reading and stretching the whole trace is part of it.
    assert 900.0 / (time.process_time() - begun) > 500
