"""Whether the default policy became worse: a few cells on fixed seeds against what was recorded.

`python -m bench.evaluate --short`, and `--record` where the change is meant.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.campaign import Cache
from bench.case import Contender
from bench.evaluate_field import DEFAULT
from bench.evaluate_progress import Runs
from bench.evaluation import Play, Setting, sides
from controller.config import Config
from controller.config_load import load as load_config

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "bench" / "evaluate_short.json"
CONFIG = ROOT / "configs" / "evaluation.yaml"
REFRESH = "python -m bench.evaluate --short --record"
# Neither searched on nor reported on.
SEEDS = (21, 22, 23)
# Near the edge of what is served, where a worse policy shows; short, so that all take a minute.
CELLS: Sequence[tuple[Setting, str]] = (
    (Setting("E2", "steady", 0.75, 0.6), "static:B=96,T=2048,W=0"),
    (Setting("E2", "alternating", 0.7, 0.2), "static:B=96,T=2048,W=0"),
    (Setting("E2", "bursts-9", 0.6, 0.8), "static:B=96,T=2048,W=0"),
    (Setting("E3", "step", 0.85, 0.5), "static:B=96,T=717,W=0"),
    (Setting("E3", "alternating", 1.0, 0.2), "static:B=96,T=717,W=0"),
    (Setting("E3", "flood", 0.7, 0.6), "static:B=96,T=717,W=0"),
)
# A change within so many standard errors of what seeds make of the ratio, and within this part at
# least, is noise: the same seeds take another course after any change.
_ERRORS, _LEAST = 2.0, 0.02


class Kept(msgspec.Struct, frozen=True):
    """One cell: goodput by seed of the default policy and of fixed limits."""

    name: str
    default: list[float]
    static: list[float]


class Record(msgspec.Struct, frozen=True):
    """What a run of the short form came to, and of which policy."""

    policy: str
    cells: list[Kept]


def measure(play: Play, config: Config) -> Record:
    """Play all cells."""
    *_, queues = sides(config)
    contenders = [(Contender.parse(DEFAULT), Contender.parse(text)) for _, text in CELLS]
    cases = [
        setting.case(queues, contender, seed)
        for (setting, _), pair in zip(CELLS, contenders, strict=True)
        for contender in pair
        for seed in SEEDS
    ]
    goodput = [outcome.goodput for outcome in play(cases)]
    count = len(SEEDS)
    kept = [
        Kept(
            f"{setting.executor} {setting.workload} {setting.load:g}",
            goodput[2 * index * count : (2 * index + 1) * count],
            goodput[(2 * index + 1) * count : (2 * index + 2) * count],
        )
        for index, (setting, _) in enumerate(CELLS)
    ]
    return Record(DEFAULT, kept)


def margin(recorded: Kept) -> float:
    """By how much (in logarithms) a mean over these seeds may be lower by chance."""
    logs = _logs(recorded.default, recorded.static)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return max(_ERRORS * error, _LEAST)


def regressions(now: Record, recorded: Record) -> list[str]:
    """What became worse beyond noise, in words.

    Of each cell the ratio to fixed limits, and the goodput itself: queues that serve less take the
    fixed limits with them.
    """
    if now.policy != recorded.policy or _names(now) != _names(recorded):
        return [f"recorded is something else ({recorded.policy}): {REFRESH}"]
    worse = []
    for mine, before in zip(now.cells, recorded.cells, strict=True):
        allowed = margin(before)
        for what, change in (
            ("against fixed limits", _mean(mine) - _mean(before)),
            ("goodput", statistics.fmean(_logs(mine.default, before.default))),
        ):
            if change < -allowed:
                worse.append(
                    f"{mine.name}: {what} {math.expm1(change):+.1%}, "
                    f"{math.expm1(-allowed):+.1%} is allowed"
                )
    return worse


def _mean(kept: Kept) -> float:
    return statistics.fmean(_logs(kept.default, kept.static))


def _logs(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    # Nothing met at all is a thousandth of a request a second: far worse, and a number.
    pairs = zip(ones, others, strict=True)
    return [math.log(max(one, 1e-3) / max(other, 1e-3)) for one, other in pairs]


def _names(record: Record) -> list[tuple[str, int]]:
    return [(kept.name, len(kept.default)) for kept in record.cells]


def run(*, jobs: int, record: bool, path: Path = RECORD) -> int:
    """Measure and compare, or measure and record; the exit status."""
    # Nothing from the cache: what is asked is how this code does.
    with Runs(Cache(None), jobs) as runs:
        now = measure(runs, load_config(CONFIG, env={}))
        lasted_s = runs.lasted_s()
    for kept in now.cells:
        print(f"{kept.name}: {math.exp(_mean(kept)):.3f} of fixed limits, {margin(kept):.1%} noise")
    print(f"{len(CELLS)} cells, {len(SEEDS)} seeds, {lasted_s:.0f} s")
    if record:
        told = msgspec.json.format(msgspec.json.encode(now), indent=1)
        path.write_bytes(told + b"\n")
        return 0
    worse = regressions(now, msgspec.json.decode(path.read_bytes(), type=Record))
    for line in worse:
        print(f"worse: {line}")
    if worse:
        print(f"where that is meant: {REFRESH}")
    return 1 if worse else 0
