"""What every registered policy owes: see the contract. A new row of the table is tested unasked."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.contract import Limits, Policy, Proposal, Signals
from policies.parameters import describe
from policies.registry import TYPES, build, load
from tests.policies.signals import LIMITS, limits, seen, signals

every_policy = pytest.mark.parametrize("name", TYPES)
sequences = st.lists(st.tuples(signals, limits), min_size=1, max_size=5)
# Many policies, each over generated sequences: fewer examples keep the suite quick.
quickly = settings(max_examples=25)


def answers(policy: Policy, given: list[tuple[Signals, Limits]]) -> list[Proposal]:
    """What a policy says to a sequence."""
    return [policy.decide(now, in_force) for now, in_force in given]


@every_policy
def test_it_builds_with_its_defaults_and_says_what_they_mean(name: str) -> None:
    build(name, {})
    policy = load(name)
    words = policy.__doc__ or ""
    assert "Regime:" in words
    assert "Source:" in words
    for described in describe(policy.Parameters):
        assert described.doc, described.name


@every_policy
def test_its_parameters_are_frozen(name: str) -> None:
    parameters = load(name).Parameters()
    assert is_dataclass(parameters)
    for field in fields(parameters):
        with pytest.raises(FrozenInstanceError):
            setattr(parameters, field.name, 1)


@every_policy
@given(sequences)
@quickly
def test_it_survives_anything_and_answers_with_finite_limits_and_a_reason(
    name: str, given: list[tuple[Signals, Limits]]
) -> None:
    for proposal in answers(build(name, {}), given):
        proposed = proposal.limits
        assert proposed.max_batch_size >= 1
        assert proposed.max_batch_tokens >= proposed.max_batch_size
        assert math.isfinite(proposed.wait_timeout_s)
        assert proposed.wait_timeout_s >= 0
        assert proposal.reason.strip()
        assert "\n" not in proposal.reason


@every_policy
@given(sequences)
@quickly
def test_it_mutates_nothing_that_it_is_given(
    name: str, given: list[tuple[Signals, Limits]]
) -> None:
    before = deepcopy(given)
    answers(build(name, {}), given)
    assert given == before


@every_policy
@given(sequences)
@quickly
def test_the_same_sequence_gives_the_same_answers_and_no_two_share_state(
    name: str, given: list[tuple[Signals, Limits]]
) -> None:
    first, other = build(name, {}), build(name, {})
    alone = answers(build(name, {}), given)
    # Asked in turns: what one learns must not reach the other.
    in_turns = [(first.decide(*pair), other.decide(*pair)) for pair in given]
    assert in_turns == [(proposal, proposal) for proposal in alone]


@every_policy
def test_it_survives_having_seen_nothing_and_stays(name: str) -> None:
    nothing = Signals(interval_s=0.25, age_s=None)
    assert build(name, {}).decide(nothing, LIMITS).limits == LIMITS


@every_policy
@given(st.lists(signals, min_size=1, max_size=8))
@quickly
def test_it_does_not_grow_while_the_limit_does_not_bind(name: str, given: list[Signals]) -> None:
    policy, in_force = build(name, {}), LIMITS
    for now in given:
        idle = tuple(replace(e, size_bound=0.1, tokens_bound=0.1) for e in now.executors)
        proposed = policy.decide(replace(now, executors=idle), in_force).limits
        assert proposed.max_batch_size <= in_force.max_batch_size
        in_force = proposed


@every_policy
def test_it_does_not_creep_up_on_light_load(name: str) -> None:
    policy, in_force = build(name, {}), LIMITS
    for _ in range(200):
        in_force = policy.decide(seen(queued=0, size_bound=0.0), in_force).limits
    assert in_force == LIMITS
