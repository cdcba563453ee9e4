"""What the evaluation of the queues compares, and how its limits, loads and figures are found."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.best_static import SEEDS, Best, Grid, Pair, best_static, limits, served_load
from bench.campaign import Ratio, paired
from bench.case import Case, Contender, fitted
from bench.outcome import Outcome
from bench.presets import executor_of
from bench.workloads import WORKLOADS, Scene
from controller.config import Config
from controller.tiers import Late

Play = Callable[[Sequence[Case]], list[Outcome]]

# None of them chose limits or loads.
REPORTED = (1, 2, 3, 4, 5)
SEARCHED = SEEDS[:2]
OVERLOAD = 1.2
# The load that is served lies between these, on any executor and for any lengths here.
_LEAST_LOAD, _MOST_LOAD = 0.3, 1.1


@dataclass(frozen=True, slots=True)
class Side:
    """A queue discipline under comparison: one queue for all (`fifo`) or ours, and its tiers."""

    name: str
    fifo: bool
    config: Config


def sides(config: Config) -> tuple[Side, Side, Side, Side]:
    """FIFO as it comes and where free traffic expires at its target; our queues with both ways of
    treating free traffic that is late."""
    targets = config.tiers["free"].targets
    assert targets is not None
    return (
        Side("FIFO", True, config),
        Side("FIFO, free expires", True, _free(config, "last", start_within_s=targets.ttft)),
        Side("queues, late last", False, _free(config, "last")),
        Side("queues, late dropped", False, _free(config, "drop")),
    )


def _free(config: Config, late: Late, *, start_within_s: float | None = None) -> Config:
    free = config.tiers["free"]
    changed = {"late": late, "start_within": start_within_s or free.start_within}
    tiers = {**config.tiers, "free": free.model_copy(update=changed)}
    return config.model_copy(update={"tiers": tiers})


@dataclass(frozen=True, slots=True)
class Setting:
    """Where sides meet: an executor by name, a workload at a load and how long it lasts."""

    executor: str
    workload: str
    load: float
    stretch: float

    def case(self, side: Side, contender: Contender | None = None, seed: int = 0) -> Case:
        """One run of a side here."""
        executors = {"main": executor_of(self.executor)}
        return Case(
            config=fitted(side.config, executors),
            executors=executors,
            workload=self.workload,
            contender=contender or limits(1, 1, fifo=side.fifo),
            seed=seed,
            load=self.load,
            stretch=self.stretch,
        )


class Searcher:
    """Finds limits and loads on seeds that are never reported."""

    def __init__(self, play: Play, seeds: Sequence[int] = SEARCHED) -> None:
        self._play = play
        self._seeds = seeds

    def best(self, setting: Setting, side: Side) -> Best:
        """The best static limits of a side here."""
        return best_static(
            setting.case(side),
            fifo=side.fifo,
            splits=executor_of(setting.executor).splits_prefill,
            seeds=self._seeds,
            run=self._run,
        )

    def served(self, setting: Setting, side: Side) -> float:
        """The load at which the best static of a side still serves 90 % within target.

        The limits in question are those that are best at the setting's own load.
        """
        splits = executor_of(setting.executor).splits_prefill

        def grid(load: float) -> Grid:
            case = replace(setting, load=load).case(side)
            return Grid(case, fifo=side.fifo, splits=splits, seeds=self._seeds, run=self._run)

        promising: list[Pair] = grid(setting.load).screen()
        return served_load(
            lambda load: grid(load).look(promising), low=_LEAST_LOAD, high=_MOST_LOAD
        )

    def _run(self, cases: Sequence[Case]) -> list[tuple[float, float]]:
        return [(one.goodput, one.attainment or 0.0) for one in self._play(cases)]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a side came to with its limits: one outcome for each reported seed."""

    side: Side
    contender: Contender
    outcomes: Sequence[Outcome]

    def goodput(self) -> float:
        """Requests per second within all targets, in the mean."""
        return statistics.fmean(outcome.goodput for outcome in self.outcomes)

    def against(self, base: Figures) -> Ratio | None:
        """Goodput relative to another side's, seed by seed."""
        mine, theirs = (
            [outcome.goodput for outcome in figures.outcomes] for figures in (self, base)
        )
        return paired(mine, theirs)

    def attainment(self, tier: str | None = None) -> float:
        """The part that met every target, in the mean; None: of all tiers together."""
        parts = (o if tier is None else o.tiers[tier] for o in self.outcomes)
        return statistics.fmean(part.attainment or 0.0 for part in parts)

    def worst(self, tier: str) -> float:
        """The least attainment of a tier over the seeds."""
        return min(outcome.tiers[tier].attainment or 0.0 for outcome in self.outcomes)

    def missed(self, tier: str) -> Mapping[str, float]:
        """Of what a tier offered, the parts that missed, by reason."""
        total: Counter[str] = Counter()
        for outcome in self.outcomes:
            total.update(outcome.tiers[tier].missed)
        offered = sum(outcome.tiers[tier].offered for outcome in self.outcomes)
        return {why: count / offered for why, count in total.most_common()}

    def turned_away(self, tier: str) -> int:
        """How many of a tier were offered and not served to their end."""
        return sum(
            count
            for outcome in self.outcomes
            for why, count in outcome.tiers[tier].missed.items()
            if ":" in why
        )

    def starved_s(self, tier: str) -> float:
        """The longest time that a tier waited without progress, over all seeds."""
        return max(outcome.tiers[tier].longest_starvation_s for outcome in self.outcomes)


def report(
    setting: Setting,
    chosen: Sequence[tuple[Side, Contender]],
    play: Play,
    *,
    seeds: Sequence[int] = REPORTED,
) -> list[Figures]:
    """Play the sides with their limits on the same traffic."""
    outcomes = play(
        [setting.case(side, contender, seed) for side, contender in chosen for seed in seeds]
    )
    count = len(seeds)
    return [
        Figures(side, contender, outcomes[index * count : (index + 1) * count])
        for index, (side, contender) in enumerate(chosen)
    ]


def at_most(setting: Setting, config: Config, seeds: Sequence[int] = REPORTED) -> float:
    """The part of the requests that would meet their time to first token if each had the executor
    to itself and its prompt were computed in one step: no discipline can serve more in time."""
    settings = executor_of(setting.executor)
    fitting = offered = 0
    for seed in seeds:
        scene = Scene(settings, setting.load, seed, stretch=setting.stretch)
        for arrival in WORKLOADS[setting.workload].make(scene).arrivals:
            targets, prompt = config.tiers[arrival.tier].targets, arrival.prompt
            first_s = settings.a_s + settings.d_s * prompt + settings.e_s * prompt * prompt
            bound_s = None if targets is None else targets.ttft
            fitting += bound_s is None or first_s <= bound_s
            offered += 1
    return fitting / offered
