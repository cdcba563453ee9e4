"""The suite that ships, over everything that ships, and over policies that are wrong on purpose."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.config_load import load as load_config
from policies.conformance import (
    ANSWERS,
    BUILDS,
    DETERMINISTIC,
    DOCUMENTED,
    EMPTY,
    FINITE,
    FROZEN,
    LEAVES_INPUTS,
    NO_CREEP,
    NO_GROWTH,
    SHARES_NOTHING,
    Result,
    run,
)
from policies.conformance_inputs import sequence
from policies.contract import Limits, Proposal, Signals, TierLimits
from policies.registry import TYPES, build, load
from tests.policies.signals import limits, signals

ROOT = Path(__file__).parents[2]
CHECKS = [
    BUILDS,
    DOCUMENTED,
    FROZEN,
    ANSWERS,
    FINITE,
    LEAVES_INPUTS,
    DETERMINISTIC,
    SHARES_NOTHING,
    EMPTY,
    NO_GROWTH,
    NO_CREEP,
]
FEW = range(20)


@pytest.mark.parametrize("name", TYPES)
def test_every_registered_policy_conforms(name: str) -> None:
    assert run(name, {}, seeds=FEW) == [Result(check, True) for check in CHECKS]


@pytest.mark.parametrize("name", TYPES)
def test_every_registered_policy_names_its_regime_and_its_source(name: str) -> None:
    words = load(name).__doc__ or ""
    assert "Regime:" in words
    assert "Source:" in words


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_configuration_that_ships_has_a_policy_that_conforms(path: Path) -> None:
    policy = load_config(path, env={}).control.policy
    assert run(policy.type, policy.parameters, seeds=range(5)) == [
        Result(check, True) for check in CHECKS
    ]


def test_a_schedule_with_entries_around_another_policy_conforms() -> None:
    entries = [
        {"name": "night", "from": "20:00", "to": "08:00", "limits": {"max_batch_size": 200}},
        {"name": "day", "limits": {"wait_timeout_s": 0.0, "max_batch_tokens": 64}},
    ]
    given = {"entries": entries, "inner": {"type": "sla_search"}}
    assert [r for r in run("schedule", given, seeds=FEW) if not r.passed] == []


@pytest.mark.parametrize("name", TYPES)
@given(st.lists(st.tuples(signals, limits), min_size=1, max_size=5))
@settings(max_examples=15)
def test_a_second_source_of_signals_finds_nothing_either(
    name: str, given: list[tuple[Signals, Limits]]
) -> None:
    policy = build(name, {})
    for pair in given:
        proposed = policy.decide(*pair).limits
        assert 1 <= proposed.max_batch_size <= proposed.max_batch_tokens
        assert 0 <= proposed.wait_timeout_s < math.inf


# --- wrong on purpose ---------------------------------------------------------------------------


@dataclass(frozen=True)
class NoParameters:
    """It has none."""


class Wrong:
    """Does nothing, until a rule is put in."""

    Parameters: ClassVar[type[Any]] = NoParameters

    def __init__(self, parameters: NoParameters) -> None:
        self.asked = 0

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """As the rule says."""
        self.asked += 1
        return self.rule(signals, limits)

    def rule(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(limits, "as it is")


class WritesTiers(Wrong):
    """Writes into the limits that it is shown."""

    def rule(self, signals: Signals, limits: Limits) -> Proposal:
        limits.tiers["vip"] = TierLimits(max_seats=1)  # type: ignore[index]  # the fault itself
        return Proposal(limits, "made room")


class WritesSignals(Wrong):
    """Works around what is frozen."""

    def rule(self, signals: Signals, limits: Limits) -> Proposal:
        object.__setattr__(signals, "age_s", -1.0)
        return Proposal(limits, "as it is")


class Moody(Wrong):
    """Has a source of chance that nobody sees."""

    drawn: ClassVar[count[int]] = count()

    def rule(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(limits, f"mood {next(self.drawn) % 7}")


class Gossip(Wrong):
    """Keeps what it saw where all of its kind find it; by itself it always says the same."""

    seen: ClassVar[dict[str, float | None]] = {}

    def rule(self, signals: Signals, limits: Limits) -> Proposal:
        if self.asked == 1:
            self.seen.clear()
        told = sorted(map(str, self.seen))
        self.seen[f"{signals.interval_s}"] = signals.age_s
        return Proposal(limits, f"saw {told}")


class Trusting(Wrong):
    """Counts on there being somebody."""

    def rule(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(limits, f"{signals.tiers[0].name} first")


class Stubborn(Wrong):
    """Wants its own size, whatever is seen."""

    def rule(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(replace(limits, max_batch_size=8, max_batch_tokens=8192), "8 is best")


class Greedy(Wrong):
    """Grows whenever somebody waits."""

    def rule(self, signals: Signals, limits: Limits) -> Proposal:
        size = limits.max_batch_size + (sum(tier.queued for tier in signals.tiers) > 0)
        wider = max(limits.max_batch_tokens, size)
        return Proposal(replace(limits, max_batch_size=size, max_batch_tokens=wider), "more")


class Creeping(Wrong):
    """Holds a little longer every tenth time, also when nobody comes."""

    def rule(self, signals: Signals, limits: Limits) -> Proposal:
        if self.asked % 10 or not signals.tiers:
            return Proposal(limits, "counts")
        return Proposal(replace(limits, wait_timeout_s=limits.wait_timeout_s + 1e-3), "longer")


class NotANumber(Wrong):
    """Divides without looking, and catches it too late."""

    def rule(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(replace(limits, wait_timeout_s=math.nan), "half of nothing")


class Fractions(Wrong):
    """Forgets to round."""

    def rule(self, signals: Signals, limits: Limits) -> Proposal:
        size: Any = limits.max_batch_size * 0.5
        return Proposal(replace(limits, max_batch_size=size), "half")


class Wordless(Wrong):
    """Gives no reason."""

    def rule(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(limits, " ")


class Silent(Wrong):
    """Answers with nothing."""

    def rule(self, signals: Signals, limits: Limits) -> Proposal:
        nothing: Any = None
        return cast("Proposal", nothing)


class Undocumented(Wrong):
    __doc__ = None


class Loose(Wrong):
    """Its parameters can be written to."""

    @dataclass
    class Parameters:
        """It has none."""


class Unexplained(Wrong):
    """Says nothing of its parameter."""

    @dataclass(frozen=True)
    class Parameters:
        size: int = 3


class Unbuildable(Wrong):
    """Raises when it is built."""

    def __init__(self, parameters: NoParameters) -> None:
        raise RuntimeError("no licence")


def test_what_does_nothing_conforms() -> None:
    assert all(result.passed for result in run(f"{__name__}:Wrong", {}, seeds=FEW))


@pytest.mark.parametrize(
    ("policy", "check", "told"),
    [
        (WritesTiers, LEAVES_INPUTS, "changed its input, which was; limits Limits(max_batch_size="),
        (WritesSignals, LEAVES_INPUTS, "changed its input"),
        (Moody, DETERMINISTIC, "(mood "),
        (Gossip, SHARES_NOTHING, "alone Limits("),
        (Trusting, ANSWERS, "raises IndexError: tuple index out of range"),
        (
            Trusting,
            EMPTY,
            "raises IndexError: tuple index out of range, on Signals(interval_s=0.25)",
        ),
        (Stubborn, EMPTY, "proposes Limits(max_batch_size=8, max_batch_tokens=8192, "),
        (Greedy, NO_GROWTH, "B 16 -> 17, reached in 10% of steps"),
        (Creeping, NO_CREEP, "wait_timeout_s 0.005 -> 0.006 after 10 ticks of Signals("),
        (NotANumber, FINITE, "wait_timeout_s nan is no number of seconds from 0"),
        (Fractions, FINITE, "is no whole number from 1"),
        (Wordless, ANSWERS, "gives no reason"),
        (Silent, ANSWERS, "answers None, which is no Proposal of Limits"),
        (Undocumented, DOCUMENTED, "Undocumented has no docstring"),
        (Unexplained, DOCUMENTED, "parameter size has no meaning"),
        (Loose, FROZEN, "Loose.Parameters should be declared with @dataclass(frozen=True)"),
        (Unbuildable, BUILDS, "RuntimeError: no licence"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_what_is_wrong_is_caught_by_name_with_the_inputs_that_show_it(
    policy: type[Any], check: str, told: str
) -> None:
    results = run(f"{__name__}:{policy.__name__}", {}, seeds=FEW)
    failed = {result.check: result.detail for result in results if not result.passed}
    assert told in failed[check]


def test_a_failure_names_the_seed_that_shows_it_again() -> None:
    (failed,) = (r for r in run(f"{__name__}:Greedy", {}, seeds=FEW) if not r.passed)
    seed = int(failed.detail.removeprefix("seed ").partition(",")[0])
    again = [r.check for r in run(f"{__name__}:Greedy", {}, seeds=[seed]) if not r.passed]
    assert again == [NO_GROWTH]


def test_wrong_parameters_are_one_result() -> None:
    assert run("aimd", {"backof": 1}) == [
        Result(BUILDS, False, "backof: unknown parameter; did you mean backoff?")
    ]
    assert run("amid", {})[0].detail.startswith("unknown policy 'amid'; did you mean aimd?")


def test_made_up_signals_are_the_same_for_a_seed_and_others_for_another() -> None:
    assert sequence(1) == sequence(1)
    assert sequence(1) != sequence(2)


@pytest.mark.parametrize(
    "missing",
    [
        lambda s: not s.tiers,
        lambda s: not s.executors,
        lambda s: s.model is None,
        lambda s: s.model is not None and s.executors and s.tiers,
        lambda s: any(e.shape and e.shape.runs_to_completion for e in s.executors),
        lambda s: any(e.size_bound is None for e in s.executors),
        lambda s: any(not e.ready for e in s.executors),
    ],
)
def test_made_up_signals_have_what_is_there_and_what_is_not(
    missing: Callable[[Signals], object],
) -> None:
    shown = [signals for seed in range(60) for signals, _ in sequence(seed)]
    assert 10 < sum(bool(missing(signals)) for signals in shown) < len(shown)
