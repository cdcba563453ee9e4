from __future__ import annotations

from dataclasses import replace

from controller.gates import Code
from policies.contract import Limits
from tests.controller.loop_rig import Rig, more, to


def test_a_move_is_judged_and_recorded_and_not_applied() -> None:
    rig = Rig.build(to(2), size=4, mode="observe")
    rig.tick()
    decision = rig.last
    assert (decision.code, decision.moved, decision.epoch) == ("observed", False, 0)
    assert (decision.judged.max_batch_size, decision.after) == (2, Limits(4, 8192, 0.0))
    assert rig.loop.limits == Limits(4, 8192, 0.0)
    assert decision.sentence() == "only observed: B 4 -> 2: to 2"


def test_the_guard_judges_it_as_if_it_were_applied() -> None:
    rig = Rig.build(more, size=4, mode="observe")
    rig.tick()
    assert (rig.last.code, rig.last.notes[0].code) == ("held_back", Code.STALE)


def test_the_policy_goes_on_from_the_limits_in_force_and_is_told_that_nothing_came_of_it() -> None:
    rig = Rig.build(to(2), size=4, mode="observe")
    rig.tick()
    rig.tick()
    last = rig.policy.seen[-1].last
    assert last is not None
    assert (last.proposed.max_batch_size, last.applied.max_batch_size) == (2, 4)
    assert rig.last.before == Limits(4, 8192, 0.0)


def test_a_capacity_is_no_reason_to_apply_anything() -> None:
    rig = Rig.build(size=16, seats=3, mode="observe")
    rig.tick()
    assert (rig.last.judged.max_batch_size, rig.loop.limits.max_batch_size) == (3, 16)


def test_tiers_with_a_policy_of_their_own_are_only_observed_too() -> None:
    rig = Rig.build(size=4, own={"free": to(1)}, mode="observe")
    rig.tick()
    (free,) = rig.last.tiers
    assert (free.judged.max_batch_size, free.after.max_batch_size) == (1, 4)
    assert rig.loop.limits.tiers == {}
    assert rig.last.sentence() == "only observed: no change: as it is; free seats 4 -> 1: to 1"


def test_once_it_applies_the_next_tick_does() -> None:
    rig = Rig.build(to(2), size=4, mode="observe")
    rig.tick()
    rig.loop.mode = "apply"
    rig.tick()
    assert rig.loop.limits == replace(Limits(4, 8192, 0.0), max_batch_size=2)
    assert rig.last.code == "moved"
