"""What a line of requests allows at best: an engine that leaves no seat empty, on its own clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

from bench.batching_drive import Clock
from executor.contract import Finished, Report, StepSample, Tokens, Work


class StepTimes:
    """What decode steps took, by size of batch: the median, between sizes in a straight line."""

    def __init__(self, samples: Iterable[StepSample]) -> None:
        seen: dict[int, list[float]] = {}
        for sample in samples:
            if not sample.prefill_tokens:
                seen.setdefault(sample.sequences, []).append(sample.duration_s)
        self._known = {size: statistics.median(found) for size, found in sorted(seen.items())}

    def __call__(self, size: int) -> float:
        """Seconds of a step of so many rows; beyond the sizes that were seen, of the nearest."""
        below = [known for known in self._known if known <= size] or [min(self._known)]
        above = [known for known in self._known if known >= size] or [max(self._known)]
        low, high = below[-1], above[0]
        part = (size - low) / (high - low) if high > low else 0.0
        return self._known[low] + part * (self._known[high] - self._known[low])


class Ideal(Clock):
    """An engine, and its own clock, that wastes nothing: who comes joins the next step, who is done
    leaves it; a step of n rows takes `step_s(n)`, and `prefill_s` more for each prompt token."""

    def __init__(self, step_s: Callable[[int], float], prefill_s: float) -> None:
        super().__init__()
        self._step_s, self._prefill_s = step_s, prefill_s
        self._now = 0.0
        self._left: dict[str, int] = {}
        self._prompt_tokens = 0

    def now(self) -> float:
        """Seconds of its own."""
        return self._now

    def wait_until(self, then: float) -> None:
        """It is that late at once."""
        self._now = max(self._now, then)

    def apply(self, work: Work) -> None:
        """Take work."""
        for submit in work.submit:
            self._left[submit.request_id] = submit.max_new_tokens
            self._prompt_tokens += len(submit.tokens)

    def has_work(self) -> bool:
        """Whether anybody is there."""
        return bool(self._left)

    def step(self) -> Report:
        """A token for everybody."""
        self._now += self._step_s(len(self._left)) + self._prefill_s * self._prompt_tokens
        self._prompt_tokens = 0
        tokens = [Tokens(name, 1, 0, [0]) for name in self._left]
        self._left = {name: left - 1 for name, left in self._left.items()}
        done = [name for name, left in self._left.items() if not left]
        for name in done:
            del self._left[name]
        return Report(
            epoch=1, tokens=tokens, finished=[Finished(name, 1, "length") for name in done]
        )
