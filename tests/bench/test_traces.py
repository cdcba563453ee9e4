from __future__ import annotations

from pathlib import Path

import pytest

from bench.presets import executor_of
from bench.traces import BadTrace, Fitting, Line, read, replay
from bench.workloads import Scene
from executor.contract import SimulatedSettings

E3 = executor_of("E3")
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
MOONCAKE = """{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46]}
{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": []}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text)
    return path


def test_azures_traces_are_read_to_the_tenth_of_a_microsecond(tmp_path: Path) -> None:
    first, second = read(written(tmp_path, AZURE))
    assert (first.prompt, first.output, first.tier) == (4808, 10, None)
    assert round(second.time_s - first.time_s, 6) == 0.052


def test_mooncakes_traces_are_read_and_put_in_order(tmp_path: Path) -> None:
    assert read(written(tmp_path, MOONCAKE)) == [Line(0.0, 100, 5), Line(27.482, 6955, 52)]


def test_our_own_records_are_read_with_tiers(tmp_path: Path) -> None:
    text = "arrival_s,tier,prompt_tokens,output_tokens\n7.5,paid,3,4\n"
    assert read(written(tmp_path, text)) == [Line(7.5, 3, 4, "paid")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("when,what\n1,2\n", r":1: the header should begin with TIMESTAMP or arrival_s, not"),
        ("arrival_s,tier,prompt_tokens,output_tokens\nsoon,paid,3,4\n", r":2: ValueError"),
        ("arrival_s,tier,prompt_tokens,output_tokens\n", "holds no request"),
        ('{"timestamp": 1}\n', r":1: KeyError: 'input_length'"),
    ],
)
def test_a_bad_trace_is_told_where_and_why(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(BadTrace, match=told):
        read(written(tmp_path, text))


def test_a_trace_is_stretched_to_the_load_and_never_thinned() -> None:
    settings = SimulatedSettings(a_s=0.1, max_seqs=4, kv_tokens=10_000)
    lines = [Line(50.0 + index, 10, 10) for index in range(21)]
    # Load 1 would be 4 requests a second.
    scene = Scene(settings, 0.5, 1)
    workload = replay("t", lines, scene, Fitting(load=0.5))
    assert len(workload.arrivals) == 21
    assert workload.arrivals[0].time_s == 0.0
    mean_rate = 21 / workload.duration_s
    assert mean_rate == pytest.approx(0.5 * 4.0 * (0.1 * 0.1 / 0.01), rel=0.01)


def test_without_a_load_a_trace_goes_as_fast_as_it_was_recorded() -> None:
    lines = [Line(50.0, 10, 10, "paid"), Line(53.5, 10, 10, "free")]
    workload = replay("t", lines, Scene(E3, 1.0, 1), Fitting())
    assert [(a.time_s, a.tier) for a in workload.arrivals] == [(0.0, "paid"), (3.5, "free")]


def test_jitter_moves_arrivals_by_seed_and_keeps_their_order() -> None:
    lines = [Line(float(index), 10, 10) for index in range(50)]
    made = [
        [a.time_s for a in replay("t", lines, Scene(E3, 1.0, seed), Fitting(jitter_s=2.0)).arrivals]
        for seed in (1, 1, 2)
    ]
    assert made[0] == made[1] != made[2]
    assert made[0] == sorted(made[0])
    # The last ones may have moved beyond the end.
    assert all(abs(time - index) < 5 for index, time in enumerate(made[0]))


def test_prompts_are_clipped_to_what_the_executor_can_hold() -> None:
    settings = SimulatedSettings(max_context_tokens=100, kv_tokens=1000, max_step_tokens=50)
    lines = [Line(0.0, 5000, 30), Line(1.0, 5, 500)]
    made = replay("t", lines, Scene(settings, 1.0, 1), Fitting()).arrivals
    assert [(a.prompt, a.output) for a in made] == [(70, 30), (1, 99)]
    whole = SimulatedSettings(
        max_context_tokens=100, kv_tokens=1000, max_step_tokens=50, splits_prefill=False
    )
    assert replay("t", lines, Scene(whole, 1.0, 1), Fitting()).arrivals[0].prompt == 50


def test_sizes_that_never_were_known_are_drawn_from_the_same_tier() -> None:
    lines = [
        Line(0.0, 10, 20, "paid"),
        Line(1.0, 1000, 200, "free"),
        Line(2.0, None, None, "paid", whole=False),
        Line(3.0, 700, 30, "free", whole=False),
    ]
    made = replay("t", lines, Scene(E3, 1.0, 1), Fitting()).arrivals
    assert [(a.prompt, a.output) for a in made[2:]] == [(10, 20), (700, 200)]


def test_only_so_much_of_a_trace_is_played_as_was_asked_for() -> None:
    lines = [Line(float(index), 10, 10) for index in range(50)]
    workload = replay("t", lines, Scene(E3, 1.0, 1), Fitting(limit_s=9.5))
    assert (workload.duration_s, len(workload.arrivals)) == (9.5, 10)


def test_a_record_tells_who_asked_and_who_was_turned_away_is_one_of_those(tmp_path: Path) -> None:
    text = (
        "arrival_s,tier,prompt_tokens,output_tokens,asked_tokens,outcome,client\n"
        "1,paid,3,4,,finished,7\n"
        "2,free,3,4,,finished,9\n"
        "3,paid,,,,rejected,\n"
        "4,offline,3,4,,finished,\n"
    )
    lines = read(written(tmp_path, text))
    assert [line.key for line in lines] == [7, 9, None, None]
    made = replay("t", lines, Scene(E3, 1.0, 1), Fitting()).arrivals
    assert [(a.tier, a.key) for a in made] == [
        ("paid", 7),
        ("free", 9),
        ("paid", 7),
        ("offline", 0),
    ]
