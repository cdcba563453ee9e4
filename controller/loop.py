"""The tick: signals -> policy -> guard -> limits, and what happens when the policy fails."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from controller.batcher import Batcher
from controller.config_control import GuardConfig
from controller.decision import Decision
from controller.gates import Code
from controller.guard import NAMES, Envelope, Guard, Judged
from controller.ledger import ExecutorSeats
from controller.observer import Observer
from controller.records import Windows
from controller.signals import Device, SignalSource
from policies.contract import GuardNote, Limits, Policy, Proposal, Signals, TierLimits

# So many failures in a row are no accident: the fallback takes over.
MAX_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Named:
    """A policy and the name under which it is configured."""

    name: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class Pin:
    """Limits held by hand until an instant (monotonic seconds), and those that were in force
    before: they are in force again afterwards, for none of them was given up by the policy."""

    limits: Limits
    until: float
    before: Limits


class ControlLoop:
    """Sets the limits of one group of executors, once a tick.

    `tick` is synchronous and takes its time as arguments; whoever owns the clock calls it.
    `stopwatch` measures what a tick costs, in seconds.
    """

    def __init__(
        self,
        batcher: Batcher,
        observer: Observer,
        source: SignalSource,
        *,
        group: str,
        policy: Named,
        fallback: Named,
        guard: Guard,
        history: int,
        stopwatch: Callable[[], float],
    ) -> None:
        self.group = group
        self.guard = guard
        self.policy = policy
        self.decisions: deque[Decision] = deque(maxlen=history)
        self.epoch = 0
        self.pin: Pin | None = None
        self.fallen_back = False
        self._batcher = batcher
        self._observer = observer
        self._source = source
        self._fallback = fallback
        self._failures = 0
        self._count = 0
        self._last_tick: float | None = None
        self._stopwatch = stopwatch

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        return next(s.limits for s in self._members())

    def tick(self, now: float, *, wall: float, devices: Mapping[str, Device]) -> Decision:
        """Look, ask, judge, apply. `now` monotonic, `wall` unix seconds."""
        begun = self._stopwatch()
        self._learn_capacity(now)
        before = self.limits
        signals = self._look(now, wall, devices)
        self._batcher.admission.press(_excess(signals))
        # Whose answer this is, also when it is the last one before the fallback.
        asked = self.policy.name
        was_pinned = self.pin is not None
        current = self._unpinned(before, signals, now)
        proposal, error = self._ask(signals, current)
        judged = self._judge(proposal, current, signals, now)
        self._apply(before, judged.limits, signals, now)
        self._count += 1
        decision = Decision(
            number=self._count,
            at=wall,
            group=self.group,
            policy=asked,
            epoch=self.epoch,
            before=before,
            proposed=proposal.limits,
            after=judged.limits,
            reason=self._reason(proposal, now, was_pinned=was_pinned),
            notes=judged.notes,
            signals=signals,
            duration_s=self._stopwatch() - begun,
            error=error,
        )
        self.decisions.append(decision)
        return decision

    def hold(self, limits: Limits, *, until: float) -> None:
        """Pin limits by hand from the next tick until an instant; they stay in the envelope."""
        before = self.limits if self.pin is None else self.pin.before
        self.pin = Pin(limits, until, before)

    def release(self) -> None:
        """Let the policy have the limits again from the next tick, as they were before the pin."""
        if self.pin is not None:
            self.pin = replace(self.pin, until=-math.inf)

    def switch(self, policy: Named) -> None:
        """Ask this policy from the next tick on; it goes on from the limits in force."""
        self.policy, self.fallen_back, self._failures = policy, False, 0

    def begin_again(self, limits: Limits) -> None:
        """Put limits in force at once, within the envelope, for the policy to go on from; where
        others are held by hand, these are in force afterwards."""
        within = self.guard.envelope.within(limits)
        if self.pin is not None:
            self.pin = replace(self.pin, before=within)
        elif within != self.limits:
            self.epoch += 1
            self._batcher.set_limits(self.group, within, self.epoch)

    def reconfigure(
        self,
        *,
        guard: GuardConfig,
        envelope: Envelope,
        windows: Windows,
        fallback: Named | None,
        history: int,
    ) -> None:
        """Work by other rules from the next tick on; what was learnt and decided stays.

        Limits outside the envelope are moved into it at once. `fallback` None: the one there is.
        """
        self.guard.reconfigure(guard, envelope, min_samples=windows.min_samples)
        self._source.windows = windows
        self._fallback = fallback or self._fallback
        self.decisions = deque(self.decisions, maxlen=history)
        self.begin_again(self.limits if self.pin is None else self.pin.before)

    # --- the four steps ---------------------------------------------------------------------

    def _look(self, now: float, wall: float, devices: Mapping[str, Device]) -> Signals:
        interval_s = 0.0 if self._last_tick is None else max(0.0, now - self._last_tick)
        self._last_tick = now
        last = self.decisions[-1].applied if self.decisions else None
        return self._source.freeze(
            now, wall_s=wall, interval_s=interval_s, devices=devices, last=last
        )

    def _ask(self, signals: Signals, limits: Limits) -> tuple[Proposal, str]:
        """The policy's answer; a policy that raises leaves the limits as they are."""
        try:
            proposal = _checked(self.policy.policy.decide(signals, limits))
        except Exception as error:  # whatever it is: a policy costs one tick, never the loop
            self._failures += 1
            told = f"{type(error).__name__}: {error}"
            reason = f"policy '{self.policy.name}' failed ({told}): the limits stay"
            if self._failures >= MAX_FAILURES and not self.fallen_back:
                reason = (
                    f"policy '{self.policy.name}' failed {self._failures} times in a row ({told}): "
                    f"'{self._fallback.name}' takes over"
                )
                self.policy, self.fallen_back = self._fallback, True
            return Proposal(limits, reason), told
        self._failures = 0
        return proposal, ""

    def _unpinned(self, limits: Limits, signals: Signals, now: float) -> Limits:
        """The limits that the policy goes on from: where a pin ends, those from before it."""
        if self.pin is None or now < self.pin.until:
            return limits
        before, self.pin = self.pin.before, None
        return self.guard.bounded(before, signals, now).limits

    def _judge(self, proposal: Proposal, current: Limits, signals: Signals, now: float) -> Judged:
        if self.pin is None:
            return self.guard.judge(proposal.limits, current, signals, now)
        pinned = self.guard.bounded(self.pin.limits, signals, now)
        refused = [
            GuardNote(name, Code.PINNED, f"the policy wants {wanted:g}")
            for name in NAMES
            if (wanted := getattr(proposal.limits, name)) != getattr(pinned.limits, name)
        ]
        return Judged(pinned.limits, (*pinned.notes, *refused))

    def _reason(self, proposal: Proposal, now: float, *, was_pinned: bool) -> str:
        """Why the limits are what they are: the policy's reason, unless somebody's hand was it."""
        if self.pin is not None:
            return f"held by hand for another {self.pin.until - now:.0f} s"
        return f"no longer held by hand; {proposal.reason}" if was_pinned else proposal.reason

    def _apply(self, before: Limits, after: Limits, signals: Signals, now: float) -> None:
        if after == before:
            return
        self.epoch += 1
        self.guard.applied(before, after, signals, now)
        self._batcher.set_limits(self.group, after, self.epoch)

    def _learn_capacity(self, now: float) -> None:
        """What executors have said since the last tick: their capacity, and what did not fit."""
        ready = [seats.capacity for seats in self._members() if seats.capacity is not None]
        if ready:
            self.guard.envelope = replace(
                self.guard.envelope,
                capacity_seqs=min(capacity.max_seqs for capacity in ready),
                capacity_tokens=min(capacity.max_step_tokens for capacity in ready),
            )
        for seats in self._members():
            if (tokens := self._observer.take_out_of_memory(seats.name)) is not None:
                self.guard.out_of_memory(tokens, now)

    def _members(self) -> list[ExecutorSeats]:
        return [s for s in self._batcher.executors.values() if s.group == self.group]


