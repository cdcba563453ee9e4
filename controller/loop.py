"""The tick: signals -> policy -> guard -> limits, for one group of executors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from controller.asking import Asker, InlineAsker
from controller.asking import Named as Named  # its name where loops are built and switched
from controller.batcher import Batcher
from controller.config_control import GuardConfig
from controller.decision import Decision, Mode
from controller.guard import Envelope, Guard, Judged
from controller.hand import Hand, Pin
from controller.ledger import ExecutorSeats
from controller.observer import Observer
from controller.panel import Answers, ask_all
from controller.records import Windows
from controller.shadows import Shadows
from controller.signals import Device, SignalSource
from controller.succession import Succession
from controller.tier_control import TierControl, with_tiers, without
from controller.verdicts import excess
from policies.contract import Limits, Policy, Signals


class ControlLoop:
    """Sets the limits of one group of executors, once a tick.

    `tick` is synchronous and takes its time as arguments; whoever owns the clock calls it.
    `stopwatch` measures what a tick costs, in seconds. Nothing of what policies propose is applied
    while `mode` is `observe`; `shadows` are asked and have no say. Both may be replaced between two
    ticks. `tiers` are those that have policies of their own.
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
        mode: Mode = "apply",
        shadows: Sequence[Named] = (),
        asker: Asker | None = None,
    ) -> None:
        self.group = group
        self.guard = guard
        self.mode = mode
        self.tiers: tuple[TierControl, ...] = ()
        self.shadows = Shadows(shadows)
        self.decisions: deque[Decision] = deque(maxlen=history)
        self.epoch = 0
        self._batcher = batcher
        self._observer = observer
        self._source = source
        self._asker = InlineAsker() if asker is None else asker
        self.succession = Succession(policy, fallback, refusal=self._asker.refusal)
        self._hand = Hand()
        self._count = 0
        self._last_tick: float | None = None
        self._stopwatch = stopwatch
        for seats in self._members():
            seats.memory.ceiling = guard.ceiling

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        return next(s.limits for s in self._members())

    @property
    def policy(self) -> Named:
        """The policy that is asked next."""
        return self.succession.policy

    @property
    def fallen_back(self) -> bool:
        """Whether that one took over from a policy that failed."""
        return self.succession.fallen_back

    @property
    def pin(self) -> Pin | None:
        """What is held by hand."""
        return self._hand.pin

    def asked(self) -> list[Policy]:
        """Every policy that a tick asks."""
        own = [control.succession.policy for control in self.tiers]
        return [named.policy for named in (self.policy, *own, *self.shadows.by_label.values())]

    def switch(self, policy: Named) -> None:
        """Ask another policy from the next tick on; what is held by hand stays held.

        Raises PolicyError where policies like it have been abandoned too often.
        """
        self.succession.switch(policy)

    def refusal(self, policy: Named) -> str | None:
        """Why this policy cannot be switched to; None where it can."""
        return self._asker.refusal(policy)

    def rule_tiers(self, controls: Sequence[TierControl]) -> None:
        """Let these tiers, and no others, have policies of their own from the next tick on. Those
        that had one until now have the common limits at once."""
        gone = {one.tier.name for one in self.tiers} - {one.tier.name for one in controls}
        self.tiers = tuple(controls)
        if (pin := self.pin) is not None:
            self._hand.pin = replace(
                pin, limits=without(pin.limits, gone), before=without(pin.before, gone)
            )
        self._put_in_force(without(self.limits, gone))

    def begin_again(self, limits: Limits) -> None:
        """Put limits in force at once, within the envelope, for the policy to go on from; where
        others are held by hand, these are in force afterwards."""
        within = self.guard.envelope.within(limits)
        if self.pin is not None:
            self._hand.go_back_to(within)
        else:
            self._put_in_force(within)

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
        for one in self.tiers:
            tier = self._batcher.queues[one.tier.name].tier
            one.reconfigure(tier, guard=guard, envelope=envelope, min_samples=windows.min_samples)
        for succession in (self.succession, *(one.succession for one in self.tiers)):
            succession.fallback = fallback or succession.fallback
        self._source.windows = windows
        self.decisions = deque(self.decisions, maxlen=history)
        self.begin_again(self.limits if self.pin is None else self.pin.before)

    def hold(self, limits: Limits, *, until: float) -> None:
        """Pin limits by hand from the next tick until an instant; they stay in the envelope."""
        self._hand.hold(limits, until=until, in_force=self.limits)

    def release(self) -> None:
        """Let the policy have the limits again from the next tick, as they were before the pin."""
        self._hand.release()

    def tick(self, now: float, *, wall: float, devices: Mapping[str, Device]) -> Decision:
        """Look, ask, judge, apply. `now` monotonic, `wall` unix seconds."""
        begun = self._stopwatch()
        self._learn_capacity()
        before = self.limits
        signals = self._look(now, wall, devices)
        self._batcher.admission.press(excess(signals))
        ended = self._hand.ended(now)
        # The limits that policies go on from: where a pin ends, those from before it.
        current = before if ended is None else self.guard.bounded(ended.before, signals, now).limits
        answers = self._ask(signals, current, now)
        settled = self.succession.settle(answers.policy, current)
        judged = self._judge(settled.proposal.limits, current, signals, now=now)
        applies, size = self.mode == "apply", judged.limits.max_batch_size
        free = self.pin is None
        tiers = answers.judge_tiers(size, now=now, applies=applies and free)
        decided = judged.limits
        if free:
            known, envelope = self._batcher.queues, self.guard.envelope
            decided = with_tiers(decided, current, tiers, known=known, envelope=envelope)
        after = decided if applies or not free else current
        self._apply(before, after, signals, now)
        beside = self.shadows.compare(
            answers.shadows,
            judged.limits,
            lambda proposed: self.guard.judge(proposed, current, signals, now).limits,
        )
        self._count += 1
        decision = Decision(
            number=self._count,
            at=wall,
            group=self.group,
            policy=settled.asked,
            epoch=self.epoch,
            before=before,
            proposed=settled.proposal.limits,
            judged=decided,
            after=after,
            reason=self._hand.reason(settled.proposal.reason, ended, now),
            notes=judged.notes,
            signals=signals,
            duration_s=self._stopwatch() - begun,
            mode=self.mode,
            state=settled.state,
            error=settled.error,
            successor=settled.successor,
            hand=self._hand.state(ended),
            tiers=tiers,
            shadows=beside,
        )
        self.decisions.append(decision)
        return decision

    # --- the four steps ---------------------------------------------------------------------

    def _look(self, now: float, wall: float, devices: Mapping[str, Device]) -> Signals:
        interval_s = 0.0 if self._last_tick is None else max(0.0, now - self._last_tick)
        self._last_tick = now
        last = self.decisions[-1].applied if self.decisions else None
        return self._source.freeze(
            now, wall_s=wall, interval_s=interval_s, devices=devices, last=last
        )

    def _ask(self, signals: Signals, limits: Limits, now: float) -> Answers:
        return ask_all(
            self._asker,
            self.policy,
            self.tiers,
            self.shadows,
            source=self._source,
            signals=signals,
            limits=limits,
            now=now,
        )

    def _judge(self, proposed: Limits, current: Limits, signals: Signals, *, now: float) -> Judged:
        if self.pin is not None:
            return self._hand.judge(self.guard, proposed, signals, now=now)
        return self.guard.judge(proposed, current, signals, now)

    def _apply(self, before: Limits, after: Limits, signals: Signals, now: float) -> None:
        if after != before:
            self.guard.applied(before, after, signals, now)
            self._put_in_force(after)

    def _put_in_force(self, limits: Limits) -> None:
        if limits != self.limits:
            self.epoch += 1
            self._batcher.set_limits(self.group, limits, self.epoch)

    def _learn_capacity(self) -> None:
        """What executors have said since the last tick of their capacity."""
        ready = [seats.capacity for seats in self._members() if seats.capacity is not None]
        if ready:
            self.guard.envelope = replace(
                self.guard.envelope,
                capacity_seqs=min(capacity.max_seqs for capacity in ready),
                capacity_tokens=min(capacity.max_step_tokens for capacity in ready),
            )

    def _members(self) -> list[ExecutorSeats]:
        return [s for s in self._batcher.executors.values() if s.group == self.group]
