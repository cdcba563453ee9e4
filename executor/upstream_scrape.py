"""What an engine says of itself on /metrics, how old that is, and what is missing.

The daemon's own ledger is the truth about its requests. A scrape only adds what nobody here can
know: the memory in use, and the load that others bring. Without it nothing waits, and nothing is 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client.parser import text_string_to_metric_families

from executor.upstream_dialects import ALIASES, Signal

# Older than so many intervals, and nobody goes by it.
STALE_INTERVALS = 3
# A scrape may take this long, however often it is due: engines answer late while they are busy.
LEAST_PATIENCE_S = 1.0
_COUNTERS: tuple[Signal, ...] = ("preemptions", "progress")


@dataclass(frozen=True, slots=True)
class Scrape:
    """One look. `running` and `waiting` are requests, `kv` a fraction 0..1; `preemptions` and
    `progress` are what was counted since the look before. None is missing."""

    running: float | None = None
    waiting: float | None = None
    kv: float | None = None
    preemptions: float | None = None
    progress: float | None = None


def read(text: str) -> dict[Signal, float]:
    """The signals of an exposition, counters as they stand. Raises ValueError for none."""
    values = _values(text)
    found: dict[Signal, float] = {}
    for signal, names in ALIASES.items():
        for name in names:
            parts = [values.get(part) for part in name.split(" / ")]
            known = [part for part in parts if part is not None]
            if len(known) == len(parts) and (len(known) == 1 or known[1] > 0):
                found[signal] = known[0] / known[1] if len(known) == 2 else known[0]
                break
    return found


def kv_tokens(text: str) -> int | None:
    """Tokens of KV memory, where an exposition says so. Raises ValueError for none."""
    for sample in _samples(text, _SIZES):
        if sample.name == "sglang:max_total_num_tokens":
            return int(sample.value) or None
        blocks, size = (sample.labels.get(label, "") for label in ("num_gpu_blocks", "block_size"))
        if blocks.isdigit() and size.isdigit():
            return int(blocks) * int(size) or None
    return None


class Scraper:
    """Looks at one engine again and again. `get` answers the text, or raises."""

    def __init__(
        self,
        get: Callable[[], Awaitable[str]],
        *,
        interval_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._get = get
        self._interval_s = interval_s
        self._clock = clock
        self._sleep = sleep
        self._latest: Scrape | None = None
        self._at = 0.0
        self._counts: dict[Signal, float] = {}
        self._paused = 0.0

    async def run(self) -> None:
        """Look until cancelled. What goes wrong is only seen by the age of what there is."""
        patience_s = max(LEAST_PATIENCE_S, STALE_INTERVALS * self._interval_s)
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    text = await self._get()
                self.take(text)
            except (OSError, ValueError, TimeoutError):
                pass
            await self._sleep(self._interval_s)

    def take(self, text: str) -> None:
        """Take in what an engine answered just now. Raises ValueError where it is no exposition."""
        found, now = read(text), self._clock()
        # What was counted while nobody looked says nothing about now.
        continues = self._latest is not None and not self._is_stale(now)
        counted: dict[Signal, float] = {}
        for signal in _COUNTERS:
            if signal in found and signal in self._counts and continues:
                # A counter that fell began again: its engine was restarted.
                before = self._counts[signal]
                counted[signal] = found[signal] - (before if found[signal] >= before else 0.0)
        self._counts = {signal: found[signal] for signal in _COUNTERS if signal in found}
        self._latest, self._at = (
            Scrape(
                running=found.get("running"),
                waiting=found.get("waiting"),
                kv=found.get("kv"),
                preemptions=counted.get("preemptions"),
                progress=counted.get("progress"),
            ),
            now,
        )
        self._paused += self._latest.preemptions or 0.0

    def fresh(self, now: float) -> Scrape | None:
        """The latest look, unless there was none or it is stale."""
        return None if self._latest is None or self._is_stale(now) else self._latest

    def take_paused(self) -> int:
        """Sequences that the engine stopped for want of memory, each told once."""
        paused, self._paused = self._paused, 0.0
        return round(paused)

    def view(self, now: float, own: int) -> dict[str, Any]:
        """As JSON; `own` requests of its load are ours, and `foreign` is the rest."""
        state: Literal["missing", "stale", "fresh"] = "missing"
        if self._latest is not None:
            state = "stale" if self._is_stale(now) else "fresh"
        seen = self.fresh(now) or Scrape()
        foreign = None
        if seen.running is not None:
            foreign = max(0.0, seen.running + (seen.waiting or 0.0) - own)
        return {
            "state": state,
            "age_s": None if self._latest is None else round(max(0.0, now - self._at), 3),
            "running": seen.running,
            "waiting": seen.waiting,
            "kv": seen.kv,
            "foreign": foreign,
        }

    def _is_stale(self, now: float) -> bool:
        return now - self._at > STALE_INTERVALS * self._interval_s


_NAMES = tuple({part for names in ALIASES.values() for name in names for part in name.split(" / ")})
_SIZES = ("vllm:cache_config_info{", "sglang:max_total_num_tokens")
_LARGEST = frozenset(part for name in ALIASES["kv"] for part in name.split(" / "))


def _values(text: str) -> dict[str, float]:
    """Each of the names that count, over all of its series: the sum, of fractions the largest."""
    values: dict[str, float] = {}
    for sample in _samples(text, _NAMES):
        name, value = sample.name, sample.value
        if name in _NAMES and value == value:
            before = values.get(name)
            if before is not None:
                value = max(before, value) if name in _LARGEST else before + value
            values[name] = value
    return values


def _samples(text: str, names: tuple[str, ...]) -> list[Any]:
    # An engine's exposition is long, and reading all of it would hold up every stream.
    lines = [line for line in text.splitlines() if line.startswith(names)]
    try:
        families = list(text_string_to_metric_families("\n".join([*lines, ""])))
    except (IndexError, KeyError, TypeError) as error:
        # The library does not expect everything that is no exposition.
        raise ValueError(f"no exposition: {error}") from error
    return [sample for family in families for sample in family.samples]
