"""What policies would have done that are asked beside the one in force, and have no say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.asking import Answer, Named, Question
from controller.guard import NAMES
from policies.contract import Limits, Signals


@dataclass(frozen=True, slots=True)
class Shadowed:
    """What one of them said at a tick. `proposed` None: it said nothing.

    `differs`: the guard would have made other limits of it than came of the policy in force. With
    an `error` it was dropped.
    """

    name: str
    proposed: Limits | None
    reason: str
    error: str = ""
    differs: bool = False


class Shadows:
    """The policies that are asked the same question, by their labels: type, or type and number."""

    def __init__(self, named: Sequence[Named]) -> None:
        self.by_label = dict(zip(labels([one.name for one in named]), named, strict=True))

    def questions(self, signals: Signals, limits: Limits) -> list[Question]:
        """One for each."""
        return [Question(named, signals, limits) for named in self.by_label.values()]

    def compare(
        self, answers: Sequence[Answer], came_of: Limits, judge: Callable[[Limits], Limits]
    ) -> tuple[Shadowed, ...]:
        """Hold each answer against what came of the policy in force; drop who failed.

        `judge` says what the guard would make of a proposal.
        """
        told = []
        for label, answer in zip(list(self.by_label), answers, strict=True):
            if answer.proposal is not None:
                limits = judge(answer.proposal.limits)
                differs = any(getattr(limits, n) != getattr(came_of, n) for n in NAMES)
                proposal = answer.proposal
                told.append(Shadowed(label, proposal.limits, proposal.reason, differs=differs))
                continue
            waited = f"no answer for {answer.waited_s:.2f} s"
            if answer.state == "slow":
                told.append(Shadowed(label, None, waited))
                continue
            del self.by_label[label]
            told.append(Shadowed(label, None, "", answer.told or waited))
        return tuple(told)


def labels(types: Sequence[str]) -> list[str]:
    """A label for each of these types: its name, and a number from the second of its kind on."""
    return [
        kind if (nth := types[:place].count(kind) + 1) == 1 else f"{kind}-{nth}"
        for place, kind in enumerate(types)
    ]
