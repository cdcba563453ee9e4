"""How many times faster than real time the simulator plays a trace.

`python -m bench.speed TRACE.csv [--policy static:B=48,T=512] [--executor E3 ...] [--load 0.7 ...]
[--profile]` plays it once for each executor and load, in this process, reading and stretching the
trace included. It tells the processor's time, which other programs do not add to, and the wall's.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from dataclasses import dataclass

from bench.case import Case, Contender, play
from bench.outcome import WARM_UP_S
from bench.presets import executor_of
from bench.traces import Fitting
from bench.workloads import WORKLOADS
from controller.config import Config

EXECUTORS = ("E1", "E2", "E3")
LOADS = (0.5, 0.7, 0.9)
POLICY = "static:B=48,T=512"


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of traffic that were played, in so many seconds of processor and of wall time."""

    played_s: float
    processor_s: float
    wall_s: float


def case_of(workload: str, executor: str, *, load: float, policy: str = POLICY) -> Case:
    """One run, with the first seed."""
    executors, contender = {"main": executor_of(executor)}, Contender.parse(policy)
    if workload in WORKLOADS:
        return Case(Config(), executors, workload, contender, seed=1, load=load)
    return Case(Config(), executors, workload, contender, seed=1, fitting=Fitting(load=load))


def speed_of(case: Case) -> Speed:
    """Play it once. Raises BadTrace."""
    wall, processor = time.perf_counter(), time.process_time()
    window_s = play(case).window_s
    # What is left out of the window was played too.
    return Speed(window_s + WARM_UP_S, time.process_time() - processor, time.perf_counter() - wall)


def main() -> None:
    """Print a line for each executor and load; with `--profile`, where the time goes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", help="a trace, or the name of a workload")
    parser.add_argument("--policy", default=POLICY)
    parser.add_argument("--executor", nargs="*", default=EXECUTORS)
    parser.add_argument("--load", nargs="*", type=float, default=LOADS)
    parser.add_argument("--profile", action="store_true", help="print what takes most")
    words = parser.parse_args()
    profiler = cProfile.Profile() if words.profile else None
    print(f"{words.policy} on {words.workload}, times real time by processor (by wall)")
    for executor in words.executor:
        for load in words.load:
            case = case_of(words.workload, executor, load=load, policy=words.policy)
            if profiler is not None:
                profiler.runcall(play, case)
                continue
            found = speed_of(case)
            print(
                f"{executor} load {load:g}: {found.played_s / found.processor_s:5.0f}"
                f" ({found.played_s / found.wall_s:.0f}), {found.played_s:.0f} s"
                f" in {found.processor_s:.2f} s ({found.wall_s:.2f} s)",
                flush=True,
            )
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
