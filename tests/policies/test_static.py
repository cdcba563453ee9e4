from __future__ import annotations

from dataclasses import replace

from policies.contract import Cause, Proposal
from policies.registry import build
from tests.policies.signals import LIMITS, itl, seen


def test_the_limits_first_seen_are_proposed_for_ever() -> None:
    policy = build("static", {})
    slow = seen(itl(0.9, state="breach", misses=40, cause=Cause.DECODE), queued=500)
    first = policy.decide(slow, LIMITS)
    assert first == Proposal(LIMITS, "as configured")


def test_limits_that_somebody_moved_are_to_be_put_back() -> None:
    policy = build("static", {})
    policy.decide(seen(), LIMITS)
    assert policy.decide(seen(), replace(LIMITS, max_batch_size=4)).limits == LIMITS
