from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle

import pytest

from controller.asking import Answer, Named, Question
from controller.succession import GOOD_ANSWERS
from policies.contract import Limits, Proposal, Signals
from policies.registry import PolicyError
from tests.controller.loop_rig import Decide, Rig, Scripted, broken, stay, to


def named(name: str, rule: Decide = stay) -> Named:
    return Named(name, Scripted(rule))


def ticks(rig: Rig, count: int) -> None:
    for _ in range(count):
        rig.loop.tick(rig.stage.now, wall=rig.stage.now, devices={})


@dataclass
class Told:
    """An asker that says what it is told to, at every tick the next; then it asks."""

    answers: list[Answer] = field(default_factory=list)
    refused: str | None = None

    def ask(self, questions: Sequence[Question], now: float) -> list[Answer]:
        if self.answers:
            return [self.answers.pop(0)]
        return [Answer("answered", q.named.policy.decide(q.signals, q.limits)) for q in questions]

    def refusal(self, named: Named) -> str | None:
        return self.refused


def test_a_switch_says_what_it_replaced_in_the_next_decision_only() -> None:
    rig = Rig.build(size=4)
    ticks(rig, 1)
    rig.loop.switch(named("two", to(2)))
    ticks(rig, 2)
    assert [decision.reason for decision in rig.loop.decisions] == [
        "as it is",
        "'two' in place of 'scripted': to 2",
        "to 2",
    ]
    assert rig.loop.limits.max_batch_size == 2


def test_a_policy_that_fails_after_a_switch_gives_way_to_the_last_good_one() -> None:
    rig = Rig.build()
    ticks(rig, GOOD_ANSWERS)
    rig.loop.switch(named("new", broken))
    ticks(rig, 3)
    assert rig.last.successor == "scripted"
    assert rig.last.reason == (
        "policy 'new' failed 3 times in a row (RuntimeError: no): 'scripted' takes over"
    )
    assert (rig.loop.policy.name, rig.loop.fallen_back) == ("scripted", True)
    ticks(rig, 1)
    assert (rig.last.policy, rig.last.code) == ("scripted", "kept")


def test_one_that_was_not_good_itself_is_not_come_back_to() -> None:
    rig = Rig.build()
    ticks(rig, GOOD_ANSWERS - 1)
    rig.loop.switch(named("new", broken))
    ticks(rig, 3)
    assert rig.last.successor == "static"


def test_a_good_one_that_fails_later_is_not_its_own_successor() -> None:
    rig = Rig.build()
    ticks(rig, GOOD_ANSWERS)
    policy = rig.loop.policy.policy
    assert isinstance(policy, Scripted)
    policy.rule = broken
    ticks(rig, 3)
    assert rig.last.successor == "static"


def test_where_the_last_good_one_fails_as_well_the_fallback_comes_and_then_static() -> None:
    rig = Rig.build()
    ticks(rig, GOOD_ANSWERS)
    good = rig.loop.policy.policy
    assert isinstance(good, Scripted)
    good.rule = broken
    rig.loop.succession.fallback = named("fallback", broken)
    rig.loop.switch(named("new", broken))
    ticks(rig, 9)
    successors = [d.successor for d in rig.loop.decisions if d.successor]
    assert successors == ["scripted", "fallback", "static"]
    ticks(rig, 3)
    assert (rig.last.policy, rig.last.code, rig.last.reason) == ("static", "kept", "as configured")


def test_a_fallback_that_takes_over_again_begins_anew() -> None:
    """`static` holds the limits of its first question; those of long ago are not wanted."""
    rig = Rig.build(size=8)
    rig.loop.succession.fallback = Named("static", Holding())
    rig.loop.switch(named("new", broken))
    ticks(rig, 4)
    rig.loop.switch(named("two", to(2)))
    ticks(rig, 1)
    rig.loop.switch(named("new", broken))
    ticks(rig, 4)
    assert (rig.last.policy, rig.loop.limits.max_batch_size) == ("static", 2)


class Holding:
    """As `static`."""

    def __init__(self) -> None:
        self.held: Limits | None = None

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        self.held = self.held or limits
        return Proposal(self.held, "held")


def nan(signals: Signals, limits: Limits) -> Proposal:
    return Proposal(replace(limits, wait_timeout_s=math.nan), "nothing learnt")


