"""What the core itself costs: letting a request wait, and filling seats, with a long queue.

`python -m bench.core_cost`: medians in microseconds, beside the time of a fixed loop of plain
Python, so that figures of different machines can be compared. Exit status 1 where a bound is broken.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, cycle

from bench.presets import executor_of
from controller.batcher import Batcher
from controller.config import Config
from controller.config_control import EnvelopeConfig, LimitsConfig, PolicyConfig
from controller.core import build_core
from controller.queues import Permit
from controller.request import Request
from executor.contract import Finished, Report, Sampling, Submit
from executor.simulated import capacity_of, warmup_of
from gateway.daemon import calm_collector

OFFER_MOST_US, POLL_MOST_US = 5.0, 150.0
QUEUED, DISPATCHED = 10_000, 16
TIERS = ("paid", "free", "offline")
_EXECUTOR = "main"
_PROMPT, _NEW = 100, 100
_OFFERS = 100
_SAMPLING = Sampling()


@dataclass(frozen=True, slots=True)
class Variant:
    """How the queue looks: so many keys in each tier, and so many seats taken at a poll."""

    name: str
    keys: int = 1
    running: int = 0


VARIANTS = (
    Variant("one key"),
    Variant("50 keys a tier", keys=50),
    Variant("64 running", running=64),
    Variant("50 keys a tier, 64 running", keys=50, running=64),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians in microseconds: of `reserve` and `offer`, one after the other and in one go, and of
    a `poll` that fills 16 seats."""

    reserve_us: float
    offer_us: float
    both_us: float
    poll_us: float


@dataclass(slots=True)
class Bench:
    """A batcher with a long queue, in the same state before every measurement."""

    variant: Variant
    queued: int = QUEUED
    now: float = 0.0
    batcher: Batcher = field(init=False)
    _ids: count[int] = field(default_factory=count)
    _running: list[Submit] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings, seats = executor_of("E3"), self.variant.running + DISPATCHED
        core = build_core(
            _tiers_without_bounds(),
            {_EXECUTOR: "default"},
            limits=LimitsConfig(max_batch_size=seats, max_batch_tokens=8192, wait_timeout=0.0),
            envelope=EnvelopeConfig(max_batch_size=(1, 256), max_batch_tokens=(64, 8192)),
            control=Config().control.model_copy(update={"policy": PolicyConfig(type="static")}),
            listeners=(),
            started=0.0,
            stopwatch=lambda: 0.0,
        )
        self.batcher = core.batcher
        core.observer.warmed_up(_EXECUTOR, warmup_of(settings))
        self.batcher.on_ready(_EXECUTOR, 1, capacity_of(settings), self.now)
        self._enter(self._requests(seats, tiers=("paid",)))
        self._take(seats)
        self._enter(self._requests(self.queued))

    def cost(self, rounds: int) -> Cost:
        """Measure so many times each; the queue is as long after as before."""
        for measure in (self._offers, self._poll):
            for _ in range(max(1, rounds // 10)):
                measure()
        offers = [self._offers() for _ in range(rounds)]
        polls = [self._poll() for _ in range(rounds)]
        reserve, offer, both = (statistics.median(column) for column in zip(*offers, strict=True))
        return Cost(reserve, offer, both, statistics.median(polls))

    def _offers(self) -> tuple[float, float, float]:
        """Microseconds of one `reserve`, one `offer`, and both together."""
        batcher, now, clock = self.batcher, self.now, time.perf_counter
        requests = self._requests(_OFFERS)
        begun = clock()
        permits = [_reserve(batcher, request, now) for request in requests]
        reserved = clock()
        for request, permit in zip(requests, permits, strict=True):
            batcher.offer(request, permit, now)
        offered = clock()
        self._leave(requests)
        requests = self._requests(_OFFERS)
        again = clock()
        for request in requests:
            batcher.offer(request, _reserve(batcher, request, now), now)
        ended = clock()
        self._leave(requests)
        took = (reserved - begun, offered - reserved, ended - again)
        return took[0] / _OFFERS * 1e6, took[1] / _OFFERS * 1e6, took[2] / _OFFERS * 1e6

    def _poll(self) -> float:
        """Microseconds of a poll after 16 of those that run have ended."""
        leaving, self._running = self._running[:DISPATCHED], self._running[DISPATCHED:]
        finished = [Finished(one.request_id, one.attempt, "length") for one in leaving]
        tiers = [self.batcher.book.requests[one.request_id].tier for one in leaving]
        self.batcher.on_report(_EXECUTOR, 1, Report(epoch=0, finished=finished), self.now)
        begun = time.perf_counter()
        plan = self.batcher.poll(self.now)
        took = time.perf_counter() - begun
        submitted = plan.work[_EXECUTOR].submit
        if len(submitted) != DISPATCHED:
            raise AssertionError(f"a poll was to dispatch {DISPATCHED}, not {len(submitted)}")
        self._running += submitted
        self._enter(self._requests(DISPATCHED, tiers=tiers))
        return took * 1e6

    def _take(self, seats: int) -> None:
        self._running += self.batcher.poll(self.now).work[_EXECUTOR].submit
        if len(self._running) != seats:
            raise AssertionError(f"{seats} were to run, not {len(self._running)}")

    def _enter(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.batcher.offer(request, _reserve(self.batcher, request, self.now), self.now)

    def _leave(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.batcher.cancel(request.id, self.now, Outcome.CANCELLED, "measured")
        self.batcher.book.take_ended()

    def _requests(self, number: int, *, tiers: Sequence[str] = TIERS) -> list[Request]:
        names = cycle(tiers)
        made = []
        for serial in (next(self._ids) for _ in range(number)):
            made.append(
                Request(
                    id=f"r{serial}",
                    tier=next(names),
                    client=f"c{serial // len(tiers) % self.variant.keys}",
                    prompt=_prompt,
                    max_new_tokens=_NEW,
                    sampling=_SAMPLING,
                    arrival=self.now,
                    arrived_at=self.now,
                )
            )
        return made
