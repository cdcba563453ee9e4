"""What every policy owes its caller, checked: the suite behind `headway policies test`.

It needs neither a test runner nor chance: the same policy gets the same results.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from policies.conformance_inputs import sequence
from policies.contract import ExecutorSignals, Limits, Policy, Proposal, Signals, TierSignals
from policies.faults import in_words
from policies.parameters import describe, told
from policies.registry import PolicyError, build, load, problems

BUILDS = "is built with its parameters"
DOCUMENTED = "says what it does and what its parameters mean"
FROZEN = "has frozen parameters"
ANSWERS = "answers whatever it is shown, with a reason of one line"
FINITE = "proposes limits that are finite and possible"
LEAVES_INPUTS = "changes nothing that it is shown"
DETERMINISTIC = "answers the same sequence the same way"
SHARES_NOTHING = "shares nothing with another of its kind"
EMPTY = "leaves the limits alone where nothing was seen"
NO_GROWTH = "does not grow the batch size while it is seldom reached"
NO_CREEP = "does not creep up without load"

SEEDS = range(60)
# Of the steps: well below what any sensible rule, and the guard, call binding.
SELDOM = 0.1
# Enough for a counter or a fraction to add up to a move.
LONG = 200
# Seconds. A daemon gives up sooner (`control.decide_timeout`); a machine under test is busy.
ANSWER_S = 5.0
# A module that brings a framework along takes its time to be imported.
BUILT_S = 60.0
# Thousands of answers that take microseconds each.
CHECK_S = 120.0

Make = Callable[[], Policy]
Asked = list[tuple[Signals, Limits]]
Draw = Callable[[int], Asked]
During = Callable[[str, float], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Result:
    """One check: what a policy owes, whether it does, and if not, the inputs that show it."""

    check: str
    passed: bool
    detail: str = ""


def run(name: str, parameters: Mapping[str, Any], *, seeds: Iterable[int] = SEEDS) -> list[Result]:
    """Every check on a policy of this type (or `module:Class`) with these parameters.

    One that cannot be built has one result. It waits for answers for as long as they take.
    """
    return list(checked(name, parameters, list(seeds), during=lambda *_: nullcontext()))


def checked(
    name: str,
    parameters: Mapping[str, Any],
    seeds: list[int],
    *,
    during: During,
    answer_s: float = ANSWER_S,
) -> Iterator[Result]:
    """The same, one after another, so that those that were made are there when the next one hangs.

    Every call of the policy's code, and every check, is inside `during`, told what it is and within
    how many seconds it should be done; an answer within `answer_s`.
    """
    with during("being built", BUILT_S):
        try:
            made = load(name)
            wrong = "; ".join(map(told, problems(name, parameters)))
        except PolicyError as error:
            wrong = str(error)
    yield Result(BUILDS, not wrong, wrong)
    if wrong:
        return

    def make() -> Policy:
        with during("being built", BUILT_S):
            return _Timed(build(name, parameters), during, answer_s)

    def result(check: str, found: Iterator[str]) -> Result:
        with during(f"'{check}'", CHECK_S):
            wrong = next(found, None)
        return Result(check, wrong is None, wrong or "")

    yield result(DOCUMENTED, _undocumented(made))
    yield result(FROZEN, _unfrozen(made))
    unchanged = result(LEAVES_INPUTS, _changed(make, seeds))
    # What a policy leaves as it was can be shown again, which is much quicker than to draw anew.
    draw: Draw = cache(sequence) if unchanged.passed else sequence
    yield result(ANSWERS, _no_answers(make, seeds, draw))
    yield result(FINITE, _impossible(make, seeds, draw))
    yield unchanged
    yield result(DETERMINISTIC, _different(make, seeds, draw))
    yield result(SHARES_NOTHING, _shared(make, seeds, draw))
    yield result(EMPTY, _moved_by_nothing(make))
    yield result(NO_GROWTH, _grown(make, seeds, draw))
    yield result(NO_CREEP, _crept(make))


class _Timed:
    """A policy whose every answer is watched."""

    def __init__(self, policy: Policy, during: During, answer_s: float) -> None:
        self._policy, self._during, self._answer_s = policy, during, answer_s

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        with self._during("an answer", self._answer_s):
            return self._policy.decide(signals, limits)


# --- each yields what is wrong, and the first is told ----------------------------------------


def _undocumented(policy: type[Any]) -> Iterator[str]:
    if not (policy.__doc__ or "").strip():
        yield f"{policy.__name__} has no docstring"
    for described in describe(policy.Parameters):
        if not described.doc:
            yield f"parameter {described.name} has no meaning: declare it with parameter(..., doc)"


def _unfrozen(policy: type[Any]) -> Iterator[str]:
    if not policy.Parameters.__dataclass_params__.frozen:
        yield f"{policy.__name__}.Parameters should be declared with @dataclass(frozen=True)"


def _no_answers(make: Make, seeds: list[int], draw: Draw) -> Iterator[str]:
    for seed in seeds:
        policy = make()
        for tick, (signals, limits) in enumerate(draw(seed)):
            answer = _ask(policy, signals, limits)
            if isinstance(answer, str):
                yield _at(seed, tick, answer, signals, limits)
            elif not isinstance(answer.reason, str) or not answer.reason.strip():
                yield _at(seed, tick, "gives no reason", signals, limits)
            elif "\n" in answer.reason:
                yield _at(
                    seed, tick, f"reason of several lines: {answer.reason!r}", signals, limits
                )


def _impossible(make: Make, seeds: list[int], draw: Draw) -> Iterator[str]:
    for seed in seeds:
        policy = make()
        for tick, (signals, limits) in enumerate(draw(seed)):
            answer = _ask(policy, signals, limits)
            if isinstance(answer, Proposal) and (wrong := _wrong(answer.limits)):
                yield _at(seed, tick, wrong, signals, limits)


def _changed(make: Make, seeds: list[int]) -> Iterator[str]:
    for seed in seeds:
        policy = make()
        for tick, (signals, limits) in enumerate(sequence(seed)):
            before = deepcopy((signals, limits))
            _ask(policy, signals, limits)
            if (signals, limits) != before:
                yield _at(seed, tick, "changed its input, which was", *before)


def _different(make: Make, seeds: list[int], draw: Draw) -> Iterator[str]:
    for seed in seeds:
        asked = draw(seed)
        first, second = _told(make(), asked), _told(make(), draw(seed))
        for tick, (one, other) in enumerate(zip(first, second, strict=True)):
            if one != other:
                yield _at(seed, tick, f"once {one}, and then {other}", *asked[tick])


def _shared(make: Make, seeds: list[int], draw: Draw) -> Iterator[str]:
    for seed in seeds:
        alone = _told(make(), draw(seed))
        one, other = make(), make()
        # In turns, and the other one sees something else: what it learns must not be found here.
        others = draw(seed + 1)
        for tick, pair in enumerate(draw(seed)):
            _ask(other, *others[tick])
            beside = _in_words(_ask(one, *pair))
            if beside != alone[tick]:
                told = f"alone {alone[tick]}, beside another {beside}"
                yield _at(seed, tick, told, *pair)


def _moved_by_nothing(make: Make) -> Iterator[str]:
    policy = make()
    for _ in range(3):
        nothing = Signals(interval_s=0.25, age_s=None)
        told = f"on {_shown(nothing)}"
        answer = _ask(policy, nothing, _start())
        if isinstance(answer, str):
            yield f"{answer}, {told}"
        elif answer.limits != _start():
            yield f"proposes {_shown(answer.limits)} for {_shown(_start())}, {told}"


def _grown(make: Make, seeds: list[int], draw: Draw) -> Iterator[str]:
    for seed in seeds:
        policy, limits = make(), _start()
        for tick, (drawn, _) in enumerate(draw(seed)):
            seldom = tuple(
                replace(e, size_bound=SELDOM, tokens_bound=SELDOM) for e in drawn.executors
            )
            # No time of day: limits that a calendar holds are an order, and no growth.
            signals = replace(drawn, executors=seldom, wall_s=None)
            answer = _ask(policy, signals, limits)
            if isinstance(answer, str) or _wrong(answer.limits):
                continue
            if answer.limits.max_batch_size > limits.max_batch_size:
                grown = f"B {limits.max_batch_size} -> {answer.limits.max_batch_size}"
                yield _at(seed, tick, f"{grown}, reached in {SELDOM:.0%} of steps", signals, limits)
            limits = answer.limits


def _crept(make: Make) -> Iterator[str]:
    policy, limits, start = make(), _start(), _start()
    tier = TierSignals("paid", 1, queued=0, queued_tokens=0, oldest_wait_s=None, running=1)
    executor = ExecutorSignals("e", True, running=1, free_seats=15, steps=40, size_bound=0.0)
    light = Signals(interval_s=0.25, age_s=0.01, tiers=(tier,), executors=(executor,))
    for tick in range(LONG):
        answer = _ask(policy, light, limits)
        if isinstance(answer, str) or _wrong(answer.limits):
            continue
        limits = answer.limits
        for name in ("max_batch_size", "max_batch_tokens", "wait_timeout_s"):
            if getattr(limits, name) > getattr(start, name):
                moved = f"{name} {getattr(start, name):g} -> {getattr(limits, name):g}"
                yield f"{moved} after {tick + 1} ticks of {_shown(light)}"


# --- how it is asked and told ---------------------------------------------------------------------


def _start() -> Limits:
    # Made anew each time: a policy might write into it.
    return Limits(max_batch_size=16, max_batch_tokens=1024, wait_timeout_s=0.005)


def _ask(policy: Policy, signals: Signals, limits: Limits) -> Proposal | str:
    """Its answer; in words where that is none."""
    try:
        answer: object = policy.decide(signals, limits)
    except KeyboardInterrupt:  # whoever runs the checks wants them to end
        raise
    except BaseException as error:  # whatever else it is, it is what was asked for
        return f"raises {in_words(error)}"
    if not isinstance(answer, Proposal) or not isinstance(answer.limits, Limits):
        return f"answers {answer!r}, which is no Proposal of Limits"
    return answer


def _told(policy: Policy, asked: Asked) -> list[str]:
    return [_in_words(_ask(policy, *pair)) for pair in asked]


def _in_words(answer: Proposal | str) -> str:
    return answer if isinstance(answer, str) else f"{_shown(answer.limits)} ({answer.reason})"


def _wrong(limits: Limits) -> str:
    """What is impossible about limits; nothing where they are fine."""
    size, tokens, wait_s = limits.max_batch_size, limits.max_batch_tokens, limits.wait_timeout_s
    for name, value in (("max_batch_size", size), ("max_batch_tokens", tokens)):
        if type(value) is not int or value < 1:
            return f"{name} {value!r} is no whole number from 1"
    if tokens < size:
        return f"max_batch_tokens {tokens} is below max_batch_size {size}"
    if not _is_wait(wait_s):
        return f"wait_timeout_s {wait_s!r} is no number of seconds from 0"
    for name, tier in limits.tiers.items():
        if tier.max_seats is not None and (type(tier.max_seats) is not int or tier.max_seats < 0):
            return f"tiers[{name!r}].max_seats {tier.max_seats!r} is no whole number from 0"
        if tier.wait_timeout_s is not None and not _is_wait(tier.wait_timeout_s):
            return f"tiers[{name!r}].wait_timeout_s {tier.wait_timeout_s!r} is no time"
    return ""


def _is_wait(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _at(seed: int, tick: int, what: str, signals: Signals, limits: Limits) -> str:
    where = f"seed {seed}, tick {tick + 1} of policies.conformance_inputs.sequence({seed})"
    return f"{where}: {what}; limits {_shown(limits)}, signals {_shown(signals)}"


def _shown(value: object) -> str:
    """A record without what is missing in it."""
    if isinstance(value, tuple):
        return f"({', '.join(_shown(item) for item in value)})"
    if isinstance(value, float):
        return f"{value:.6g}"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    parts = []
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        if held is not None and held != () and held != {}:
            parts.append(f"{field.name}={_shown(held)}")
    return f"{type(value).__name__}({', '.join(parts)})"
