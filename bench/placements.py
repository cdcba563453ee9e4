"""What it brings that requests go where they will be done first, not where the least tokens are.

`python -m bench.placements` plays steady traffic on two GPUs and an older one (static limits), both
ways, in virtual time, and prints a table. Three seeds of six minutes take a minute.
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
    ttft_p99_s: float
    itl_p99_s: float
    e2e_p50_s: float

    def told(self) -> str:
        """A line of the table."""
        return (
            f"| {self.load:g} | {self.name} | {self.attainment:.1%} | {self.ttft_p99_s:.2f} s | "
            f"{self.itl_p99_s * 1e3:.0f} ms | {self.e2e_p50_s:.1f} s |"
        )


def outcomes(loads: Sequence[float], seeds: Sequence[int], *, stretch: float) -> list[Row]:
    """Both ways at each load."""
    config = load(CONFIG, env={})
    settings = {
        one.name: msgspec.convert(one.settings(), SimulatedSettings)
        for one in config.executor_list()
        if isinstance(one, SimulatedExecutor)
    }

    def run(at: float) -> list[Outcome]:
        return [
            play(_case(config, settings, load=at, seed=seed, stretch=stretch)) for seed in seeds
        ]

    rows = []
    for at in loads:
        # Where no delay is known tokens alone count.
        with patch.object(Forecast, "delay_s", lambda self, seats, request: None):
            rows.append(_row(at, "least tokens", run(at)))
        rows.append(_row(at, "shortest delay", run(at)))
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
        paid("ttft", "p99"),
        paid("itl", "p99"),
        paid("e2e", "p50"),
    )


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    print("| load | whoever is next goes to | within targets | TTFT P99 | ITL P99 | E2E P50 |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for row in outcomes(LOADS, range(1, args.seeds + 1), stretch=STRETCH):
        print(row.told())


if __name__ == "__main__":
    main()
