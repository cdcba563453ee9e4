"""Whether an engine is as fast through Headway as it is directly: ratios, noise, verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.campaign import Ratio, paired
from bench.stream_load import Loaded

# What has to hold at every concurrency: see `Level.holds`.
_LEAST_LOW, _LEAST_MEDIAN, _MOST_GAP = 0.95, 0.97, 1.05


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of load: completion tokens per second, and the 99th percentile of all gaps."""

    tokens_per_s: float
    p99_gap_s: float

    @classmethod
    def of(cls, loaded: Loaded) -> Figures:
        """Those of one run."""
        gaps = sorted(loaded.gaps_s)
        return cls(loaded.tokens_per_s, gaps[math.ceil(0.99 * len(gaps)) - 1])


@dataclass(frozen=True, slots=True)
class Round:
    """Two runs through Headway and two direct ones, in turns."""

    through: tuple[Figures, Figures]
    direct: tuple[Figures, Figures]


@dataclass(frozen=True, slots=True)
class Level:
    """All rounds at one concurrency."""

    concurrency: int
    rounds: list[Round]

    @property
    def ratios(self) -> list[float]:
        """Throughput through Headway as a fraction of the direct one, a round each."""
        return [
            sum(run.tokens_per_s for run in one.through)
            / sum(run.tokens_per_s for run in one.direct)
            for one in self.rounds
        ]

    @property
    def ratio(self) -> Ratio:
        """Their geometric mean with its 95 % interval."""
        return _against(self.ratios)

    @property
    def direct_itself(self) -> Ratio:
        """Throughput of the engine against itself."""
        return _against([a.tokens_per_s / b.tokens_per_s for a, b in self._own])

    @property
    def through_itself(self) -> Ratio:
        """Throughput through Headway against itself."""
        pairs = [one.through for one in self.rounds]
        return _against([a.tokens_per_s / b.tokens_per_s for a, b in pairs])

    @property
    def gaps(self) -> Ratio:
        """P99 gap through Headway as a multiple of the direct one."""
        return _against(
            [
                math.sqrt(
                    math.prod(run.p99_gap_s for run in one.through)
                    / math.prod(run.p99_gap_s for run in one.direct)
                )
                for one in self.rounds
            ]
        )

    @property
    def gap_noise(self) -> float:
        """How far the mean of so many rounds of the engine against itself may be off, as a
        factor: the half width of its 95 % interval. 1 where there is one round only."""
        own = _against([a.p99_gap_s / b.p99_gap_s for a, b in self._own])
        return 1.0 if own.high is None else own.high / own.mean

    @property
    def holds(self) -> bool:
        """Whether next to nothing is lost: of throughput at most 5 % at the lower bound and 3 %
        at the median, and P99 gaps within 5 % or the engine's own noise."""
        low = self.ratio.mean if self.ratio.low is None else self.ratio.low
        return (
            low >= _LEAST_LOW
            and statistics.median(self.ratios) >= _LEAST_MEDIAN
            and self.gaps.mean <= max(_MOST_GAP, self.gap_noise)
        )

    @property
    def _own(self) -> list[tuple[Figures, Figures]]:
        return [one.direct for one in self.rounds]


def table(levels: Sequence[Level]) -> str:
    """The result as Markdown."""
    lines = [
        "| at once | direct, tokens/s | Headway, tokens/s | ratio: median, mean [95 %] "
        "| direct against itself | Headway against itself "
        "| P99 ITL, direct | through Headway | ratio [95 %] | noise | holds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for level in levels:
        runs = [run for one in level.rounds for run in one.through]
        own = [run for one in level.rounds for run in one.direct]
        lines.append(
            f"| {level.concurrency} "
            f"| {statistics.median(run.tokens_per_s for run in own):.1f} "
            f"| {statistics.median(run.tokens_per_s for run in runs):.1f} "
            f"| {statistics.median(level.ratios):.3f}, {_shown(level.ratio)} "
            f"| {_shown(level.direct_itself)} | {_shown(level.through_itself)} "
            f"| {statistics.median(run.p99_gap_s for run in own) * 1e3:.1f} ms "
            f"| {statistics.median(run.p99_gap_s for run in runs) * 1e3:.1f} ms "
            f"| {_shown(level.gaps)} | ±{level.gap_noise - 1:.1%} "
            f"| {'yes' if level.holds else 'NO'} |"
        )
    return "\n".join(lines)


def _against(ratios: Sequence[float]) -> Ratio:
    found = paired(ratios, [1.0] * len(ratios))
    assert found is not None, "a run without a token"
    return found


def _shown(ratio: Ratio) -> str:
    if ratio.low is None:
        return f"{ratio.mean:.3f}"
    return f"{ratio.mean:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
