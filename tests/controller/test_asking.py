from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import pytest

from controller.asking import LONGEST_REASON, Answer, InlineAsker, Named, Question
from controller.gates import Code
from policies.contract import Limits, Proposal, Signals, TierLimits
from tests.controller.loop_rig import Decide, Rig, Scripted, broken, stay

LIMITS = Limits(16, 1024, 0.005)


def answer(rule: Decide) -> Answer:
    signals = Signals(interval_s=0.25, age_s=None)
    (said,) = InlineAsker().ask([Question(Named("it", Scripted(rule)), signals, LIMITS)], 0.0)
    return said


def wants(**limits: Any) -> Decide:
    return lambda _, given: Proposal(replace(given, **limits), "because")


def test_answers_come_in_the_order_of_the_questions() -> None:
    signals = Signals(interval_s=0.25, age_s=None)
    asked = [Question(Named("it", Scripted(rule)), signals, LIMITS) for rule in (broken, stay)]
    assert [said.state for said in InlineAsker().ask(asked, 0.0)] == ["failed", "answered"]


def test_a_policy_that_would_end_the_process_has_failed() -> None:
    assert answer(lambda *_: sys.exit(3)) == Answer("failed", told="SystemExit: 3")


class Own(BaseException):
    """Nobody's `except Exception` catches it."""


@pytest.mark.parametrize("error", [GeneratorExit(), Own()])
def test_what_no_except_exception_catches_is_a_failure_like_any_other(error: BaseException) -> None:
    def rule(signals: Signals, limits: Limits) -> Proposal:
        raise error

    assert answer(rule) == Answer("failed", told=type(error).__name__)


def test_an_error_that_cannot_be_put_into_words_is_told_by_its_name() -> None:
    class Speechless(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    def rule(signals: Signals, limits: Limits) -> Proposal:
        raise Speechless

    assert answer(rule) == Answer("failed", told="Speechless")


def test_a_reason_is_a_sentence_and_not_a_book() -> None:
    proposal = answer(lambda _, limits: Proposal(limits, "x" * 10_000)).proposal
    assert proposal is not None
    assert (len(proposal.reason), proposal.reason[-3:]) == (LONGEST_REASON, "...")


@pytest.mark.parametrize("value", ["8", None, [8], 8j])
def test_what_is_no_number_is_a_failure_that_names_it(value: Any) -> None:
    told = f"TypeError: Limits.max_batch_size should be a number, got {value!r}"
    assert answer(wants(max_batch_size=value)) == Answer("failed", told=told)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (math.nan, Code.INVALID),
        (math.inf, Code.INVALID),
        (10**400, Code.INVALID),
        (-(10**400), Code.INVALID),
        (-1, Code.INVALID),
        (10**9, Code.CAPACITY),
    ],
    ids=["nan", "inf", "huge", "huge-negative", "negative", "10^9"],
)
def test_an_absurd_size_costs_nothing_but_a_reason_code(value: float, code: str) -> None:
    rig = Rig.build(wants(max_batch_size=value))
    rig.tick()
    assert rig.loop.limits.max_batch_size == 4
    assert rig.last.notes[0].code == code
    assert (rig.last.code, rig.last.error) == ("held_back", "")


def test_a_number_too_long_to_be_written_down_is_no_limit_either() -> None:
    rig = Rig.build(wants(max_batch_size=10**5000))
    rig.tick()
    assert rig.last.sentence() == "no change: because (B invalid: inf is no limit)"


def test_a_reason_becomes_one_line_without_control_characters() -> None:
    said = "B 4\n\tto\x1b[31m 5\r\x00,\u2028for  room\ud800\n"
    proposal = answer(lambda _, limits: Proposal(limits, said)).proposal
    assert proposal is not None
    assert proposal.reason == "B 4 to [31m 5 , for room"


def test_an_error_becomes_one_line_of_bounded_length() -> None:
    def rule(signals: Signals, limits: Limits) -> Proposal:
        raise RuntimeError("first\nsecond \x1b" + "x" * 10_000)

    told = answer(rule).told
    assert told.startswith("RuntimeError: first second x")
    assert (len(told), told[-3:], told.isprintable()) == (LONGEST_REASON, "...", True)


def rewrite(signals: Signals, limits: Limits) -> Proposal:
    """Puts its limits in force by itself, makes growth look due, and rewrites history."""
    object.__setattr__(limits, "max_batch_size", 999)
    for executor in signals.executors:
        object.__setattr__(executor, "size_bound", 1.0)
    for tier in signals.tiers:
        object.__setattr__(tier.passed, "goodput", 1e9)
    for own in limits.tiers.values():
        object.__setattr__(own, "max_seats", 999)
    if signals.last is not None:
        object.__setattr__(signals.last.applied, "max_batch_size", 999)
    return Proposal(limits, "mine")


def test_a_policy_that_writes_into_what_it_is_shown_changes_nothing_but_its_copy() -> None:
    calm, wild = Rig.build(size=4), Rig.build(rewrite, size=4)
    for rig in (calm, wild):
        limits = rig.loop.limits
        rig.loop.begin_again(replace(limits, tiers={"paid": TierLimits(max_seats=2)}))
        rig.tick()
        rig.tick()
    first, second = wild.loop.decisions
    assert [d.before.max_batch_size for d in (first, second)] == [4, 4]
    assert [d.after.max_batch_size for d in (first, second)] == [4, 4]
    assert first.before.tiers["paid"].max_seats == 2
    assert first.applied.applied.max_batch_size == 4
    assert first.signals == calm.loop.decisions[0].signals
