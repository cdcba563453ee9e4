from __future__ import annotations

import statistics
from itertools import pairwise

import msgspec
import pytest

from bench.capacity import fluid_rate
from bench.case import Case, Contender, play
from bench.lengths import CHAT, CODE
from bench.presets import UnknownExecutor, executor_of, names
from bench.workloads import WORKLOADS, Scene
from controller.config import Config
from executor.contract import SimulatedSettings

E2 = executor_of("E2")


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_the_same_for_the_same_seed_and_another_for_another(name: str) -> None:
    made = [WORKLOADS[name].make(Scene(E2, 0.7, seed, stretch=0.1)) for seed in (1, 1, 2)]
    assert made[0] == made[1]
    assert made[0].arrivals != made[2].arrivals or name == "closed"
    times = [arrival.time_s for arrival in made[0].arrivals]
    assert times == sorted(times)
    assert all(0 <= time < made[0].duration_s for time in times)
    context = E2.max_context_tokens
    assert all(a.prompt >= 1 and a.prompt + a.output <= context for a in made[0].arrivals)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("kind", ["E1", "E2", "E3"])
def test_every_workload_is_served_by_every_kind_of_executor(name: str, kind: str) -> None:
    case = Case(
        Config(), {"main": executor_of(kind)}, name, Contender.parse("aimd"), seed=1,
        load=0.5, stretch=0.05,
    )  # fmt: skip
    outcome = play(case)
    made = WORKLOADS[name].make(Scene(executor_of(kind), 0.5, 1, stretch=0.05))
    since = made.duration_s - outcome.window_s
    known = sum(arrival.time_s >= since for arrival in made.arrivals)
    told = sum(tier.offered + tier.undecided for tier in outcome.tiers.values())
    assert told > known if made.clients else told == known


def test_load_one_is_what_the_executor_could_serve_if_it_were_never_idle() -> None:
    settings = SimulatedSettings(a_s=0.1, max_seqs=4, kv_tokens=10_000)
    # A step of 0.1 s for four rows, ten steps a request.
    assert fluid_rate(settings, [(10, 10)], itl_s=1.0) == pytest.approx(4.0)
    # A batch of four takes as long as its longest.
    whole = SimulatedSettings(a_s=0.1, max_seqs=4, kv_tokens=10_000, runs_to_completion=True)
    assert fluid_rate(whole, [(10, 10)]) == pytest.approx(4.0)


def test_a_step_of_load_is_four_tenths_then_twelve_then_four() -> None:
    workload = WORKLOADS["step"].make(Scene(E2, 1.0, 1, stretch=4.0))
    counts = [0, 0, 0]
    for arrival in workload.arrivals:
        counts[int(arrival.time_s // (workload.duration_s / 3))] += 1
    assert counts[1] / counts[0] == pytest.approx(3.0, rel=0.1)
    assert counts[1] / counts[2] == pytest.approx(3.0, rel=0.1)
    assert workload.changes == (1200.0, 2400.0)


def test_bursts_have_the_variation_in_their_name() -> None:
    for name, cv in (("steady", 1.0), ("bursts-2", 2.0)):
        workload = WORKLOADS[name].make(Scene(E2, 1.0, 1, stretch=4.0))
        gaps = [b.time_s - a.time_s for a, b in pairwise(workload.arrivals)]
        assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(cv, rel=0.1)


def test_the_flood_is_tenfold_free_traffic_for_a_minute_and_leaves_the_rest_alone() -> None:
    scene = Scene(E2, 0.6, 1)
    calm, flood = WORKLOADS["steady"].make(scene), WORKLOADS["flood"].make(scene)
    added = set(flood.arrivals) - set(calm.arrivals)
    assert set(calm.arrivals) <= set(flood.arrivals)
    assert {arrival.tier for arrival in added} == {"free"}
    assert 240.0 <= min(a.time_s for a in added) < max(a.time_s for a in added) < 300.0
    free = sum(a.tier == "free" for a in calm.arrivals) / 10
    assert (len(added) + free) / free == pytest.approx(10, rel=0.2)


def test_tiers_are_drawn_three_five_two() -> None:
    made = WORKLOADS["diurnal"].make(Scene(E2, 1.0, 1)).arrivals
    shares = [sum(a.tier == tier for a in made) / len(made) for tier in ("paid", "free", "offline")]
    assert shares == pytest.approx([0.3, 0.5, 0.2], abs=0.02)


def test_lengths_are_like_those_of_the_traces() -> None:
    for lengths, prompt, output in ((CHAT, 1155, 211), (CODE, 2048, 28)):
        sample = lengths.sample(20_000)
        assert statistics.fmean(p for p, _ in sample) == pytest.approx(prompt, rel=0.15)
        assert statistics.fmean(o for _, o in sample) == pytest.approx(output, rel=0.2)


@pytest.mark.parametrize("name", names())
def test_every_preset_is_an_executor(name: str) -> None:
    settings = executor_of(name)
    assert settings.runs_to_completion == name.endswith("E1")
    assert settings.splits_prefill == name.endswith("E3")
    assert settings.a_s > settings.c_s > settings.b_s > 0


def test_an_unknown_executor_is_told_what_there_is() -> None:
    with pytest.raises(UnknownExecutor, match=r"no executor 'E4': there are E1, E2, E3, opt-13b"):
        executor_of("E4")


def test_load_is_relative_to_what_executors_that_differ_serve_together() -> None:
    times = ("a_s", "b_s", "c_s", "c_above_s", "d_s", "e_s")
    slow = msgspec.structs.replace(E2, **{key: 4 * getattr(E2, key) for key in times})
    alone = Scene(E2, 0.5, 1).rate(CHAT)
    assert Scene(E2, 0.5, 1, (E2,)).rate(CHAT) == pytest.approx(2 * alone)
    assert alone < Scene(E2, 0.5, 1, (slow,)).rate(CHAT) < 1.3 * alone
