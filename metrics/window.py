"""What the recent past looked like: rolling quantiles, sums and miss fractions, time an argument.

Quantiles come from histograms with logarithmic buckets, which add up across windows, tiers and
replicas, after DDSketch (Masson, Rim, Lee: "DDSketch: a fast and fully-mergeable quantile sketch
with relative-error guarantees", VLDB 2019).
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import Generic, TypeVar

RELATIVE_ERROR = 0.02
_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_PER_LOG = 1 / math.log(_GAMMA)
_MIDDLE = 2 / (1 + _GAMMA)
_LEAST = 1e-6  # what is shorter counts as 0, in bucket 0
_MOST = 1e6
_SHIFT = 1 - math.ceil(math.log(_LEAST) * _PER_LOG)  # puts the least value in bucket 1
_BITS = 32
_NOTHING = bytes((math.ceil(math.log(_MOST) * _PER_LOG) + _SHIFT + 1) * _BITS // 8)


@dataclass(frozen=True, slots=True)
class Summary:
    """A distribution as people read it, of at least one sample; quantiles within 2 %."""

    samples: int
    mean: float
    p50: float
    p90: float
    p99: float


class Histogram:
    """Counts of values (0 to 1e6) by logarithmic bucket. Two of them add up exactly.

    What is read lies side by side in one integer, 32 bits a count: a window of 30 slots merges in
    30 additions, where dictionaries of counts took longer than the rest of a tick. What is added
    goes to an array first, and into the integer when somebody reads: an addition to an integer of
    some thousand bytes makes a new one.
    """

    __slots__ = ("_added", "_packed", "samples", "total")

    def __init__(self) -> None:
        self._packed = 0
        self._added: array[int] | None = None
        self.samples = 0
        self.total = 0.0

    @property
    def packed(self) -> int:
        """All counts, the lowest bucket in the lowest 32 bits."""
        if self._added is not None:
            if sys.byteorder == "big":
                self._added.byteswap()
            self._packed += int.from_bytes(self._added.tobytes(), "little")
            self._added = None
        return self._packed

    def add(self, value: float) -> None:
        """Count one value. Raises ValueError for what is negative, infinite or no number."""
        if not 0 <= value < _MOST:
            raise ValueError(f"a sample should be from 0 to {_MOST:g}, given {value!r}")
        if self._added is None:
            self._added = array("I", _NOTHING)
        bucket = math.ceil(math.log(value) * _PER_LOG) + _SHIFT if value > _LEAST else 0
        self._added[bucket] += 1
        self.samples += 1
        self.total += value

    @classmethod
    def of(cls, parts: Sequence[Histogram]) -> Histogram:
        """Everything that these counted."""
        merged = cls()
        # In one go: a tick merges hundreds, and a call for each took longer than the additions.
        merged._packed = sum([part.packed for part in parts])
        merged.samples = sum([part.samples for part in parts])
        merged.total = sum([part.total for part in parts], 0.0)
        return merged

    def merge(self, other: Histogram) -> None:
        """Count everything that `other` counted, too."""
        self._packed = self.packed + other.packed
        self.samples += other.samples
        self.total += other.total

    def quantiles(self, fractions: Iterable[float]) -> list[float]:
        """The values that these fractions (ascending, 0..1) of the samples do not exceed.

        Within 2 % of the sample of that rank. Raises ValueError when nothing was counted.
        """
        if not self.samples:
            raise ValueError("a histogram of nothing has no quantiles")
        counts = self.packed
        buckets = -(-counts.bit_length() // _BITS)
        packed = counts.to_bytes(buckets * _BITS // 8, "little")
        seen = list(accumulate(struct.unpack(f"<{buckets}I", packed)))
        found = []
        for fraction in fractions:
            bucket = bisect_left(seen, max(1, math.ceil(fraction * self.samples)))
            found.append(_GAMMA ** (bucket - _SHIFT) * _MIDDLE if bucket else 0.0)
        return found

    def summary(self) -> Summary | None:
        """What people read, or None when nothing was counted."""
        if not self.samples:
            return None
        p50, p90, p99 = self.quantiles((0.5, 0.9, 0.99))
        return Summary(self.samples, self.total / self.samples, p50, p90, p99)


S = TypeVar("S")


class Slots(Generic[S]):
    """Slots of equal length in time, one for each epoch seen in it; old ones are forgotten."""

    def __init__(self, make: Callable[[], S], *, resolution_s: float, horizon_s: float) -> None:
        if not 0 < resolution_s <= horizon_s < math.inf:
            raise ValueError(
                f"a slot of {resolution_s} s does not fit in a horizon of {horizon_s} s"
            )
        self._make = make
        self._resolution_s = resolution_s
        self._kept = math.ceil(horizon_s / resolution_s) + 1
        self._slots: dict[tuple[int, int], S] = {}
        # The same, oldest first: where a slot begins, its epoch, and itself.
        self._starts: list[int] = []
        self._epochs: list[int] = []
        self._in_order: list[S] = []
        # The slot asked for last: nearly always the one that is asked for next.
        self._index, self._epoch = -1, -1
        self._last: S

    def at(self, now: float, epoch: int) -> S:
        """The slot for this instant and epoch."""
        index = math.floor(now / self._resolution_s)
        if index != self._index or epoch != self._epoch:
            slot = self._slots.get((index, epoch))
            if slot is None:
                self._forget(index - self._kept)
                slot = self._slots[index, epoch] = self._make()
                self._starts.append(index)
                self._epochs.append(epoch)
                self._in_order.append(slot)
            self._index, self._epoch, self._last = index, epoch, slot
        return self._last

    def since(self, since: float, epoch: int | None) -> list[S]:
        """Slots that reach beyond `since`, newest first, of this epoch or of any."""
        # Time does not run backwards, so slots come in the order of their starts.
        first = bisect_left(self._starts, math.floor(since / self._resolution_s))
        slots, epochs = self._in_order[first:], self._epochs[first:]
        slots.reverse()
        if epoch is None or epochs.count(epoch) == len(epochs):
            return slots
        epochs.reverse()
        return [slot for slot, of_epoch in zip(slots, epochs, strict=True) if of_epoch == epoch]

    def _forget(self, until: int) -> None:
        """Let go of slots that begin there or before."""
        old = bisect_right(self._starts, until)
        for key in zip(self._starts[:old], self._epochs[:old], strict=True):
            del self._slots[key]
        del self._starts[:old], self._epochs[:old], self._in_order[:old]


class Window:
    """The distribution of samples of the last while.

    `resolution_s` is how finely time is told apart: a window "since t" begins with the slot that
    holds t. `horizon_s` is how far back anything is remembered. A sample carries the epoch of the
    limits that it came about under.
    """

    def __init__(self, *, resolution_s: float, horizon_s: float = 60.0) -> None:
        self._slots = Slots(Histogram, resolution_s=resolution_s, horizon_s=horizon_s)

    def add(self, value: float, now: float, *, epoch: int = 0) -> None:
        """Count one sample, seen at `now`. Raises ValueError for a value that is no duration."""
        self._slots.at(now, epoch).add(value)

    def since(self, since: float, *, epoch: int | None = None) -> Histogram:
        """All samples since this instant, of one epoch or of any."""
        return Histogram.of(self._slots.since(since, epoch))

    def last(
        self,
        span_s: float,
        now: float,
        *,
        at_least: int = 1,
        at_most_s: float = 60.0,
        epoch: int | None = None,
    ) -> Summary | None:
        """What was seen in the last `span_s`, or in longer where that holds too little.

        A thin window reaches back slot by slot until it holds `at_least` samples, at most
        `at_most_s`. None when there was nothing at all.
        """
        merged = self.since(now - span_s, epoch=epoch)
        if merged.samples < at_least:
            merged = self._reach(now - at_most_s, at_least, epoch)
        return merged.summary()

    def _reach(self, since: float, at_least: int, epoch: int | None) -> Histogram:
        merged = Histogram()
        for slot in self._slots.since(since, epoch):
            if merged.samples >= at_least:
                break
            merged.merge(slot)
        return merged


@dataclass(slots=True)
class _Amount:
    value: float = 0.0


class RollingSum:
    """The sum of amounts (events, tokens, seconds) of the last while; slots as in `Window`."""

    def __init__(self, *, resolution_s: float, horizon_s: float = 60.0, started: float) -> None:
        self._slots = Slots(_Amount, resolution_s=resolution_s, horizon_s=horizon_s)
        self._resolution_s = resolution_s
        self._started = started

    def add(self, amount: float, now: float, *, epoch: int = 0) -> None:
        """Count `amount`, seen at `now`."""
        self._slots.at(now, epoch).value += amount

    def total(self, since: float, *, epoch: int | None = None) -> float:
        """The sum since this instant, of one epoch or of any."""
        return sum(slot.value for slot in self._slots.since(since, epoch))

    def rate(self, now: float, span_s: float) -> float | None:
        """Amount per second over the last `span_s`, or over as long as it has counted.

        None before the first slot is over: a rate of an instant says nothing.
        """
        since = max(now - span_s, self._started)
        # The sum begins with the slot that holds `since`, so the time must begin there too.
        begun = max(math.floor(since / self._resolution_s) * self._resolution_s, self._started)
        if now - begun < self._resolution_s:
            return None
        return self.total(since) / (now - begun)


def miss_bounds(misses: int, samples: int, *, confidence: float = 0.9) -> tuple[float, float]:
    """One-sided lower and upper bounds of the true miss fraction, each at `confidence`.

    Wilson's score bounds with continuity correction (Newcombe 1998, "Two-sided confidence
    intervals for the single proportion", method 4). They stay within a hair of the exact ones of
    Clopper and Pearson; Wilson's own would call one miss in 20 a breach of 99 %, which chance
    alone brings 18 times in 100.
    No samples: (0, 1). Raises ValueError when misses are negative or more than samples.
    """
    if not 0 <= misses <= samples:
        raise ValueError(f"{misses} misses of {samples} samples cannot be")
    if samples == 0:
        return 0.0, 1.0
    n, p = samples, misses / samples
    # With no misses, or nothing else, the exact bound is as simple as it can be.
    extreme = (1 - confidence) ** (1 / n)
    if misses == 0:
        return 0.0, 1 - extreme
    if misses == samples:
        return extreme, 1.0
    z = NormalDist().inv_cdf(confidence)
    around, scale = 2 * misses + z * z, 2 * (n + z * z)
    below = math.sqrt(z * z - 2 - 1 / n + 4 * p * (n * (1 - p) + 1))
    above = math.sqrt(z * z + 2 - 1 / n + 4 * p * (n * (1 - p) - 1))
    lower, upper = (around - 1 - z * below) / scale, (around + 1 + z * above) / scale
    return max(0.0, lower), min(1.0, upper)
