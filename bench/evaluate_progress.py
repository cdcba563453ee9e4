"""How an evaluation's runs are played: on all cores, through the cache, telling how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from threading import Lock
from types import TracebackType

from bench.campaign import Cache, fresh_pool, run_all
from bench.case import Case
from bench.outcome import Outcome


class Runs:
    """Plays cases through the cache, counts them, and says on stderr how far it is.

    To be used in a `with`: the processes that play end with it. Several threads may call at once.
    """

    def __init__(self, cache: Cache, jobs: int) -> None:
        self._cache = cache
        self._jobs = jobs
        # Starts nothing before the first run.
        self._pool = fresh_pool(jobs) if jobs > 1 else None
        self._begun = time.perf_counter()
        self._told = 0.0
        self._lock = Lock()
        self.count = 0

    def __enter__(self) -> Runs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __call__(self, cases: Sequence[Case]) -> list[Outcome]:
        """Outcomes in the order of the cases."""
        outcomes = run_all(
            cases, self._cache, jobs=self._jobs, progress=self._progress, pool=self._pool
        )
        with self._lock:
            self.count += len(cases)
        return outcomes

    def lasted_s(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._begun

    def _progress(self, done: int, of: int) -> None:
        now = self.lasted_s()
        # Where nobody watches, a line a minute.
        watched = sys.stderr.isatty()
        if watched or now - self._told > 60:
            self._told = now
            begin, end = ("\r", "") if watched else ("", "\n")
            told = f"{self.count + done} runs, of these {done} of {of}; {now:.0f} s"
            print(f"{begin}{told}", end=end, file=sys.stderr, flush=True)
