"""The best fixed limits in hindsight, and the load that they still serve: what is to be beaten.

`python -m bench.best_static --executor E2 --workload alternating --queue fifo`
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.campaign import Cache, cores, default_cache, run_all
from bench.case import Case, Contender, fitted
from bench.presets import executor_of
from bench.workloads import WORKLOADS
from controller.config import Config
from executor.contract import SimulatedSettings

Pair = tuple[int, int]
Run = Callable[[Sequence[Case]], Sequence[tuple[float, float]]]

SIZES = (12, 24, 48, 96, 192)
TOKENS = (256, 512, 1024, 2048)
# Limits are chosen on other traffic than they are reported on.
SEEDS = (101, 102, 103)
SERVED = 0.9
_FINER = (0.7, 1.4)
# So many of a grid are played in full; which, is told by shorter runs on one seed.
KEPT = 3
_SCREEN = 0.5


@dataclass(frozen=True, slots=True)
class Best:
    """The best limits, and what they came to in the mean of the seeds."""

    contender: Contender
    goodput: float
    attainment: float

    def rank(self) -> tuple[float, int, int]:
        """Higher is better. Of limits that are as good the widest: what never binds here is not to
        bind where there is more traffic either."""
        return self.goodput, self.contender.size or 0, self.contender.tokens or 0


def limits(size: int, tokens: int, *, fifo: bool) -> Contender:
    """`static` with these limits, held for nobody."""
    size = max(1, size)
    tokens = max(tokens, size)
    queue = ",queue=fifo" if fifo else ""
    return Contender.parse(f"static:B={size},T={tokens},W=0{queue}")


class Grid:
    """What was looked at of a case under fixed limits, in one kind of queue.

    `splits`: whether T matters (prompts in chunks); else it is left wide. `run` answers goodput and
    attainment of cases.
    """

    def __init__(
        self, like: Case, *, fifo: bool, splits: bool, seeds: Sequence[int] = SEEDS, run: Run
    ) -> None:
        self._like = like
        self._fifo = fifo
        self._splits = splits
        self._seeds = seeds
        self._run = run
        self._known: dict[Pair, Best] = {}

    def screen(self, kept: int = KEPT) -> list[Pair]:
        """The most promising pairs of the whole grid, best first: on one seed, in shorter runs."""
        tokens = TOKENS if self._splits else TOKENS[-1:]
        pairs = [(size, budget) for size in SIZES for budget in tokens]
        like = replace(self._like, stretch=_SCREEN * self._like.stretch)
        goodput = self._play(like, pairs, self._seeds[:1])
        best = sorted(goodput, key=lambda pair: goodput[pair].rank(), reverse=True)
        return best[:kept]

    def look(self, pairs: Sequence[Pair]) -> Best:
        """The best of all that was played in full, these included."""
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self._known]
        self._known |= self._play(self._like, new, self._seeds)
        return max(self._known.values(), key=Best.rank)

    def finer(self, best: Best) -> list[Pair]:
        """The neighbours of a pair, nearer than the grid's."""
        size, budget = best.contender.size or 1, best.contender.tokens or 1
        seats = min(settings.max_seqs for settings in self._like.executors.values())
        near = [(min(seats, round(size * factor)), budget) for factor in _FINER]
        if self._splits:
            near += [(size, round(budget * factor)) for factor in _FINER]
        return near

    def _play(self, like: Case, pairs: Sequence[Pair], seeds: Sequence[int]) -> dict[Pair, Best]:
        contenders = [limits(*pair, fifo=self._fifo) for pair in pairs]
        cases = [replace(like, contender=c, seed=seed) for c in contenders for seed in seeds]
        found = self._run(cases)
        played = {}
        for index, (pair, contender) in enumerate(zip(pairs, contenders, strict=True)):
            mine = found[index * len(seeds) : (index + 1) * len(seeds)]
            goodput = sum(one[0] for one in mine) / len(seeds)
            attainment = sum(one[1] for one in mine) / len(seeds)
            played[pair] = Best(contender, goodput, attainment)
        return played


def best_static(
    like: Case, *, fifo: bool, splits: bool, seeds: Sequence[int] = SEEDS, run: Run
) -> Best:
    """Search B and T coarse to fine for the most goodput of a case on these seeds; see `Grid`."""
    grid = Grid(like, fifo=fifo, splits=splits, seeds=seeds, run=run)
    return grid.look(grid.finer(grid.look(grid.screen())))


def served_load(search: Callable[[float], Best], *, low: float = 0.4, high: float = 1.4) -> float:
    """The highest load (to 0.02) at which the best static still serves 90 % within target.

    Above it attainment falls, so it is found by halving.
    """
    while high - low > 0.02:
        middle = (low + high) / 2
        if search(middle).attainment >= SERVED:
            low = middle
        else:
            high = middle
    return low


def main() -> None:
    """Print the best limits at a load, or the load that the best limits still serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executor", default="E2")
    parser.add_argument("--workload", default="steady", choices=list(WORKLOADS))
    parser.add_argument("--queue", default="tiers", choices=["tiers", "fifo"])
    parser.add_argument("--load", type=float, help="default: search what is still served")
    parser.add_argument("--stretch", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=cores())
    args = parser.parse_args()
    executors: Mapping[str, SimulatedSettings] = {"main": executor_of(args.executor)}
    cache = Cache(default_cache())

    def run(cases: Sequence[Case]) -> list[tuple[float, float]]:
        outcomes = run_all(cases, cache, jobs=args.jobs, progress=lambda done, of: None)
        return [(outcome.goodput, outcome.attainment or 0.0) for outcome in outcomes]

    def search(load: float) -> Best:
        case = Case(
            config=fitted(Config(), executors),
            executors=executors,
            workload=args.workload,
            contender=limits(1, 1, fifo=False),
            seed=0,
            load=load,
            stretch=args.stretch,
        )
        splits = executors["main"].splits_prefill
        return best_static(case, fifo=args.queue == "fifo", splits=splits, run=run)

    load = served_load(search) if args.load is None else args.load
    best = search(load)
    print(
        f"{args.workload} on {args.executor} at load {load:.2f}: {best.contender.label}, goodput "
        f"{best.goodput:.3f}/s, attainment {best.attainment:.1%}"
    )


if __name__ == "__main__":
    main()
