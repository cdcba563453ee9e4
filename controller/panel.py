"""Who is asked at a tick: the policy in force, those of tiers, and shadows, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.asking import Answer, Asker, Named, Question
from controller.decision import TierDecision
from controller.shadows import Shadows
from controller.signals import SignalSource
from controller.tier_control import TierControl
from policies.contract import Limits, Signals


@dataclass(frozen=True, slots=True)
class Answers:
    """What the policy in force said, those of tiers with what they were asked, and shadows."""

    policy: Answer
    tiers: list[tuple[TierControl, Question, Answer]]
    shadows: Sequence[Answer]

    def judge_tiers(self, size: int, *, now: float, applies: bool) -> tuple[TierDecision, ...]:
        """What becomes of the tiers, B being `size` from now on."""
        return tuple(
            control.judge(question, answer, size=size, now=now, applies=applies)
            for control, question, answer in self.tiers
        )


def ask_all(
    asker: Asker,
    policy: Named,
    tiers: Sequence[TierControl],
    shadows: Shadows,
    *,
    source: SignalSource,
    signals: Signals,
    limits: Limits,
    now: float,
) -> Answers:
    """Ask everybody at once, so that none waits for another."""
    own = [control.question(source, signals, limits=limits) for control in tiers]
    beside = shadows.questions(signals, limits)
    answers = asker.ask([Question(policy, signals, limits), *own, *beside], now)
    of_tiers, of_shadows = answers[1 : 1 + len(own)], answers[1 + len(own) :]
    return Answers(answers[0], list(zip(tiers, own, of_tiers, strict=True)), of_shadows)