class TestAnswersThatAreNoLimits:
    def test_the_first_ones_cost_a_reason_code_and_the_third_in_a_row_the_policy(self) -> None:
        rig = Rig.build(nan)
        ticks(rig, 2)
        assert (rig.last.code, rig.last.error, rig.last.successor) == ("held_back", "", "")
        assert rig.last.sentence() == "no change: nothing learnt (W invalid: nan is no limit)"
        ticks(rig, 1)
        assert (rig.last.state, rig.last.successor) == ("failed", "static")
        assert rig.last.error == "answered what is no limit: wait_timeout_s nan"
        assert rig.last.reason == (
            "policy 'scripted' failed 3 times in a row "
            "(answered what is no limit: wait_timeout_s nan): 'static' takes over"
        )

    def test_they_are_counted_together_with_what_is_raised(self) -> None:
        rules = iter([nan, broken, nan])
        rig = Rig.build(lambda signals, limits: next(rules)(signals, limits))
        ticks(rig, 3)
        assert rig.last.successor == "static"

    def test_a_good_answer_in_between_begins_the_count_anew(self) -> None:
        rules = iter([nan, nan, stay, nan, nan])
        rig = Rig.build(lambda signals, limits: next(rules)(signals, limits))
        ticks(rig, 5)
        assert (rig.last.successor, rig.loop.policy.name) == ("", "scripted")

    def test_they_do_not_count_towards_a_policy_to_come_back_to(self) -> None:
        turns = cycle([stay, nan])
        rig = Rig.build(lambda signals, limits: next(turns)(signals, limits))
        ticks(rig, 2 * GOOD_ANSWERS - 2)
        rig.loop.switch(named("new"))
        assert rig.loop.succession.last_good is None

    def test_good_answers_among_them_count(self) -> None:
        turns = cycle([stay, nan])
        rig = Rig.build(lambda signals, limits: next(turns)(signals, limits))
        ticks(rig, 2 * GOOD_ANSWERS)
        rig.loop.switch(named("new"))
        assert rig.loop.succession.last_good is not None


class TestRollBack:
    def test_the_last_good_one_comes_back_and_the_one_before_it_can_too(self) -> None:
        rig = Rig.build()
        ticks(rig, GOOD_ANSWERS)
        rig.loop.switch(named("new"))
        ticks(rig, GOOD_ANSWERS)
        rig.loop.succession.roll_back()
        assert rig.loop.policy.name == "scripted"
        rig.loop.succession.roll_back()
        assert rig.loop.policy.name == "new"

    def test_one_that_never_was_good_is_not_come_back_to(self) -> None:
        rig = Rig.build()
        ticks(rig, GOOD_ANSWERS)
        rig.loop.switch(named("new"))
        rig.loop.succession.roll_back()
        assert rig.loop.policy.name == "scripted"
        with pytest.raises(PolicyError, match="there is no policy to go back to"):
            rig.loop.succession.roll_back()
        assert rig.loop.policy.name == "scripted"

    def test_without_a_switch_there_is_nothing_to_go_back_to(self) -> None:
        with pytest.raises(PolicyError, match="none before 'scripted' has answered 20 times"):
            Rig.build().loop.succession.roll_back()


class TestWithoutAnAnswer:
    def test_a_slow_policy_costs_a_reason_code_and_the_limits_stay(self) -> None:
        rig = Rig.build(to(2), asker=Told([Answer("slow", waited_s=0.25)]))
        ticks(rig, 1)
        assert (rig.last.code, rig.last.error, rig.last.moved) == ("slow", "", False)
        assert rig.last.sentence() == (
            "no change: policy 'scripted' slow: no answer for 0.25 s: the limits stay"
        )
        ticks(rig, 1)
        assert (rig.last.code, rig.loop.limits.max_batch_size) == ("moved", 2)

    def test_a_late_answer_says_when_it_was_asked(self) -> None:
        late = Answer("answered", Proposal(Limits(2, 8192, 0.0), "two"), waited_s=0.5)
        rig = Rig.build(asker=Told([late]))
        ticks(rig, 1)
        assert rig.last.reason == "two (asked 0.50 s ago)"

    def test_a_policy_that_hangs_is_replaced_at_once(self) -> None:
        rig = Rig.build(asker=Told([Answer("hung", waited_s=1.25)]))
        ticks(rig, 1)
        assert (rig.last.code, rig.last.error) == ("hung", "no answer for 1.25 s")
        assert rig.last.reason == (
            "policy 'scripted' is given up (no answer for 1.25 s): 'static' takes over"
        )
        assert (rig.loop.policy.name, rig.loop.fallen_back) == ("static", True)

    def test_where_too_many_were_abandoned_another_of_them_is_refused(self) -> None:
        asker = Told()
        rig = Rig.build(asker=asker)
        ticks(rig, GOOD_ANSWERS)
        rig.loop.switch(named("new"))
        asker.refused = "4 policies were abandoned"
        with pytest.raises(PolicyError, match="4 policies were abandoned"):
            rig.loop.switch(named("newer"))
        assert rig.loop.policy.name == "new"
        # Not even the last good one is asked again.
        asker.answers = [Answer("hung", waited_s=2.0)]
        ticks(rig, 1)
        assert rig.last.successor == "static"
