"""The tick: signals -> policy -> guard -> limits, for one group of executors."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.asking import Answer, Asker, InlineAsker, Question
from controller.asking import Named as Named  # its name where loops are built and switched
from controller.batcher import Batcher
from controller.decision import Decision, Mode, TierDecision
from controller.gates import Code
from controller.guard import NAMES, Guard, Judged
from controller.hand import Hand, HandState, Pin
from controller.ledger import ExecutorSeats
from controller.observer import Observer
from controller.shadows import Shadows
from controller.signals import Device, SignalSource
from controller.succession import Succession
from controller.tier_control import TierControl, joined
from controller.verdicts import excess
from policies.contract import GuardNote, Limits, Policy, Proposal, Signals


@dataclass(frozen=True, slots=True)
class _Answers:
    """What the policy in force, those of tiers (with what they were asked), and shadows said."""

    policy: Answer
    tiers: list[tuple[TierControl, Question, Answer]]
    shadows: Sequence[Answer]


class ControlLoop:
    """Sets the limits of one group of executors, once a tick.

    `tick` is synchronous and takes its time as arguments; whoever owns the clock calls it.
    `stopwatch` measures what a tick costs, in seconds. Nothing of what policies propose is applied
    while `mode` is `observe`. `tiers` have policies of their own; `shadows` are asked and have no
    say. Both may be replaced between two ticks, as may the mode.
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
        tiers: Sequence[TierControl] = (),
        shadows: Sequence[Named] = (),
        asker: Asker | None = None,
    ) -> None:
        self.group = group
        self.guard = guard
        self.mode = mode
        self.tiers = tuple(tiers)
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

    def hold(self, limits: Limits, *, until: float) -> None:
        """Pin limits by hand from the next tick until an instant; they stay in the envelope."""
        self._hand.hold(limits, until=until, in_force=self.limits)

    def release(self) -> None:
        """Let the policy have the limits again from the next tick, as they were before the pin."""
        self._hand.release()

    def tick(self, now: float, *, wall: float, devices: Mapping[str, Device]) -> Decision:
        """Look, ask, judge, apply. `now` monotonic, `wall` unix seconds."""
        begun = self._stopwatch()
        self._learn_capacity(now)
        before = self.limits
        signals = self._look(now, devices)
        self._batcher.admission.press(excess(signals))
        ended = self._hand.ended(now)
        # The limits that policies go on from: where a pin ends, those from before it.
        current = before if ended is None else self.guard.bounded(ended.before, signals, now).limits
        answers = self._ask(signals, current, now)
        settled = self.succession.settle(answers.policy, current)
        judged = self._judge(settled.proposal, current, signals, now)
        tiers = self._judge_tiers(answers, judged.limits.max_batch_size, now)
        decided = self._with_tiers(judged.limits, current, tiers)
        applies = self.mode == "apply" or self.pin is not None
        after = decided if applies else current
        self._apply(before, after, signals, now)
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
            reason=self._reason(settled.proposal, ended, now),
            notes=judged.notes,
            signals=signals,
            duration_s=self._stopwatch() - begun,
            mode=self.mode,
            state=settled.state,
            error=settled.error,
            successor=settled.successor,
            hand=self._hand_state(ended),
            tiers=tiers,
            shadows=self.shadows.compare(
                answers.shadows,
                judged.limits,
                lambda proposed: self.guard.judge(proposed, current, signals, now).limits,
            ),
        )
        self.decisions.append(decision)
        return decision

    # --- look and ask -----------------------------------------------------------------------

    def _look(self, now: float, devices: Mapping[str, Device]) -> Signals:
        interval_s = 0.0 if self._last_tick is None else max(0.0, now - self._last_tick)
        self._last_tick = now
        last = self.decisions[-1].applied if self.decisions else None
        return self._source.freeze(now, interval_s=interval_s, devices=devices, last=last)

    def _ask(self, signals: Signals, limits: Limits, now: float) -> _Answers:
        """All at once, so that none waits for another."""
        own = [
            control.question(self._source, signals, limits=limits, now=now)
            for control in self.tiers
        ]
        beside = self.shadows.questions(signals, limits)
        mine = Question(self.policy, signals, limits)
        answers = self._asker.ask([mine, *own, *beside], now)
        of_tiers = answers[1 : 1 + len(own)]
        return _Answers(
            policy=answers[0],
            tiers=list(zip(self.tiers, own, of_tiers, strict=True)),
            shadows=answers[1 + len(own) :],
        )

    # --- judge and apply --------------------------------------------------------------------

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

    def _judge_tiers(self, answers: _Answers, size: int, now: float) -> tuple[TierDecision, ...]:
        applies = self.mode == "apply" and self.pin is None
        return tuple(
            control.judge(question, answer, size=size, now=now, applies=applies)
            for control, question, answer in answers.tiers
        )

    def _with_tiers(self, common: Limits, current: Limits, tiers: Sequence[TierDecision]) -> Limits:
        """What all came to. A tier that has what all have is not written down for that."""
        if self.pin is not None:
            return common
        own = {t.tier: t.judged for t in tiers if t.judged != t.before or t.tier in current.tiers}
        mine = {t.tier for t in tiers}
        known = [name for name in self._batcher.queues if name not in mine]
        return joined(common, known=known, own=own, envelope=self.guard.envelope)

    def _reason(self, proposal: Proposal, ended: Pin | None, now: float) -> str:
        """Why the limits are what they are: the policy's reason, unless somebody's hand was it."""
        if self.pin is not None:
            return f"held by hand for another {self.pin.until - now:.0f} s"
        if ended is None:
            return proposal.reason
        why = "released" if math.isinf(ended.until) else "expired"
        return f"no longer held by hand ({why}); {proposal.reason}"

    def _hand_state(self, ended: Pin | None) -> HandState:
        return "pinned" if self.pin is not None else "unpinned" if ended is not None else ""

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
