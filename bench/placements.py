"""What the rules bring by which requests go to one of several executors that are not alike.

`python -m bench.placements` plays steady traffic in virtual time under static limits, with a rule
and without it, and prints tables: where requests go first, on two GPUs and an older one; and who
waits for another executor, on a GPU and a CPU. Three seeds of six minutes take two minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

import msgspec

from bench.case import Case, Contender, play
from bench.outcome import Outcome
from controller.config import Config
from controller.config_executors import SimulatedExecutor
from controller.config_load import load
from controller.forecast import Forecast
from controller.placing import Placing
from executor.contract import SimulatedSettings

CONFIG = Path(__file__).parents[1] / "configs" / "two-gpus-simulated.yaml"
LOADS = (0.2, 0.4, 0.6, 0.8)
STATIC = "static:B=32,T=2048"
# Of the ten minutes of the workload.
STRETCH = 0.6


@dataclass(frozen=True, slots=True)
class Row:
    """One load, one way: means over seeds. Times in seconds, of paid requests."""

    load: float
    name: str
    attainment: float
    paid: float
    ttft_p99_s: float
    itl_p99_s: float
    e2e_p50_s: float

    def told(self) -> str:
        """A line of the table."""
        return (
            f"| {self.load:g} | {self.name} | {self.attainment:.1%} | {self.paid:.1%} | "
            f"{self.ttft_p99_s:.2f} s | "
            f"{self.itl_p99_s * 1e3:.0f} ms | {self.e2e_p50_s:.1f} s |"
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, and the method without which it is not in force: that answers None instead."""

    question: str
    without: str
    within: str
    of: type
    method: str


FIRST = Rule(
    "whoever is next goes to", "least tokens", "shortest delay", of=Forecast, method="delay_s"
)
WAITS = Rule(
    "on the CPU are", "all", "whose promises it can keep", of=Placing, method="waits_until"
)


def executors(config: Config) -> dict[str, SimulatedSettings]:
    """The simulated executors of a configuration, by name."""
    return {
        one.name: msgspec.convert(one.settings(), SimulatedSettings)
        for one in config.executor_list()
        if isinstance(one, SimulatedExecutor)
    }


def gpu_and_cpu(config: Config) -> dict[str, SimulatedSettings]:
    """The first GPU, and a CPU in place of the older one: no step of it keeps 150 ms."""
    here = executors(config)
    cpu = msgspec.structs.replace(here["old"], a_s=0.16, c_s=0.01, d_s=0.002)
    return {"gpu-0": here["gpu-0"], "old": cpu}


def outcomes(
    rule: Rule,
    config: Config,
    settings: dict[str, SimulatedSettings],
    loads: Sequence[float],
    *,
    seeds: Sequence[int],
    stretch: float,
) -> list[Row]:
    """Without the rule and with it, at each load."""

    def run(at: float) -> list[Outcome]:
        return [
            play(_case(config, settings, load=at, seed=seed, stretch=stretch)) for seed in seeds
        ]

    rows = []
    for at in loads:
        with patch.object(rule.of, rule.method, lambda *_: None):
            rows.append(_row(at, rule.without, run(at)))
        rows.append(_row(at, rule.within, run(at)))
    return rows


def _case(
    config: Config,
    settings: dict[str, SimulatedSettings],
    *,
    load: float,
    seed: int,
    stretch: float,
) -> Case:
    policy = Contender.parse(STATIC)
    return Case(config, settings, "steady", policy, seed, load=load, stretch=stretch)


def _row(load: float, name: str, of: Sequence[Outcome]) -> Row:
    def mean(figure: Callable[[Outcome], float]) -> float:
        return fmean(figure(outcome) for outcome in of)

    def paid(metric: str, part: str) -> float:
        return mean(lambda outcome: getattr(getattr(outcome.tiers["paid"], metric), part))

    return Row(
        load,
        name,
        mean(lambda outcome: outcome.attainment or 0.0),
        mean(lambda outcome: outcome.tiers["paid"].attainment or 0.0),
        paid("ttft", "p99"),
        paid("itl", "p99"),
        paid("e2e", "p50"),
    )


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    config, seeds = load(CONFIG, env={}), range(1, args.seeds + 1)
    for rule, settings in ((FIRST, executors(config)), (WAITS, gpu_and_cpu(config))):
        print(f"| load | {rule.question} | within targets | paid | TTFT P99 | ITL P99 | E2E P50 |")
        print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
        for row in outcomes(rule, config, settings, LOADS, seeds=seeds, stretch=STRETCH):
            print(row.told(), flush=True)
        print()


if __name__ == "__main__":
    main()
