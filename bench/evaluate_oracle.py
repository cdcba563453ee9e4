"""What is best in hindsight: static limits of a cell, limits of each phase, and those that let most
be done offline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from bench.best_static import KEPT, SIZES, TOKENS, Best, Grid, Pair, limits
from bench.case import Case, Contender
from bench.evaluate_field import FIFO, ORACLE, STATIC, named
from bench.evaluation import SEARCHED, Play, Searcher, Setting, Side
from bench.outcome import Outcome
from bench.presets import executor_of
from bench.workloads import WORKLOADS, Scene
from controller.config import Config

# Shorter phases are taken together: what was best of a minute of traffic is mostly chance.
LEAST_PHASE_S = 120.0
ONLINE_LEAST = 0.95
# Holds for company that are tried where batches run to their ends, in seconds.
_WAITS_S = (0.005, 0.05)
_SCREEN = 0.5
# Of each phase so many pairs of a screening are played in full.
_PROMISING = 2


@dataclass(frozen=True, slots=True)
class Hindsight:
    """Searches on seeds that are never reported. `least_phase_s`: see `LEAST_PHASE_S`."""

    play: Play
    seeds: Sequence[int] = SEARCHED
    least_phase_s: float = LEAST_PHASE_S

    def static(self, setting: Setting, side: Side) -> Contender:
        """The best static B and T, and W where whole batches run."""
        best = Searcher(self.play, self.seeds).best(setting, side).contender
        if executor_of(setting.executor).runs_to_completion:
            tried = [best, *(replace(best, wait_s=wait_s) for wait_s in _WAITS_S)]
            told = [self._mean(setting, side, one, goodput) for one in tried]
            best = tried[told.index(max(told))]
        return _of(best, FIFO if side.fifo else STATIC)

    def phased(self, setting: Setting, side: Side, static: Contender) -> tuple[Contender, Side]:
        """The best limits of each phase, and a side whose guard lets them through at once.

        What was met of the arrivals of a phase is compared under static limits; what a phase leaves
        behind for the next one is left out. Where that is no better than the best static limits, or
        there are no phases, it is these.
        """
        starts = self.phases(setting)
        if len(starts) == 1:
            return _of(static, ORACLE), side
        met = self._met_by_phase(setting, side, static, len(starts))
        chosen = [_ranked(met, index)[0] for index in range(len(starts))]
        found = oracle(starts, chosen)
        open_ = Side(side.name, side.fifo, unguarded(side.config))
        better = self._mean(setting, open_, found, goodput) > self._mean(
            setting, side, static, goodput
        )
        return (found, open_) if better else (_of(static, ORACLE), side)

    def offline(self, setting: Setting, side: Side) -> Contender:
        """The static limits with most offline tokens of those that hold 95 % online attainment."""
        splits = executor_of(setting.executor).splits_prefill
        grid = Grid(
            setting.case(side), fifo=False, splits=splits, seeds=self.seeds, run=self._offline
        )
        best: Best = grid.look(grid.screen(2 * KEPT))
        return _of(grid.look(grid.finer(best)).contender, STATIC)

    def phases(self, setting: Setting) -> list[float]:
        """The starts of the phases, those too short taken together."""
        scene = Scene(executor_of(setting.executor), setting.load, 0, stretch=setting.stretch)
        workload = WORKLOADS[setting.workload].make(scene)
        starts = [0.0]
        for change in workload.changes:
            if change - starts[-1] >= self.least_phase_s:
                starts.append(change)
        if len(starts) > 1 and workload.duration_s - starts[-1] < self.least_phase_s:
            starts.pop()
        return starts

    def _met_by_phase(
        self, setting: Setting, side: Side, static: Contender, count: int
    ) -> dict[Pair, list[int]]:
        """What was met in each phase, by pair, of pairs that are promising in one of them."""
        tokens = TOKENS if executor_of(setting.executor).splits_prefill else TOKENS[-1:]
        grid = [(size, budget) for size in SIZES for budget in tokens]
        shorter = replace(setting, stretch=_SCREEN * setting.stretch)
        scaled = replace(self, least_phase_s=_SCREEN * self.least_phase_s)
        screened = scaled._played(shorter, side, grid, self.seeds[:1])
        pairs = [(static.size or 1, static.tokens or 1)]
        for at in range(count):
            pairs += _ranked(screened, at)[:_PROMISING]
        return self._played(setting, side, list(dict.fromkeys(pairs)), self.seeds)

    def _played(
        self, setting: Setting, side: Side, pairs: Sequence[Pair], seeds: Sequence[int]
    ) -> dict[Pair, list[int]]:
        starts = self.phases(setting)
        scene = Scene(executor_of(setting.executor), setting.load, 0, stretch=setting.stretch)
        bounds = (0.0, *WORKLOADS[setting.workload].make(scene).changes)
        cases = [
            setting.case(side, limits(*pair, fifo=side.fifo), seed)
            for pair in pairs
            for seed in seeds
        ]
        outcomes = self.play(cases)
        met: dict[Pair, list[int]] = {}
        for index, pair in enumerate(pairs):
            mine = outcomes[index * len(seeds) : (index + 1) * len(seeds)]
            met[pair] = together([one.met_by_phase for one in mine], bounds, starts)
        return met

    def _mean(
        self, setting: Setting, side: Side, contender: Contender, of: Callable[[Outcome], float]
    ) -> float:
        cases = [setting.case(side, contender, seed) for seed in self.seeds]
        return sum(map(of, self.play(cases)))

    def _offline(self, cases: Sequence[Case]) -> list[tuple[float, float]]:
        """What holds comes before what does not; then by tokens, or by how near it is."""
        told = []
        for outcome in self.play(cases):
            online = online_attainment(outcome)
            tokens = outcome.tiers["offline"].tokens_per_s
            told.append((tokens if online >= ONLINE_LEAST else online - 1e6, online))
        return told


def _ranked(met: Mapping[Pair, Sequence[int]], phase: int) -> list[Pair]:
    """Pairs by what was met in a phase, most first."""
    return sorted(met, key=lambda pair: met[pair][phase], reverse=True)


def goodput(outcome: Outcome) -> float:
    """Requests per second that met every target."""
    return outcome.goodput


def online_attainment(outcome: Outcome) -> float:
    """The part of paid and free requests that met every target."""
    online = [outcome.tiers[name] for name in ("paid", "free")]
    offered = sum(tier.offered for tier in online)
    return sum(tier.met for tier in online) / offered if offered else 0.0


def together(
    told: Sequence[Sequence[int]], bounds: Sequence[float], starts: Sequence[float]
) -> list[int]:
    """Counts of phases that begin at `bounds`, summed into those that begin at `starts` and over
    runs."""
    summed = [0] * len(starts)
    for counts in told:
        for begin, count in zip(bounds, counts, strict=True):
            summed[sum(start <= begin for start in starts) - 1] += count
    return summed


def oracle(starts: Sequence[float], chosen: Sequence[Pair]) -> Contender:
    """The oracle with these limits from these instants on; phases with the same are one."""
    phases = [
        {"start_s": next(group)[0], "max_batch_size": size, "max_batch_tokens": tokens}
        for (size, tokens), group in groupby(
            zip(starts, chosen, strict=True), key=lambda one: one[1]
        )
    ]
    size, tokens = chosen[0]
    return Contender(
        ORACLE,
        "bench.phase_oracle:PhaseOracle",
        {"phases": phases},
        size=size,
        tokens=tokens,
        wait_s=0.0,
    )


def unguarded(config: Config) -> Config:
    """A configuration whose guard has nothing against growth, but that a tick at most doubles."""
    guard = config.control.guard.model_copy(
        update={
            "stale_ticks": 10**9,
            "binding": 0.0,
            "cooldown": 0.0,
            "cooldown_steps": 0.0,
            "slew": 1.0,
            "kv_high": 1.0,
            "gpu_busy": 1.0,
            "flat_gain": 0.0,
            "reversals": 10**9,
        }
    )
    control = config.control.model_copy(update={"guard": guard, "min_samples": 1})
    return config.model_copy(update={"control": control})


def _of(contender: Contender, name: str) -> Contender:
    """The same limits under the name of what they are the best of."""
    queue = ",queue=fifo" if contender.fifo else ""
    wait_s = contender.wait_s or 0.0
    text = f"static:B={contender.size},T={contender.tokens},W={wait_s}{queue}"
    return named(name, text)
