"""Who arrives when: arrivals that are known beforehand, and clients that wait for their answers."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from bench.lengths import Lengths

FaultKind = Literal["stall", "fail", "oom", "exit", "blind"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request to come: seconds from the start, tokens of prompt and of the true completion.

    `asked` is the `max_tokens` that the client sets; None: just as long as the completion is,
    0: the client sets none, and nobody knows.
    `key` is the number of the key that it is sent with, among those of its tier.
    `client` is the number of the closed-loop client that it belongs to, -1: of nobody.
    """

    time_s: float
    tier: str
    prompt: int
    output: int
    asked: int | None = None
    key: int = 0
    client: int = -1


@dataclass(frozen=True, slots=True)
class Clients:
    """`count` clients of a tier, each with one request at a time.

    Each has a key of its own. A client thinks for `think_s` (exponential mean, 0: not at all)
    between an end and its next request. All begin at `start_s`, spread over one think time.
    """

    tier: str
    count: int
    think_s: float
    lengths: Lengths
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FaultAt:
    """What befalls an executor (None: the first one) at `time_s`, for `seconds`.

    `blind`: steps are done and not measured; `exit`: the process is gone for that long; the other
    kinds are those of `executor.contract.Fault`.
    """

    time_s: float
    kind: FaultKind
    seconds: float = 0.0
    executor: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to be served in one run. `arrivals` are in order of time, `changes` the instants at
    which the traffic becomes another."""

    name: str
    duration_s: float
    arrivals: tuple[Arrival, ...] = ()
    clients: tuple[Clients, ...] = ()
    faults: tuple[FaultAt, ...] = ()
    changes: tuple[float, ...] = ()


@dataclass(slots=True)
class _Client:
    group: Clients
    random: random.Random


@dataclass(slots=True, eq=False)
class Source:
    """Hands out the arrivals of a workload in order; told of ends, it sends clients again."""

    workload: Workload
    seed: int
    _next: int = 0
    _due: list[tuple[float, int]] = field(default_factory=list)
    _clients: list[_Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        for group in self.workload.clients:
            for _ in range(group.count):
                number = len(self._clients)
                # Each has its own stream, so that its choices do not depend on others' answers.
                drawn = random.Random(f"{self.seed}/client/{number}")
                self._clients.append(_Client(group, drawn))
                heapq.heappush(self._due, (group.start_s + drawn.random() * group.think_s, number))

    def next_time(self) -> float | None:
        """When somebody arrives next; None: nobody known."""
        arrivals, due = self.workload.arrivals, self._due
        known = arrivals[self._next].time_s if self._next < len(arrivals) else None
        if not due or due[0][0] >= self.workload.duration_s:
            return known
        return due[0][0] if known is None else min(known, due[0][0])

    def take(self, now: float) -> Iterator[Arrival]:
        """Everybody who has come by `now`."""
        arrivals = self.workload.arrivals
        while self._next < len(arrivals) and arrivals[self._next].time_s <= now:
            self._next += 1
            yield arrivals[self._next - 1]
        while self._due and self._due[0][0] <= now:
            due, number = heapq.heappop(self._due)
            if due < self.workload.duration_s:
                yield self._from_client(due, number)

    def ended(self, client: int, now: float) -> None:
        """The request of a client is over: it thinks, then it comes again."""
        if client >= 0:
            it = self._clients[client]
            think_s = it.random.expovariate(1 / it.group.think_s) if it.group.think_s else 0.0
            heapq.heappush(self._due, (now + think_s, client))

    def _from_client(self, now: float, number: int) -> Arrival:
        it = self._clients[number]
        prompt, output = it.group.lengths.draw(it.random)
        return Arrival(now, it.group.tier, prompt, output, key=number, client=number)