def _excess(signals: Signals) -> dict[str, float]:
    """By how much more than allowed tiers miss a target for certain, as a fraction of requests."""
    excess: dict[str, float] = {}
    for tier in signals.tiers:
        for verdict in tier.verdicts:
            if verdict.state == "breach" and verdict.samples:
                more = verdict.misses / verdict.samples - (1.0 - verdict.attainment)
                excess[tier.name] = max(excess.get(tier.name, 0.0), more)
    return excess


def _checked(answer: object) -> Proposal:
    """What a policy answered, if it is of the right shape: what stands in it is the guard's."""
    if not isinstance(answer, Proposal) or not isinstance(answer.limits, Limits):
        raise TypeError(f"decide() should answer a Proposal of Limits, got {answer!r}")
    tiers = answer.limits.tiers
    if not isinstance(tiers, Mapping):
        raise TypeError(f"Limits.tiers should map names to TierLimits, got {tiers!r}")
    for name, tier in tiers.items():
        if not isinstance(tier, TierLimits):
            raise TypeError(f"Limits.tiers[{name!r}] should be TierLimits, got {tier!r}")
        for value in (tier.max_seats, tier.wait_timeout_s):
            if value is not None and not (isinstance(value, int | float) and value >= 0):
                raise TypeError(f"Limits.tiers[{name!r}] holds {value!r}, which is no limit")
    return replace(answer, reason=str(answer.reason))
