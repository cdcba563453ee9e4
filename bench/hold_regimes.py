"""Whether holding for company by gain is as good as the best fixed wait, regime by regime.

`python -m bench.hold_regimes [--seeds N] [--size B]` prints a table. The executor runs batches to
completion in 80 ms and 2 ms for each member, 3 % jitter. Open loops are judged by mean latency,
closed ones by requests per second; the best fixed wait is picked in hindsight, on the same seeds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from bench.arrivals import Arrival, Clients, Workload
from bench.campaign import Ratio, cores, paired
from bench.journal import Journal
from bench.lengths import Lengths
from bench.simulator import Rules, Simulator
from bench.workloads import Phase, arrivals
from controller.config_control import ControlConfig, EnvelopeConfig, LimitsConfig, PolicyConfig
from controller.core import build_core
from controller.hold import HoldRule
from controller.tiers import Tier
from executor.contract import SimulatedSettings

SETTINGS = SimulatedSettings(runs_to_completion=True, a_s=0.080, c_s=0.002, jitter=0.03)
# One token in, one out: then a batch is one step.
ONE = Lengths("one", 1, 0, 1, 0)
TIER = Tier("all", 0)
FIXED_S = (0.0, 0.001, 0.002, 0.005, 0.010, 0.020, 0.040, 0.050)
# By gain W is but a bound: the largest that the default envelope allows.
MOST_S = FIXED_S[-1]
# Of a run's beginning so much is left out.
WARM_UP = 0.1

Make = Callable[[float, int], Workload]


def poisson(rate: float, duration_s: float, seed: int) -> Workload:
    """Arrivals that know nothing of each other, so many per second."""
    phase = Phase(duration_s, rate, ONE, tiers={TIER.name: 1.0})
    return Workload("poisson", duration_s, tuple(arrivals([phase], seed)))


def bursts(size: int, spread_s: float, duration_s: float, seed: int) -> Workload:
    """Bursts at the instants of a Poisson process, one per second; members within `spread_s`."""
    drawn, now = random.Random(f"{seed}/bursts"), 0.0
    times: list[float] = []
    while (now := now + drawn.expovariate(1.0)) < duration_s:
        times += [now + spread_s * drawn.random() for _ in range(size)]
    made = tuple(Arrival(time_s, TIER.name, 1, 1) for time_s in sorted(times))
    return Workload("bursts", duration_s, made)


def clients(count: int, think_s: float, duration_s: float, seed: int) -> Workload:
    """Clients who wait for their answer, then think (exponential)."""
    return Workload("clients", duration_s, (), (Clients(TIER.name, count, think_s, ONE),))


REGIMES: Mapping[str, Make] = MappingProxyType(
    {f"poisson {rate}/s": partial(poisson, rate) for rate in (5, 20, 60, 150)}
    | {
        f"bursts of 8 {how}": partial(bursts, 8, spread_s)
        for how, spread_s in (("at once", 0.0), ("in 5 ms", 0.005), ("in 20 ms", 0.020))
    }
    | {
        f"{count} clients, think {think_ms} ms": partial(clients, count, think_ms / 1e3)
        for count in (4, 16)
        for think_ms in (5, 20, 200)
    }
)


class Run(NamedTuple):
    """One run: a regime, the rule, W in seconds, B."""

    regime: str
    rule: HoldRule
    wait_s: float
    size: int
    seed: int
    duration_s: float


def play(run: Run) -> float:
    """Mean latency in seconds of an open loop, requests per second of a closed one."""
    workload, journal = REGIMES[run.regime](run.duration_s, run.seed), Journal()
    wait_s, size = run.wait_s, run.size
    core = build_core(
        (TIER,),
        {"e": "default"},
        limits=LimitsConfig(max_batch_size=size, max_batch_tokens=2048, wait_timeout=wait_s),
        envelope=EnvelopeConfig(max_batch_size=(size, size), wait_timeout=(wait_s, wait_s)),
        control=ControlConfig(policy=PolicyConfig(type="static"), hold=run.rule),
        listeners=(journal,),
        started=0.0,
        stopwatch=lambda: 0.0,
    )
    tiers = {TIER.name: TIER}
    Simulator(core, {"e": SETTINGS}, tiers, workload, journal, Rules(), run.seed).run()
    since = WARM_UP * run.duration_s
    if workload.clients:
        ended = sum(since <= fate.ended_s < run.duration_s for fate in journal.fates)
        return ended / (run.duration_s - since)
    return statistics.fmean(f.ended_s - f.arrival_s for f in journal.fates if f.arrival_s >= since)


class Row(NamedTuple):
    """A regime: geometric means over seeds without a hold, with the best fixed wait, by gain.

    `ratio` is gain against the best, above 1 where gain is better.
    """

    regime: str
    closed: bool
    without: float
    best_s: float
    best: float
    gain: float
    ratio: Ratio


def compare(
    regimes: Sequence[str],
    *,
    seeds: Sequence[int],
    size: int = 64,
    duration_s: float = 120.0,
    fixed_s: Sequence[float] = FIXED_S,
    jobs: int = 1,
) -> list[Row]:
    """Play all regimes with every wait, and by gain."""
    rules: list[tuple[HoldRule, float]] = [("fixed", wait_s) for wait_s in fixed_s]
    rules.append(("join_gain", MOST_S))
    runs = [
        Run(regime, rule, wait_s, size, seed, duration_s)
        for regime in regimes
        for rule, wait_s in rules
        for seed in seeds
    ]
    if jobs > 1:
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=fresh) as pool:
            played = dict(zip(runs, pool.map(play, runs, chunksize=8), strict=True))
    else:
        played = {run: play(run) for run in runs}

    def values(regime: str, rule: HoldRule, wait_s: float) -> list[float]:
        return [played[Run(regime, rule, wait_s, size, seed, duration_s)] for seed in seeds]

    rows = []
    for regime in regimes:
        closed = "clients" in regime
        by_wait = {wait_s: values(regime, "fixed", wait_s) for wait_s in fixed_s}
        means = {wait_s: statistics.geometric_mean(found) for wait_s, found in by_wait.items()}
        best_s = (max if closed else min)(means, key=lambda wait_s: means[wait_s])
        gain, best = values(regime, "join_gain", MOST_S), by_wait[best_s]
        ratio = paired(gain, best) if closed else paired(best, gain)
        assert ratio is not None
        mean = statistics.geometric_mean(gain)
        rows.append(Row(regime, closed, means[0.0], best_s, means[best_s], mean, ratio))
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.hold_regimes", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--size", type=int, default=64, help="B, max_batch_size")
    given = parser.parse_args()
    rows = compare(list(REGIMES), seeds=range(1, given.seeds + 1), size=given.size, jobs=cores())
    print("| regime | W = 0 | best fixed W | with it | by gain | by gain against the best |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for row in rows:
        scale, unit = (1.0, "/s") if row.closed else (1e3, " ms")
        figures = [f"{value * scale:.1f}{unit}" for value in (row.without, row.best, row.gain)]
        low, high = row.ratio.low, row.ratio.high
        between = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
        print(
            f"| {row.regime} | {figures[0]} | {row.best_s * 1e3:.0f} ms | {figures[1]} "
            f"| {figures[2]} | {row.ratio.mean:.3f}{between} |"
        )


if __name__ == "__main__":
    main()
