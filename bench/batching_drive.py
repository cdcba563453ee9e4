"""How an engine is given a line of requests: first come, first served, by the seats it has."""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from executor.contract import Key, Report, Sampling, StepSample, Submit, Work

RULES = Sampling(ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that comes at `time_s`, for a completion of exactly `new` tokens."""

    time_s: float
    prompt: Sequence[int]
    new: int


def lengths(recorded: Sequence[int], count: int, *, mean: float, seed: str) -> list[int]:
    """So many lengths in a random order, evenly from the shortest to the longest of what was
    recorded, scaled to a mean: rounds differ by the order alone."""
    ordered = sorted(recorded)
    picked = [ordered[int((i + 0.5) / count * len(ordered))] for i in range(count)]
    scale = mean / statistics.fmean(picked)
    scaled = [max(1, round(length * scale)) for length in picked]
    random.Random(seed).shuffle(scaled)
    return scaled


def arriving(rate: float, count: int, *, seed: str) -> list[float]:
    """Instants of a Poisson process, in seconds."""
    drawn, now, times = random.Random(seed), 0.0, []
    for _ in range(count):
        now += drawn.expovariate(rate)
        times.append(now)
    return times


class Steps(Protocol):
    """What is asked of an engine here; see `executor.engine.Engine`."""

    def apply(self, work: Work) -> None:
        """Take work."""

    def has_work(self) -> bool:
        """Whether there is something to step."""

    def step(self) -> Report:
        """One step."""


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds."""
        return time.perf_counter() - self._start

    def wait_until(self, then: float) -> None:
        """Come back when it is that late."""
        time.sleep(max(0.0, then - self.now()))


@dataclass(slots=True)
class Played:
    """What came of a line, in its order: when each got its last token, and when it was told that
    this was all. `fed_s` and `fed_tokens`: how long somebody waited, and the tokens made by then.
    """

    asked: Sequence[Ask]
    written_s: list[float]
    ended_s: list[float]
    fed_s: float = 0.0
    fed_tokens: int = 0
    samples: list[StepSample] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """While there was always somebody to take a seat that came free."""
        return self.fed_tokens / self.fed_s

    @property
    def response_s(self) -> float:
        """Mean time from a request's coming to its end."""
        return self._mean_s(self.ended_s)

    @property
    def text_s(self) -> float:
        """Mean time from a request's coming to its last token."""
        return self._mean_s(self.written_s)

    def _mean_s(self, ends: Sequence[float]) -> float:
        waits = [end - ask.time_s for ask, end in zip(self.asked, ends, strict=True)]
        return sum(waits) / len(waits)


def drive(
    engine: Steps,
    asked: Sequence[Ask],
    *,
    seats: int,
    step_tokens: int,
    joins: bool,
    clock: Clock,
    fed_only: bool = False,
) -> Played:
    """Let everybody come in time, and go on until all are done, or with `fed_only` until nobody
    would wait any more. `joins`: a seat that is free is taken at the next step; otherwise when all
    are."""
    played = Played(asked, [0.0] * len(asked), [0.0] * len(asked))
    coming, waiting, running = deque(range(len(asked))), deque[int](), set[int]()
    tokens = 0
    while coming or waiting or running:
        while coming and asked[coming[0]].time_s <= clock.now():
            waiting.append(coming.popleft())
        room = seats - len(running) if joins or not running else 0
        begun = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        if begun and not waiting and not coming:
            played.fed_s, played.fed_tokens = clock.now(), tokens
            if fed_only:
                _clear(engine, running, step_tokens=step_tokens)
                break
        if begun:
            engine.apply(Work(1, step_tokens, [_submit(asked[number], number) for number in begun]))
            running.update(begun)
        if not engine.has_work():
            if coming:
                clock.wait_until(asked[coming[0]].time_s)
            continue
        report = engine.step()
        now = clock.now()
        if report.returned:
            raise RuntimeError(f"{len(report.returned)} given back: {report.returned[0]}")
        if report.sample is not None:
            played.samples.append(report.sample)
        for part in report.tokens:
            tokens += len(part.ids)
            played.written_s[int(part.request_id)] = now
        for finished in report.finished:
            running.remove(int(finished.request_id))
            played.ended_s[int(finished.request_id)] = now
    return played


def _submit(ask: Ask, number: int) -> Submit:
    return Submit(str(number), 1, list(ask.prompt), len(ask.prompt), ask.new, RULES)


def _clear(engine: Steps, running: Iterable[int], *, step_tokens: int) -> None:
    """Leave the engine with nothing to do."""
    engine.apply(Work(1, step_tokens, release=[Key(str(number), 1) for number in running]))
    while engine.has_work():
        engine.step()
