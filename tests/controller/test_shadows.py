from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.asking import Answer, InlineAsker, Question
from controller.shadows import Shadowed, labels
from policies.contract import Limits, Proposal, Signals
from tests.controller.loop_rig import Rig, Scripted, broken, stay, to


class Slow(InlineAsker):
    """The last one asked has not answered yet, or never will."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def ask(self, questions: Sequence[Question], now: float) -> list[Answer]:
        return [*super().ask(questions[:-1], now), self.answer]


def test_it_is_asked_the_very_same_as_the_policy_in_force_and_nothing_of_it_is_applied() -> None:
    rig = Rig.build(to(3), shadows={"two": to(2)}, size=4)
    rig.tick()
    shadow = rig.loop.shadows.by_label["two"].policy
    assert isinstance(shadow, Scripted)
    assert shadow.seen[0] == rig.policy.seen[0]
    assert rig.last.shadows == (Shadowed("two", Limits(2, 8192, 0.0), "to 2", differs=True),)
    assert rig.loop.limits.max_batch_size == 3


def test_it_differs_where_other_limits_would_have_come_of_it() -> None:
    # Growth of either is held back: nothing came of it here, and nothing would have there.
    rig = Rig.build(to(8), shadows={"nine": to(9), "three": to(3), "same": stay}, size=4)
    rig.tick()
    assert {shadow.name: shadow.differs for shadow in rig.last.shadows} == {
        "nine": False,
        "three": True,
        "same": False,
    }


def test_one_that_raises_is_dropped_and_harms_nothing() -> None:
    rig = Rig.build(to(3), shadows={"bad": broken, "good": stay})
    rig.tick()
    assert rig.last.shadows[0] == Shadowed("bad", None, "", "RuntimeError: no")
    rig.tick()
    assert [shadow.name for shadow in rig.last.shadows] == ["good"]
    assert (rig.last.error, rig.loop.limits.max_batch_size) == ("", 3)


def test_one_that_has_not_answered_yet_is_kept_and_one_that_never_will_is_dropped() -> None:
    slow = Slow(Answer("slow", waited_s=0.25))
    rig = Rig.build(shadows={"thinking": stay}, asker=slow)
    rig.tick()
    assert rig.last.shadows == (Shadowed("thinking", None, "no answer for 0.25 s"),)
    slow.answer = Answer("hung", waited_s=1.25)
    rig.tick()
    assert rig.last.shadows == (Shadowed("thinking", None, "", "no answer for 1.25 s"),)
    assert rig.loop.shadows.by_label == {}


def test_a_nonsensical_proposal_is_recorded_as_it_is() -> None:
    def rule(signals: Signals, limits: Limits) -> Proposal:
        return Proposal(replace(limits, max_batch_size=10**9), "all")

    rig = Rig.build(shadows={"greedy": rule})
    rig.tick()
    (greedy,) = rig.last.shadows
    assert greedy.proposed is not None
    assert (greedy.proposed.max_batch_size, greedy.differs) == (10**9, False)


def test_shadows_of_one_type_are_told_apart_by_number() -> None:
    assert labels(["aimd", "slo", "aimd", "aimd"]) == ["aimd", "slo", "aimd-2", "aimd-3"]
