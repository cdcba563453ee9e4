"""How an engine is given a line of requests: first come, first served, by the seats it has."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from executor.contract import Finished, Report, Sampling, StepSample, Submit, Tokens, Work

RULES = Sampling(ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that comes at `time_s`, for a completion of exactly `new` tokens."""

    time_s: float
    prompt: Sequence[int]
    new: int


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
    engine: Steps, asked: Sequence[Ask], *, seats: int, step_tokens: int, joins: bool, clock: Clock
) -> Played:
    """Let everybody come in time, and go on until all are done. `joins`: a seat that is free is
    taken at the next step; otherwise when all are."""
    played = Played(asked, [0.0] * len(asked), [0.0] * len(asked))
    coming, waiting = deque(range(len(asked))), deque[int]()
    running = tokens = 0
    while coming or waiting or running:
        while coming and asked[coming[0]].time_s <= clock.now():
            waiting.append(coming.popleft())
        room = seats - running if joins or not running else 0
        begun = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        if begun:
            engine.apply(Work(1, step_tokens, [_submit(asked[number], number) for number in begun]))
            running += len(begun)
            if not waiting and not coming:
                played.fed_s, played.fed_tokens = clock.now(), tokens
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
            running -= 1
            played.ended_s[int(finished.request_id)] = now
    return played


def _submit(ask: Ask, number: int) -> Submit:
    return Submit(str(number), 1, list(ask.prompt), len(ask.prompt), ask.new, RULES)


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
