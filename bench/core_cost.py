"""What the core itself costs: letting a request wait, and filling seats, with a long queue.

`python -m bench.core_cost` prints medians in microseconds, beside the time of a fixed loop of plain
Python, so that figures of different machines can be compared, and exits with 1 where a bound is
not kept.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

from bench.presets import executor_of
from controller.batcher import Batcher
from controller.config import Config
from controller.config_control import EnvelopeConfig, LimitsConfig, PolicyConfig
from controller.core import build_core
from controller.places import Permit
from controller.request import Outcome, Request
from controller.tiers import Tier
from executor.contract import Finished, Report, Sampling, Submit, Tokens
from executor.simulated import capacity_of, warmup_of
from gateway.daemon import calm_collector

OFFER_MOST_US, POLL_MOST_US = 5.0, 150.0
QUEUED, DISPATCHED = 10_000, 16
TIERS = ("paid", "free", "offline")
_EXECUTOR = "main"
# Short enough for nobody to be sent away so that others may begin in time.
_PROMPT, _NEW = 100, 8
# So many are offered between two looks at the clock; and so far apart they arrive.
_OFFERS = 100
_APART_S = 1e-7
_ROUNDS = 300
_LOOP = 1_000


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

    def holds(self) -> bool:
        """Whether both bounds are kept."""
        return self.offer_us < OFFER_MOST_US and self.poll_us < POLL_MOST_US


@dataclass(slots=True)
class Bench:
    """A batcher with a long queue, in the same state before every measurement."""

    variant: Variant
    queued: int = QUEUED
    now: float = 0.0
    batcher: Batcher = field(init=False)
    _numbers: count[int] = field(default_factory=count)
    _prompt: list[int] = field(default_factory=lambda: [0] * _PROMPT)
    _running: list[Submit] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings, seats = executor_of("E3"), self.variant.running + DISPATCHED
        core = build_core(
            _patient(Config().tier_list()),
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
        self._fill(seats)
        self._enter(self._requests(self.queued))

    def cost(self, rounds: int) -> Cost:
        """Measure so many times each; the queue is as long after as before."""
        for _ in range(rounds // 10):
            self._offers()
            self._poll()
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
        self._begin(submitted)
        for tier in tiers:
            self._enter(self._requests(1, tiers=(tier,)))
        return took * 1e6

    def _fill(self, seats: int) -> None:
        """Let so many run, as fast as those who run let others begin."""
        while len(self._running) < seats:
            submitted = self.batcher.poll(self.now).work[_EXECUTOR].submit
            if not submitted:
                raise AssertionError(f"only {len(self._running)} of {seats} were let run")
            self._begin(submitted)

    def _begin(self, submitted: Sequence[Submit]) -> None:
        """They run, and have their first token."""
        self._running += submitted
        tokens = [Tokens(one.request_id, one.attempt, 0, [0]) for one in submitted]
        self.batcher.on_report(_EXECUTOR, 1, Report(epoch=0, tokens=tokens), self.now)

    def _enter(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.batcher.offer(request, _reserve(self.batcher, request, self.now), self.now)

    def _leave(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.batcher.cancel(request.id, self.now, Outcome.CANCELLED, "measured")
        self.batcher.book.take_ended()

    def _requests(self, number: int, *, tiers: Sequence[str] = TIERS) -> list[Request]:
        """So many new ones, of these tiers in turn."""
        made = []
        for serial in islice(self._numbers, number):
            self.now += _APART_S
            made.append(self._request(serial, tiers[serial % len(tiers)]))
        return made

    def _request(self, serial: int, tier: str) -> Request:
        return Request(
            id=f"r{serial}",
            tier=tier,
            client=f"c{serial // len(TIERS) % self.variant.keys}",
            prompt=self._prompt,
            max_new_tokens=_NEW,
            sampling=Sampling(),
            arrival=self.now,
            arrived_at=self.now,
        )


def loop_us() -> float:
    """Microseconds of a fixed loop of plain Python, the median of many."""

    def once() -> float:
        begun = time.perf_counter()
        total = 0
        for number in range(_LOOP):
            total += number & 7
        assert total
        return (time.perf_counter() - begun) * 1e6

    return statistics.median(once() for _ in range(1000))


def _reserve(batcher: Batcher, request: Request, now: float) -> Permit:
    return batcher.reserve(
        request.tier, requests=1, tokens=_PROMPT + _NEW, size=4 * _PROMPT, now=now
    )


def _patient(tiers: Sequence[Tier]) -> list[Tier]:
    """Whose queues take them all, and who wait for hours where the default has a bound."""
    return [
        replace(
            tier,
            max_queue_requests=QUEUED,
            max_queue_tokens=10**9,
            start_within_s=None if tier.start_within_s is None else 36_000.0,
        )
        for tier in tiers
    ]


def main() -> None:
    """Measure every variant, say whether the bounds are kept, and exit with 1 where not."""
    # Everything that is there now lives as long as the process, as in the daemon.
    calm_collector()
    loop = loop_us()
    print(f"a loop of {_LOOP:,} in plain Python: {loop:.1f} us")
    kept = True
    for variant in VARIANTS:
        cost = Bench(variant).cost(_ROUNDS)
        kept = kept and cost.holds()
        print(
            f"{QUEUED:,} queued, {variant.name}: reserve {cost.reserve_us:.2f} us, offer "
            f"{cost.offer_us:.2f} us ({_kept(cost.offer_us, OFFER_MOST_US)}), both in one go "
            f"{cost.both_us:.2f} us; poll that dispatches {DISPATCHED} {cost.poll_us:.0f} us "
            f"({_kept(cost.poll_us, POLL_MOST_US)}); in loops: offer "
            f"{cost.offer_us / loop:.3f}, poll {cost.poll_us / loop:.2f}",
            flush=True,
        )
    if not kept:
        sys.exit("a bound is not kept")


def _kept(us: float, most_us: float) -> str:
    return f"{'under' if us < most_us else 'NOT UNDER'} {most_us:g}"


if __name__ == "__main__":
    main()
