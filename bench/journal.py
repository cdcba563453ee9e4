"""What is written down of a run: each request's fate, the moves of the limits, and who starved."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from bench.arrivals import Arrival
from controller.ledger import ExecutorSeats
from controller.listener import Listener
from controller.request import Ended, Request
from executor.contract import Report
from policies.contract import Limits


@dataclass(frozen=True, slots=True)
class Fate:
    """How one request fared; instants in seconds from the start of the run, None: never came.

    `outcome` is a `controller.request.Outcome`, or `open` for what the run's end cut off at
    `ended_s`. `tokens` were generated of the `wanted` ones. `key` is who asked, within the tier.
    """

    tier: str
    arrival_s: float
    prompt: int
    tokens: int
    first_s: float | None
    last_s: float | None
    ended_s: float
    outcome: str
    reason: str
    wanted: int
    key: int


@dataclass(frozen=True, slots=True)
class Move:
    """Limits of a group, in force from `time_s` on."""

    time_s: float
    group: str
    max_batch_size: int
    max_batch_tokens: int
    wait_timeout_s: float


@dataclass(slots=True)
class _Waiting:
    """One tier: how many wait, since when without progress, and the longest such time."""

    queued: int = 0
    since: float = math.inf
    longest_s: float = 0.0

    def progress(self, now: float) -> None:
        if self.queued:
            self.longest_s = max(self.longest_s, now - self.since)
        self.since = now


@dataclass(slots=True, eq=False)
class Journal(Listener):
    """Listens to the batcher and keeps what the outcome is reckoned from.

    `steps` and `rows` count the steps and who ran in them, `busy_s` is the time that they took, on
    all `executors` that took any.
    """

    fates: list[Fate] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    steps: int = 0
    rows: int = 0
    busy_s: float = 0.0
    executors: set[str] = field(default_factory=set)
    _arrivals: dict[str, Arrival] = field(default_factory=dict)
    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    _queued: set[str] = field(default_factory=set)

    def arrived(self, request: Request, arrival: Arrival) -> None:
        """A request is about to be offered; with one queue for all, that is not its tier."""
        self._arrivals[request.id] = arrival

    def turned_away(self, request: Request, reason: str, now: float) -> None:
        """It was not let in."""
        self._write(request, "rejected", reason, now)

    def limits(self, group: str, limits: Limits, now: float) -> None:
        """These limits are in force from now on."""
        size, tokens = limits.max_batch_size, limits.max_batch_tokens
        self.moves.append(Move(now, group, size, tokens, limits.wait_timeout_s))

    def close(self, left: Iterable[Request], now: float) -> None:
        """The run is over; these requests are not."""
        for request in left:
            self._write(request, "open", "", now)
        for waiting in self._waiting.values():
            waiting.progress(now)

    def longest_starvation_s(self) -> dict[str, float]:
        """The longest time without a dispatch or a token while requests waited, by tier."""
        return {tier: waiting.longest_s for tier, waiting in sorted(self._waiting.items())}

    # --- as a listener ----------------------------------------------------------------------

    def offered(self, request: Request, now: float) -> None:
        self._enter(request, now)

    def given_back(self, request: Request, reason: str, now: float) -> None:
        self._enter(request, now)

    def dispatched(self, request: Request, now: float) -> None:
        self._leave(request, now)

    def stepped(self, seats: ExecutorSeats, report: Report, now: float) -> None:
        if report.sample is not None:
            self.executors.add(seats.name)
            self.busy_s += report.sample.duration_s
            self.steps += report.steps
            self.rows += report.steps * report.sample.sequences
        told = (self._arrivals.get(tokens.request_id) for tokens in report.tokens)
        # Of one that was cancelled meanwhile nothing is counted any more.
        for tier in {arrival.tier for arrival in told if arrival is not None}:
            self._waiting[tier].progress(now)

    def ended(self, ended: Ended, now: float) -> None:
        request = ended.request
        if request.id in self._queued:
            self._leave(request, now)
        self._write(request, ended.outcome.value, ended.reason, now)

    # --- inside -----------------------------------------------------------------------------

    def _of(self, request: Request) -> _Waiting:
        tier = self._arrivals[request.id].tier
        waiting = self._waiting.get(tier)
        if waiting is None:
            waiting = self._waiting[tier] = _Waiting()
        return waiting

    def _enter(self, request: Request, now: float) -> None:
        waiting = self._of(request)
        if not waiting.queued:
            waiting.since = now
        waiting.queued += 1
        self._queued.add(request.id)

    def _leave(self, request: Request, now: float) -> None:
        waiting = self._of(request)
        waiting.progress(now)
        waiting.queued -= 1
        self._queued.discard(request.id)

    def _write(self, request: Request, outcome: str, reason: str, now: float) -> None:
        times, arrival = request.times, self._arrivals.pop(request.id)
        self.fates.append(
            Fate(
                tier=arrival.tier,
                arrival_s=request.arrival,
                prompt=len(request.prompt),
                tokens=len(request.tokens),
                first_s=times.first_token,
                last_s=times.last_token,
                ended_s=now,
                outcome=outcome,
                reason=reason,
                wanted=arrival.output,
                key=arrival.key,
            )
        )
