"""The pictures of docs/evaluation.md: limits and tails around a change, and what limits cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.best_static import limits
from bench.case import Contender, simulator_of
from bench.evaluate_field import DEFAULT, STATIC
from bench.evaluation import Play, Setting, Side
from bench.journal import Fate
from bench.outcome import Outcome, quantile

# Of the paid requests that came within so many seconds, the one that waited this part longest.
WINDOW_S, TAIL = 10.0, 0.95
CURVE_SIZES = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_TTFT_S, _ITL_MS = 1.0, 100.0
# Numbers at points nearer than this (tokens/s, ms) would cover each other.
_APART = 3.0


def around_change(
    setting: Setting, side: Side, static: Contender, path: Path, *, seeds: Sequence[int]
) -> None:
    """B and T over time (first seed) and the tail of paid time to first token (all seeds) of the
    default policy and of the best static limits. Played here: outcomes keep no time series."""
    default = Contender.parse(DEFAULT)
    with _figure(3) as (figure, (sizes, tokens, below)):
        for name, contender in ((DEFAULT, default), (STATIC, static)):
            simulators = [simulator_of(setting.case(side, contender, seed)) for seed in seeds]
            for simulator in simulators:
                simulator.run()
            duration_s = simulators[0].workload.duration_s
            moves = [m for m in simulators[0].journal.moves if m.time_s < duration_s]
            times = [*(move.time_s for move in moves), duration_s]
            for axis, values in (
                (sizes, [move.max_batch_size for move in moves]),
                (tokens, [move.max_batch_tokens for move in moves]),
            ):
                axis.step(times, [*values, values[-1]], where="post", label=name)
            fates = [fate for simulator in simulators for fate in simulator.journal.fates]
            starts, tails = tail(fates, "paid", duration_s)
            below.plot([start + WINDOW_S / 2 for start in starts], tails, label=name)
            changes = simulators[0].workload.changes
        for axis in (sizes, tokens, below):
            for change in changes:
                axis.axvline(change, color="0.8", zorder=0)
        for axis, limit in ((sizes, "B"), (tokens, "T")):
            axis.set_ylabel(limit)
            axis.set_ylim(bottom=0)
        sizes.legend(frameon=False)
        below.axhline(_TTFT_S, color="0.5", linestyle=":")
        below.set_yscale("log")
        below.set_ylabel(f"paid TTFT, P{TAIL * 100:.0f}, s")
        below.set_xlabel("s")
        _save(figure, path)


def curve(
    setting: Setting, side: Side, play: Play, path: Path, *, policies: Mapping[str, Outcome]
) -> None:
    """Tokens per second against inter-token latency over static B, and where policies are."""
    cases = [setting.case(side, limits(b, 2048, fifo=False), 1) for b in CURVE_SIZES]
    points = [_point(outcome) for outcome in play(cases)]
    with _figure(1) as (figure, (axis,)):
        axis.plot(*zip(*points, strict=True), marker=".", color="0.5", label="static B")
        told: list[tuple[float, float]] = []
        for size, point in zip(CURVE_SIZES, points, strict=True):
            # Sizes that nobody reaches are all one point: one number is enough there.
            if all(math.dist(point, other) > _APART for other in told):
                told.append(point)
                axis.annotate(f"{size}", point, textcoords="offset points", xytext=(4, -8))
        for name, outcome in policies.items():
            axis.plot(*_point(outcome), marker="o", linestyle="", label=name)
        axis.axhline(_ITL_MS, color="0.5", linestyle=":")
        axis.set_xlabel("tokens/s")
        axis.set_ylabel("paid ITL, P99, ms")
        axis.legend(frameon=False)
        _save(figure, path)


def tail(fates: Sequence[Fate], tier: str, duration_s: float) -> tuple[list[float], list[float]]:
    """Starts of windows, and the tail of time to first token of those who came in each: of who
    never had one, how long it was in vain."""
    waits: dict[int, list[float]] = {}
    for fate in fates:
        if fate.tier == tier and fate.arrival_s < duration_s:
            until = fate.ended_s if fate.first_s is None else fate.first_s
            waits.setdefault(int(fate.arrival_s // WINDOW_S), []).append(until - fate.arrival_s)
    windows = sorted(waits)
    return [at * WINDOW_S for at in windows], [quantile(waits[at], TAIL) for at in windows]


def _point(outcome: Outcome) -> tuple[float, float]:
    itl = outcome.tiers["paid"].itl
    return outcome.tokens_per_s, 0.0 if itl is None else itl.p99 * 1e3


@contextmanager
def _figure(count: int) -> Iterator[tuple[Any, Sequence[Any]]]:
    """A figure with so many axes, one above the other. Needs matplotlib."""
    # Imported here: it is an extra of the installation, and slow.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Letters as letters: the files stay small, and the same from run to run.
    with rc_context({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "headway"}):
        figure = Figure(figsize=(7, 2.0 + 1.2 * count), layout="constrained")
        axes = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
        yield figure, list(axes)


def _save(figure: Any, path: Path) -> None:
    # Without a date: the same figures are the same file.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
