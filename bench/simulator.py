"""The core in virtual time: the daemon's batcher and control loops around simulated executors.

Discrete events, no clock, no sleep: what happens next happens now. A step's report arrives at its
end, and the answer to it is in force from the next step on, as with a worker process. What reaches
an executor during a step waits for its end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from bench.arrivals import Arrival, FaultAt, Source, Workload
from bench.journal import Journal
from bench.pretended import Make, Pretended
from controller.core import Core
from controller.errors import CapacityError, ContextLengthExceeded, Unavailable
from controller.request import Request
from controller.tiers import Tier
from executor.contract import Fault, Sampling, SimulatedSettings, Work
from executor.simulated import capacity_of, warmup_of
from executor.simulated_leaps import LeapingSimulation
from policies.static import Static

_SAMPLING = Sampling(ignore_eos=True)
# So long before a fault every token is told with its step; longer than any step.
FAULT_LOOK_S = 5.0
# A client that is turned away comes again so much later, and its thinking time.
RETRY_S = 1.0
NO_WORK: Mapping[str, Work] = MappingProxyType({})
# The one queue for all tiers, of the baseline that knows none.
ALL = "all"


@dataclass(frozen=True, slots=True)
class Rules:
    """How a run goes. `fifo`: one queue for all tiers, in order of arrival, as a baseline.

    The run goes on for `drain_s` after the workload's end, so that what came late can end.
    `expected_new_tokens` is how long a completion without `max_tokens` is thought to become.
    `gateway_s` is what a request takes from its arrival at the daemon until it waits: HTTP, reading
    it, counting its tokens.
    `leap` False takes every step by itself even where no policy looks: slow, and the same.
    """

    interval_s: float = 0.25
    drain_s: float = 60.0
    fifo: bool = False
    expected_new_tokens: int = 256
    gateway_s: float = 0.0
    leap: bool = True


@dataclass(slots=True, eq=False)
class Simulator:
    """One run. `core` must have been built at time 0 with `journal` among its listeners.

    `settings` are those of each executor, whose seeds the run's `seed` replaces; `make` builds the
    model of one.
    """

    core: Core
    settings: Mapping[str, SimulatedSettings]
    tiers: Mapping[str, Tier]
    workload: Workload
    journal: Journal
    rules: Rules
    seed: int
    make: Make = LeapingSimulation
    now: float = 0.0
    reports: int = 0
    steps: int = 0
    _executors: dict[str, Pretended] = field(default_factory=dict)
    _faults: list[FaultAt] = field(default_factory=list)
    _prompts: dict[int, list[int]] = field(default_factory=dict)
    _lengths: dict[str, int] = field(default_factory=dict)
    _clients: dict[str, int] = field(default_factory=dict)
    _context: int = 0
    _count: int = 0
    _resting: bool = False
    _tick: float = 0.0
    _wake: float = math.inf

    def run(self) -> None:
        """Serve the workload from its beginning to `drain_s` after its end."""
        source, batcher = Source(self.workload, self.seed), self.core.batcher
        self._start()
        end = self.workload.duration_s + self.rules.drain_s
        comes = source.next_time()
        while True:
            if comes is None and not batcher.book.requests:
                break
            first = self._first(math.inf if comes is None else comes)
            if first > end or math.isinf(first):
                self.now = end
                break
            self.now = first
            self._report_steps()
            self._befall()
            if comes is not None and comes <= self.now:
                for arrival in source.take(self.now):
                    if not self._arrive(arrival):
                        source.ended(arrival.client, self.now + RETRY_S)
                comes = source.next_time()
            if self._tick <= self.now:
                self._control()
            work = NO_WORK
            # Where nobody waits and nothing happened a poll has nothing to say.
            if batcher.has_news() or self._wake <= self.now or batcher.queued():
                plan = batcher.poll(self.now)
                work, self._wake = plan.work, math.inf if plan.wake_at is None else plan.wake_at
                for ended in plan.ended:
                    self._lengths.pop(ended.request.id, None)
                    client = self._clients.pop(ended.request.id, -1)
                    if client >= 0:
                        source.ended(client, self.now)
                        comes = source.next_time()
            self._begin_steps(work, comes)
        self.journal.close(batcher.book.requests.values(), self.now)

    def _start(self) -> None:
        self._context = min(
            min(made.max_context_tokens, made.kv_tokens) for made in self.settings.values()
        )
        self._faults = sorted(self.workload.faults, key=lambda fault: fault.time_s)
        for number, (name, settings) in enumerate(self.settings.items()):
            seeded = msgspec.structs.replace(settings, seed=self.seed * 1000 + number)
            self._executors[name] = Pretended(name, seeded, self._lengths, make=self.make)
            self._ready(self._executors[name])
        for group, loop in self.core.loops.items():
            self.journal.limits(group, loop.limits, 0.0)
        # A static policy looks at nothing: after its first tick it need not be asked again,
        # unless the guard has something to act on.
        policies = [policy for loop in self.core.loops.values() for policy in loop.asked()]
        sheds = any(queue.tier.sheddable for queue in self.core.batcher.queues.values())
        self._resting = not sheds and all(isinstance(policy, Static) for policy in policies)

    def _first(self, comes: float) -> float:
        """The instant at which something happens next."""
        first = min(comes, self._tick, self._wake)
        if self._faults:
            first = min(first, self._faults[0].time_s)
        for executor in self._executors.values():
            if executor.due < first:
                first = executor.due
        return first

    # --- what happens -----------------------------------------------------------------------

    def _report_steps(self) -> None:
        for executor in self._executors.values():
            if executor.due > self.now:
                continue
            report = executor.end_step(self.now)
            if report is None:
                self._ready(executor)
                continue
            self.reports += 1
            self.steps += report.steps
            self.core.batcher.on_report(executor.name, executor.incarnation, report, self.now)
            if report.returned:
                self._stir()

    def _befall(self) -> None:
        while self._faults and self._faults[0].time_s <= self.now:
            fault = self._faults.pop(0)
            executor = self._executors[fault.executor or next(iter(self._executors))]
            until = self.now + fault.seconds
            self._stir()
            if fault.kind == "blind":
                executor.blind_until = until
            elif fault.kind == "exit":
                executor.die(until)
                name, incarnation = executor.name, executor.incarnation
                self.core.batcher.on_lost(name, incarnation, self.now, back_at=until)
            else:
                executor.simulation.inject(Fault(fault.kind, fault.seconds))

    def _stir(self) -> None:
        """From here on even a static policy is asked: its guard may have to act."""
        if self._resting:
            self._resting = False
            self._tick = min(self._tick, self.now + self.rules.interval_s)

    def _arrive(self, arrival: Arrival) -> bool:
        """Let a request wait; False when it is turned away."""
        tier, now = self.tiers[arrival.tier], self.now
        asked = expected = arrival.output if arrival.asked is None else arrival.asked
        if asked == 0:
            asked = self._context - arrival.prompt
            expected = min(asked, self.rules.expected_new_tokens)
        self._count += 1
        request = Request(
            id=f"r{self._count}",
            tier=ALL if self.rules.fifo else tier.name,
            # One queue for everybody knows neither tiers nor keys.
            client=ALL if self.rules.fifo else f"{tier.name}/{arrival.key}",
            prompt=self._prompt(arrival.prompt),
            max_new_tokens=asked,
            sampling=_SAMPLING,
            arrival=arrival.time_s - self.rules.gateway_s,
            arrived_at=arrival.time_s,
            start_by=None if tier.start_within_s is None else now + tier.start_within_s,
            finish_by=None if tier.finish_within_s is None else now + tier.finish_within_s,
            expected_new_tokens=expected if arrival.asked == 0 else None,
        )
        self.journal.arrived(request, arrival)
        batcher, tokens = self.core.batcher, arrival.prompt + expected
        # A body has about four bytes a token.
        size = 4 * arrival.prompt
        permit = None
        try:
            permit = batcher.reserve(
                request.tier, requests=1, tokens=tokens, size=size, now=now, client=request.client
            )
            batcher.offer(request, permit, now)
        except (CapacityError, Unavailable, ContextLengthExceeded) as error:
            if permit is not None:
                batcher.give_back(permit)
            self.journal.turned_away(request, str(error.code), now)
            return False
        self._lengths[request.id] = arrival.output
        self._clients[request.id] = arrival.client
        return True

    def _control(self) -> None:
        for group, loop in self.core.loops.items():
            if loop.tick(self.now, wall=self.now, devices={}).moved:
                self.journal.limits(group, loop.limits, self.now)
        self._tick = math.inf if self._resting else self.now + self.rules.interval_s

    # --- executors --------------------------------------------------------------------------

    def _ready(self, executor: Pretended) -> None:
        executor.revive()
        self.core.observer.warmed_up(executor.name, warmup_of(executor.settings))
        self.core.batcher.on_ready(
            executor.name, executor.incarnation, capacity_of(executor.settings), self.now
        )

    def _begin_steps(self, work: Mapping[str, Work], comes: float | None) -> None:
        """Hand out the work, and begin the next step where none is under way."""
        for name, message in work.items():
            self._executors[name].take(message)
        until = min(self._wake, math.inf if comes is None else comes)
        fault_at = self._faults[0].time_s if self._faults else math.inf
        # Where a policy looks every step counts by itself: in windows, samples and latencies.
        leap = self._resting and self.rules.leap
        until = min(until, fault_at) if leap else self.now
        # Of a process that dies, what it told is all that is left.
        tell = not leap or fault_at - self.now < FAULT_LOOK_S
        for executor in self._executors.values():
            if executor.idle():
                mine = until
                # What another one's report sets going may concern this one.
                for other in self._executors.values():
                    if other is not executor and other.due < mine:
                        mine = other.due
                executor.begin_step(self.now, until=mine, end_by=fault_at, tell=tell)

    def _prompt(self, tokens: int) -> list[int]:
        """A prompt of this length: nobody reads it, so all of one length share one list."""
        if tokens not in self._prompts:
            self._prompts[tokens] = [0] * tokens
        return self._prompts[tokens]
