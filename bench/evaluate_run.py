"""The runs of the evaluation of the policies, part by part, and what they came to by cell."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from bench import evaluate_field as field_of
from bench.campaign import Ratio, paired
from bench.evaluate_cells import UNSERVED, Cell, backlogs, cells, is_of_the_ten
from bench.evaluate_field import PANG, Entry
from bench.evaluate_oracle import LEAST_PHASE_S, Hindsight
from bench.evaluation import SEARCHED, Figures, Play, Searcher, Setting, sides
from bench.presets import executor_of
from controller.config import Config

A = TypeVar("A")
B = TypeVar("B")
# So many searches go on at once.
SEARCHES = 4
# Where promising limits are looked for before it is known which load is served.
_MIDDLE_LOAD = 0.6
_UNIT_STRETCH = 0.5


@dataclass(slots=True)
class Results:
    """Figures by cell and contender. Contenders may have been played on the first seeds only; two
    are compared on those that both were."""

    figures: dict[Cell, dict[str, Figures]] = field(default_factory=dict)

    def add(self, cell: Cell, figures: Figures) -> None:
        """Keep what a contender came to."""
        self.figures.setdefault(cell, {})[figures.contender.label] = figures

    def get(self, cell: Cell, name: str) -> Figures | None:
        """What a contender came to, if it was played here."""
        return self.figures.get(cell, {}).get(name)

    def ratio(self, cell: Cell, one: str, other: str) -> Ratio | None:
        """Goodput of one contender over another's, paired by seed."""
        return _ratio([self._goodput(cell, one)], [self._goodput(cell, other)])

    def pooled(self, among: Sequence[Cell], one: str, other: str) -> Ratio | None:
        """The geometric mean over cells, its interval over the seeds; cells count alike.

        None where one of the two was not played in one of the cells.
        """
        return _ratio(
            [self._goodput(cell, one) for cell in among],
            [self._goodput(cell, other) for cell in among],
        )

    def _goodput(self, cell: Cell, name: str) -> list[float]:
        figures = self.get(cell, name)
        return [] if figures is None else [outcome.goodput for outcome in figures.outcomes]


