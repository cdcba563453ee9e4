"""Many runs: on the cores there are, none of them twice, and compared seed by seed."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.case import Case, play
from bench.outcome import Outcome
from bench.workloads import WORKLOADS

# What a run's outcome depends on; the gateway is not simulated, and what evaluates chooses runs and
# tells of them, but none goes through it.
_CODE = ("bench", "controller", "executor", "metrics", "policies")
_BESIDE = "evaluat"
# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom, then the normal one.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def code_hash() -> str:
    """A digest of the code that a run goes through."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for package in _CODE:
        for path in sorted((root / package).glob("*.py")):
            if path.name.startswith(_BESIDE):
                continue
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


class Cache:
    """Outcomes by a hash of inputs and code. `folder` None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._code = code_hash() if folder is not None else ""
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def find(self, case: Case) -> Outcome | None:
        """The outcome of a case that was played before."""
        if self._folder is None:
            return None
        try:
            kept = self._path(case).read_bytes()
            return msgspec.json.decode(kept, type=Outcome)
        except (OSError, msgspec.MsgspecError):
            return None

    def keep(self, case: Case, outcome: Outcome) -> None:
        """Remember an outcome. Whole or not at all: others may write beside this."""
        if self._folder is not None:
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(msgspec.json.encode(outcome))
            os.replace(file.name, self._path(case))

    def _path(self, case: Case) -> Path:
        assert self._folder is not None
        digest = hashlib.sha256(f"{self._code}\n{case.identity()}".encode())
        if case.workload not in WORKLOADS:
            digest.update(Path(case.workload).read_bytes())
        return self._folder / f"{digest.hexdigest()[:40]}.json"


def default_cache() -> Path:
    """Where outcomes are kept: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "headway" / "simulate"


def cores() -> int:
    """How many runs go on at once where nobody says otherwise."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def fresh_pool(jobs: int) -> ProcessPoolExecutor:
    """Processes for many calls of `run_all`; nothing of this one, its threads included, is carried
    over into them."""
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def run_all(
    cases: Sequence[Case],
    cache: Cache,
    *,
    jobs: int,
    progress: Callable[[int, int], None],
    pool: Executor | None = None,
) -> list[Outcome]:
    """The outcomes of all cases, in their order; `progress(done, of)` is told after each.

    Cases that are the same are played once. Where no `pool` is given, processes are started for
    this call alone.
    """
    alike: dict[str, list[int]] = {}
    for index, case in enumerate(cases):
        alike.setdefault(case.identity(), []).append(index)
    outcomes: list[Outcome | None] = [None] * len(cases)
    left, done = [], 0
    for places in alike.values():
        known = cache.find(cases[places[0]])
        if known is None:
            left.append(places)
        else:
            _put(outcomes, places, known)
            done += len(places)
    progress(done, len(cases))
    for first, outcome in _played(cases, [places[0] for places in left], jobs, pool=pool):
        cache.keep(cases[first], outcome)
        places = alike[cases[first].identity()]
        _put(outcomes, places, outcome)
        done += len(places)
        progress(done, len(cases))
    return [outcome for outcome in outcomes if outcome is not None]


def _put(outcomes: list[Outcome | None], places: Sequence[int], outcome: Outcome) -> None:
    for place in places:
        outcomes[place] = outcome


def _played(
    cases: Sequence[Case], left: Sequence[int], jobs: int, *, pool: Executor | None
) -> Iterator[tuple[int, Outcome]]:
    if jobs <= 1 or (pool is None and len(left) <= 1):
        for index in left:
            yield index, play(cases[index])
        return
    with nullcontext(pool) if pool is not None else fresh_pool(min(jobs, len(left))) as players:
        futures: dict[Future[Outcome], int] = {
            players.submit(play, cases[index]): index for index in left
        }
        for future in as_completed(futures):
            yield futures[future], future.result()


@dataclass(frozen=True, slots=True)
class Ratio:
    """A geometric mean of ratios, and its 95 % interval where there are two or more."""

    mean: float
    low: float | None
    high: float | None


def paired(values: Sequence[float], base: Sequence[float]) -> Ratio | None:
    """How many times `base` the values are, pair by pair; None where a pair has a 0.

    The interval is Student's, on the logarithms.
    """
    if not values or any(value <= 0 for value in (*values, *base)):
        return None
    logs = [math.log(value / other) for value, other in zip(values, base, strict=True)]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), None, None)
    t = _T[len(logs) - 2] if len(logs) - 2 < len(_T) else 1.96
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
