"""What becomes of a tier's own policy: its seats and its hold, past a guard of its own."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from controller.asking import Answer, Named, Question
from controller.config_control import GuardConfig
from controller.decision import SHORT_OF_TIER, TierDecision
from controller.guard import Envelope, Guard
from controller.signals import SignalSource
from controller.succession import Succession
from controller.tiers import Tier, seat_cap, wait_of
from policies.contract import Applied, Limits, Signals, TierLimits

NO_TIERS: Mapping[str, TierLimits] = MappingProxyType({})


class TierControl:
    """One tier's own policy in one group of executors; `configured` is the one it began with.

    It sees the tier alone: its seats are `max_batch_size`, its hold `wait_timeout_s`. A proposal
    passes the gates that one for all limits passes, and seats stay between 1 and B, or the tier's
    `max_seats` where that is less.
    """

    def __init__(self, tier: Tier, succession: Succession, guard: Guard) -> None:
        self.tier = tier
        self.succession = succession
        self.configured: Named = succession.policy
        self.guard = guard
        self._last: Applied | None = None

    def reconfigure(
        self, tier: Tier, *, guard: GuardConfig, envelope: Envelope, min_samples: int
    ) -> None:
        """Work by other rules, and for a tier with other bounds, from the next tick on."""
        self.tier = tier
        self.guard.reconfigure(guard, alone(envelope), min_samples=min_samples)

    def question(self, source: SignalSource, signals: Signals, *, limits: Limits) -> Question:
        """What its policy is asked, the group's limits being these."""
        seats = seat_cap(self.tier, limits)
        size = limits.max_batch_size
        mine = Limits(
            size if seats is None else min(seats, size),
            limits.max_batch_tokens,
            wait_of(self.tier, limits),
        )
        alone = source.alone(signals, self.tier, last=self._last)
        return Question(self.succession.policy, alone, mine)

    def judge(
        self, question: Question, answer: Answer, *, size: int, now: float, applies: bool
    ) -> TierDecision:
        """What of its answer goes, B being `size` from now on."""
        settled = self.succession.settle(answer, question.limits)
        before, envelope = question.limits, self.guard.envelope
        most = size if self.tier.max_seats is None else min(size, self.tier.max_seats)
        self.guard.envelope = replace(envelope, high=replace(envelope.high, max_batch_size=most))
        # Tokens of a step are nobody's own.
        wanted = replace(
            settled.proposal.limits, max_batch_tokens=before.max_batch_tokens, tiers=NO_TIERS
        )
        judged = self.guard.judge(wanted, before, question.signals, now)
        after = judged.limits if applies else before
        if after != before:
            self.guard.applied(before, after, question.signals, now)
        notes = tuple(note for note in judged.notes if note.limit in SHORT_OF_TIER)
        self._last = Applied(wanted, after, notes)
        return TierDecision(
            tier=self.tier.name,
            policy=settled.asked,
            before=before,
            proposed=wanted,
            judged=judged.limits,
            after=after,
            reason=settled.proposal.reason,
            notes=notes,
            state=settled.state,
            error=settled.error,
            successor=settled.successor,
        )


def alone(envelope: Envelope) -> Envelope:
    """The hard range of a tier's limits in a group of which this is the range."""
    return replace(envelope, low=replace(envelope.low, max_batch_size=1))


def with_tiers(
    common: Limits,
    current: Limits,
    decided: Sequence[TierDecision],
    *,
    known: Collection[str],
    envelope: Envelope,
) -> Limits:
    """The limits of a group with those of its tiers.

    Tiers with a policy of their own have what `decided` says, unless that is what all have and it
    was not written down before; of the other `known` ones stands what the group's policy wrote,
    within bounds.
    """
    ruled = {one.tier for one in decided}
    tiers = {
        name: _bounded(written, common.max_batch_size, envelope=envelope)
        for name, written in common.tiers.items()
        if name in known and name not in ruled
    }
    for one in decided:
        if one.judged != one.before or one.tier in current.tiers:
            mine = one.judged
            tiers[one.tier] = TierLimits(mine.max_batch_size, mine.wait_timeout_s)
    return replace(common, tiers=MappingProxyType(tiers))


def without(limits: Limits, tiers: Collection[str]) -> Limits:
    """The same limits, with nothing of these tiers' own."""
    rest = {name: own for name, own in limits.tiers.items() if name not in tiers}
    return replace(limits, tiers=MappingProxyType(rest))


def _bounded(written: TierLimits, size: int, *, envelope: Envelope) -> TierLimits:
    """A tier without a seat would starve, whatever its share."""
    seats, wait_s = written.max_seats, written.wait_timeout_s
    low, high = envelope.low.wait_timeout_s, envelope.high.wait_timeout_s
    return TierLimits(
        None if seats is None else max(1, math.floor(min(seats, size))),
        None if wait_s is None else min(max(wait_s, low), high),
    )
