"""What a tick of the control loop costs: signals, policy, guard, by a real stopwatch.

`python -m bench.tick_cost [--policy TYPE]` prints mean and 99th percentile in milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bench.case import Contender, simulator_of
from bench.evaluate_field import DEFAULT
from bench.evaluation import Setting, sides
from bench.outcome import quantile
from controller.config_load import load
from controller.records import HORIZON_S

CONFIG = Path(__file__).parents[1] / "configs" / "evaluation.yaml"
# Near what is served in time: queues, and every window full.
UNDER_LOAD = Setting("E3", "steady", 0.9, 0.5)


@dataclass(frozen=True, slots=True)
class TickCost:
    """Of so many ticks."""

    ticks: int
    mean_ms: float
    p99_ms: float


def tick_cost(policy: str, setting: Setting = UNDER_LOAD) -> TickCost:
    """Play in this process and time every tick from when the windows are full.

    Three tiers, an executor that prefills in chunks, samples of a minute in each window.
    """
    config = load(CONFIG, env={})
    kept = config.control.model_copy(update={"history": 100_000})
    *_, queues = sides(config.model_copy(update={"control": kept}))
    case = setting.case(queues, Contender.parse(policy), 1)
    simulator = simulator_of(case, stopwatch=time.perf_counter)
    simulator.run()
    (loop,) = simulator.core.loops.values()
    full_s = min(HORIZON_S, simulator.workload.duration_s / 2)
    took = [one.duration_s * 1e3 for one in loop.decisions if one.at >= full_s]
    return TickCost(len(took), statistics.fmean(took), quantile(took, 0.99))


def main() -> None:
    """Print what a tick costs."""
    parser = argparse.ArgumentParser(prog="bench.tick_cost", description=__doc__)
    parser.add_argument("--policy", default=DEFAULT)
    parser.add_argument("--stretch", type=float, default=UNDER_LOAD.stretch)
    args = parser.parse_args()
    cost = tick_cost(args.policy, replace(UNDER_LOAD, stretch=args.stretch))
    print(
        f"{args.policy}: {cost.ticks} ticks, mean {cost.mean_ms:.3f} ms, P99 {cost.p99_ms:.3f} ms"
    )


if __name__ == "__main__":
    main()