def _ratio(ones: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> Ratio | None:
    """Seed by seed the geometric mean over cells, then over the seeds that all cells have."""
    count = min((len(values) for values in (*ones, *others)), default=0)
    by_seed = []
    for seed in range(count):
        logs = []
        for mine, theirs in zip(ones, others, strict=True):
            if mine[seed] <= 0 or theirs[seed] <= 0:
                return None
            logs.append(math.log(mine[seed] / theirs[seed]))
        by_seed.append(math.exp(math.fsum(logs) / len(logs)))
    return paired(by_seed, [1.0] * len(by_seed))


@dataclass(slots=True)
class Evaluation:
    """All runs. `scale`: how long cells last, relative to what is planned."""

    play: Play
    config: Config
    executors: Sequence[str]
    scale: float = 1.0
    results: Results = field(default_factory=Results)
    offline: Results = field(default_factory=Results)
    units: dict[tuple[str, str], float] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Every part, in the order in which one needs the other."""
        with self.part("loads"):
            self.find_units([*self.cells(), *self.backlogs()])
        with self.part("hindsight"):
            entries = dict(
                zip(self.cells(), self._at_once(self._hindsight, self.cells()), strict=True)
            )
        with self.part("contenders"):
            self._contend(entries)
        with self.part("search at four targets"):
            self._aim()
        with self.part("backlog"):
            self._backlog()

    def cells(self) -> list[Cell]:
        """Where goodput is compared."""
        return cells(self.executors, scale=self.scale)

    def backlogs(self) -> list[Cell]:
        """Where offline tokens are."""
        return backlogs(self.executors, scale=self.scale)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Say on stderr what is on, and what it took."""
        begun = time.perf_counter()
        print(f"\n{name}:", file=sys.stderr, flush=True)
        yield
        self.took_s[name] = time.perf_counter() - begun
        print(f"\n{name} took {self.took_s[name]:.0f} s", file=sys.stderr, flush=True)

    def settings(self, cell: Cell) -> Setting:
        """The cell with its load."""
        return cell.setting(self.units)

    def find_units(self, among: Sequence[Cell]) -> None:
        """The loads that these cells are relative to, where they are not known yet."""
        *_, queues = sides(self.config)
        sought = []
        for executor, unit in sorted({(cell.executor, cell.unit() or "") for cell in among}):
            if not unit or (executor, unit) in self.units:
                continue
            if executor_of(executor).runs_to_completion:
                self.units[executor, unit] = UNSERVED
            else:
                sought.append(Setting(executor, unit, _MIDDLE_LOAD, _UNIT_STRETCH * self.scale))
        found = self._at_once(lambda middle: Searcher(self.play).served(middle, queues), sought)
        for middle, served in zip(sought, found, strict=True):
            self.units[middle.executor, middle.workload] = served

    def hindsight(self) -> Hindsight:
        """What searches on seeds that are never reported."""
        return Hindsight(self.play, SEARCHED, LEAST_PHASE_S * self.scale)

    def _at_once(self, search: Callable[[A], B], among: Sequence[A]) -> list[B]:
        """What searches come to, in their order. Each plays a few runs and goes on from there, so
        several at once keep the cores busy."""
        with ThreadPoolExecutor(SEARCHES) as searches:
            return list(searches.map(search, among))

    def _hindsight(self, cell: Cell) -> list[Entry]:
        fifo, *_, queues = sides(self.config)
        setting, seeds = self.settings(cell.foreseen()), cell.seeds()
        search = self.hindsight()
        static = search.static(setting, queues)
        phased, open_ = search.phased(setting, queues, static)
        return [
            Entry(static, queues, seeds),
            Entry(search.static(setting, fifo), fifo, seeds),
            Entry(phased, open_, seeds),
        ]

    def _contend(self, hindsight: dict[Cell, list[Entry]]) -> None:
        fifo, *_, queues = sides(self.config)
        planned: list[tuple[Cell, Entry]] = []
        for cell, entries in hindsight.items():
            field_here = [
                field_of.default_entry(cell, queues),
                *entries,
                *field_of.vendors(cell, queues, fifo),
            ]
            if cell.surveyed() or is_of_the_ten(cell):
                field_here += field_of.rules(cell, queues)
            if cell.surveyed():
                field_here += field_of.others(cell, queues)
            if is_of_the_ten(cell):
                field_here += field_of.aims(queues)
            planned += [(cell, entry) for entry in field_here]
        self._play_all(planned, self.results)

    def _aim(self) -> None:
        """The best of four targets in hindsight, on all seeds: the strongest that it can be."""
        *_, queues = sides(self.config)
        planned = []
        for cell in filter(is_of_the_ten, self.cells()):
            told = [
                figures
                for entry in field_of.aims(queues)
                if (figures := self.results.get(cell, entry.name)) is not None
            ]
            if told:
                best = max(told, key=Figures.goodput)
                planned.append(
                    (cell, Entry(replace(best.contender, label=PANG), queues, cell.contested()))
                )
        self._play_all(planned, self.results)

    def _backlog(self) -> None:
        *_, queues = sides(self.config)
        planned = []
        for cell in self.backlogs():
            static = self.hindsight().offline(self.settings(cell), queues)
            planned.append((cell, field_of.default_entry(cell, queues)))
            planned.append((cell, Entry(static, queues, cell.seeds())))
            planned += [(cell, entry) for entry in field_of.rules(cell, queues)]
        self._play_all(planned, self.offline)

    def _play_all(self, planned: Sequence[tuple[Cell, Entry]], results: Results) -> None:
        """Everything in one go, so that no core waits for another."""
        cases = [
            self.settings(cell).case(entry.side, entry.contender, seed)
            for cell, entry in planned
            for seed in entry.seeds
        ]
        outcomes = self.play(cases)
        done = 0
        for cell, entry in planned:
            mine = outcomes[done : done + len(entry.seeds)]
            done += len(entry.seeds)
            results.add(cell, Figures(entry.side, entry.contender, mine))
