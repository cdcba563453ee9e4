"""In which thread a policy is asked, and what becomes of one that does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest

from controller.asking import Answer, Named, Question, is_own
from gateway.asking import MAX_ABANDONED, Abandoned, ThreadAsker, aside
from policies.contract import Limits, Proposal, Signals
from tests.gateway.blocked import PATIENCE_S, Blocked

SIGNALS, LIMITS = Signals(interval_s=0.25, age_s=None), Limits(16, 1024, 0.005)


class Stage:
    """An asker without patience, and policies that block."""

    def __init__(self) -> None:
        self.abandoned = Abandoned()
        self.asker = ThreadAsker(self.abandoned, timeout_s=lambda: 1.0, patience_s=0.0)
        self.made: list[Blocked] = []

    def blocked(self) -> Named:
        self.made.append(Blocked())
        return Named("mine:Blocked", self.made[-1])

    def ask(self, *named: Named, now: float) -> list[Answer]:
        answers = self.asker.ask([Question(one, SIGNALS, LIMITS) for one in named], now)
        for one in named:
            assert isinstance(one.policy, Blocked)
            assert one.policy.asked.wait(PATIENCE_S)
        return answers


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    for policy in made.made:
        policy.let_go()


def test_a_policy_of_somebodys_own_that_answers_decides_in_the_same_tick() -> None:
    asker = ThreadAsker(Abandoned(), timeout_s=lambda: 1.0, patience_s=PATIENCE_S)
    policy = Blocked()
    policy.gate.set()
    (answer,) = asker.ask([Question(Named("mine:Own", policy), SIGNALS, LIMITS)], 0.0)
    assert answer == Answer("answered", Proposal(LIMITS, "at last"))
    assert policy.threads[0] is not threading.current_thread()
    assert policy.threads[0].daemon


def test_one_of_headways_own_is_asked_without_a_thread(stage: Stage) -> None:
    policy = Blocked()
    policy.gate.set()
    stage.ask(Named("aimd", policy, {"growth": 0.1}), now=0.0)
    assert policy.threads == [threading.current_thread()]


def test_what_it_raises_is_a_failure(stage: Stage) -> None:
    class Broken:
        def decide(self, signals: Signals, limits: Limits) -> Proposal:
            raise RuntimeError("no")

    asker = ThreadAsker(Abandoned(), timeout_s=lambda: 1.0, patience_s=PATIENCE_S)
    (answer,) = asker.ask([Question(Named("mine:Broken", Broken()), SIGNALS, LIMITS)], 0.0)
    assert answer == Answer("failed", told="RuntimeError: no")


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, SystemExit, BaseException])
def test_what_no_except_exception_catches_is_a_failure_at_once(error: type[BaseException]) -> None:
    class Broken:
        def decide(self, signals: Signals, limits: Limits) -> Proposal:
            raise error("no")

    asker = ThreadAsker(Abandoned(), timeout_s=lambda: 1.0, patience_s=PATIENCE_S)
    (answer,) = asker.ask([Question(Named("mine:Broken", Broken()), SIGNALS, LIMITS)], 0.0)
    assert answer == Answer("failed", told=f"{error.__name__}: no")


def test_a_slow_one_is_asked_once_and_its_answer_taken_when_it_is_there(stage: Stage) -> None:
    slow = stage.blocked()
    assert stage.ask(slow, now=0.0) == [Answer("slow")]
    assert stage.ask(slow, now=0.25) == [Answer("slow", waited_s=0.25)]
    stage.made[0].let_go()
    (answer,) = stage.ask(slow, now=0.5)
    assert answer == Answer("answered", Proposal(LIMITS, "at last"), waited_s=0.5)
    assert len(stage.made[0].threads) == 1


def test_past_the_deadline_it_is_abandoned_and_what_it_says_then_is_not_heard(
    stage: Stage,
) -> None:
    hanging = stage.blocked()
    stage.ask(hanging, now=0.0)
    assert stage.ask(hanging, now=1.0) == [Answer("hung", waited_s=1.0)]
    assert len(stage.abandoned) == 1
    other = stage.blocked()
    assert stage.ask(other, now=1.25) == [Answer("slow")]
    stage.made[0].let_go()
    assert stage.ask(other, now=1.5) == [Answer("slow", waited_s=0.25)]
    assert len(stage.abandoned) == 0


def test_one_that_hangs_holds_up_no_other(stage: Stage) -> None:
    quick = Blocked()
    quick.gate.set()
    answers = stage.ask(stage.blocked(), Named("static", quick), stage.blocked(), now=0.0)
    assert [answer.state for answer in answers] == ["slow", "answered", "slow"]


def test_one_that_is_no_longer_asked_is_not_waited_for(stage: Stage) -> None:
    stage.ask(stage.blocked(), now=0.0)
    stage.ask(now=0.25)
    assert len(stage.abandoned) == 1


def test_one_that_is_asked_again_meanwhile_is_not_asked_twice_at_once(stage: Stage) -> None:
    slow = stage.blocked()
    stage.ask(slow, now=0.0)
    stage.ask(now=0.25)
    assert stage.ask(slow, now=0.5) == [Answer("slow")]
    (policy,) = stage.made
    assert len(policy.threads) == 1
    policy.let_go()
    for thread in threading.enumerate():
        if thread.name == "policy mine:Blocked":
            thread.join(PATIENCE_S)
    (answer,) = stage.ask(slow, now=0.75)
    assert (answer.state, answer.waited_s) == ("answered", 0.25)
    assert len(policy.threads) == 2


def test_after_too_many_abandoned_ones_no_more_of_their_kind_are_taken(stage: Stage) -> None:
    for number in range(MAX_ABANDONED):
        assert stage.asker.refusal(stage.blocked()) is None
        stage.ask(stage.blocked(), now=float(number))
    stage.ask(now=9.0)
    refused = stage.asker.refusal(stage.blocked())
    assert refused == (
        "4 policies were abandoned because they did not answer, and their threads still run: only "
        "Headway's own are taken until a restart"
    )
    assert stage.asker.refusal(Named("aimd", Blocked())) is None
    for policy in stage.made:
        policy.let_go()
    assert stage.asker.refusal(stage.blocked()) is None


@pytest.mark.parametrize(
    ("name", "parameters", "own"),
    [
        ("aimd", {}, True),
        ("aimd", {"growth": 0.1, "severe": 2}, True),
        ("mine:Own", {}, False),
        ("from_an_entry_point", {}, False),
        ("static", {"policy": {"type": "mine:Own"}}, False),
        ("static", {"policy": "mine:Own"}, False),
    ],
)
def test_only_what_runs_headways_code_alone_is_trusted_to_answer(
    name: str, parameters: dict[str, Any], own: bool
) -> None:
    assert is_own(Named(name, Blocked(), MappingProxyType(parameters))) is own


class TestAside:
    async def test_it_answers_what_the_call_does_from_another_thread(self) -> None:
        thread = await aside(threading.current_thread, timeout_s=PATIENCE_S)
        assert thread is not threading.current_thread()
        assert thread.daemon

    async def test_it_raises_what_the_call_raises(self) -> None:
        def call() -> None:
            raise KeyError("k")

        with pytest.raises(KeyError, match="k"):
            await aside(call, timeout_s=PATIENCE_S)

    async def test_a_module_that_would_end_the_process_does_not(self) -> None:
        def call() -> None:
            raise SystemExit(3)

        with pytest.raises(RuntimeError, match="it would end the process: SystemExit"):
            await aside(call, timeout_s=PATIENCE_S)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, StopIteration])
    async def test_what_no_future_can_carry_is_heard_at_once(
        self, error: type[BaseException]
    ) -> None:
        def call() -> None:
            raise error

        with pytest.raises(RuntimeError, match=error.__name__):
            await aside(call, timeout_s=PATIENCE_S)

    async def test_a_call_that_hangs_is_left_alone(self) -> None:
        gate = threading.Event()
        with pytest.raises(TimeoutError):
            await aside(lambda: gate.wait(PATIENCE_S), timeout_s=0.0)
        gate.set()
