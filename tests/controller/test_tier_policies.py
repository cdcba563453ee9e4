from __future__ import annotations

from dataclasses import replace

import pytest

from controller.asking import Named
from controller.gates import Code
from controller.tier_signals import alone
from controller.tiers import seat_cap, wait_of
from policies.contract import Limits, Proposal, Signals, TierLimits
from tests.controller.loop_rig import Rig, Scripted, broken, more, stay, to
from tests.controller.stage import FREE, OFFLINE, PAID, model


def seated(rig: Rig) -> dict[str, int]:
    return {tier: some for tier, some in rig.stage.batcher.executors["e"].by_tier.items() if some}


class TestInsideOneBatch:
    def test_free_is_confined_to_its_seats_while_paid_may_have_all(self) -> None:
        rig = Rig.build(size=8, own={"free": to(2)})
        rig.tick()
        assert rig.loop.limits.tiers == {"free": TierLimits(2, 0.0)}
        for _ in range(8):
            rig.stage.arrive("free", new=1000)
        rig.stage.poll()
        assert seated(rig) == {"free": 2}
        for _ in range(8):
            rig.stage.arrive("paid", new=1000)
        rig.stage.poll()
        assert seated(rig) == {"free": 2, "paid": 6}

    def test_each_tier_is_held_for_company_as_long_as_its_own_wait(self) -> None:
        rig = Rig.build(size=8, wait_s=0.02, own={"free": to(2, wait_s=0.005)})
        rig.tick()
        tiers = {"paid": PAID, "free": FREE}
        waits = {name: wait_of(tier, rig.loop.limits) for name, tier in tiers.items()}
        assert waits == {"paid": 0.02, "free": 0.005}
        for name, wait_s in waits.items():
            request = rig.stage.arrive(name)
            assert rig.stage.poll().wake_at == pytest.approx(rig.stage.now + wait_s)
            rig.stage.poll(rig.stage.now + wait_s)
            rig.stage.finish(request.id)
            rig.stage.poll()

    def test_nobody_gives_up_a_seat_for_a_tier_that_has_all_of_its_own(self) -> None:
        rig = Rig.build(size=2, own={"paid": to(1)})
        rig.tick()
        for tier in ("free", "paid", "paid"):
            rig.stage.arrive(tier, new=1000)
            rig.stage.poll()
        rig.run(2.0)
        assert rig.stage.released["e"] == []
        assert seated(rig) == {"free": 1, "paid": 1}

    def test_what_its_own_policy_leaves_alone_is_not_written_down(self) -> None:
        rig = Rig.build(own={"free": stay})
        rig.tick()
        assert (rig.last.moved, rig.last.code, rig.loop.limits.tiers) == (False, "kept", {})


class TestView:
    def test_it_sees_its_tier_alone_and_its_seats_as_the_batch(self) -> None:
        rig = Rig.build(size=8, own={"free": to(2)})
        rig.tick()
        for _ in range(4):
            rig.stage.arrive("free", new=1000)
        for _ in range(3):
            rig.stage.arrive("paid", new=1000)
        rig.stage.poll()
        rig.run(2.0)
        seen = rig.shown_to("free")
        assert [tier.name for tier in seen.tiers] == ["free"]
        (mine,) = seen.executors
        (whole,) = rig.policy.seen[-1].executors
        assert (mine.running, mine.free_seats, mine.mean_batch) == (2, 0, 2.0)
        assert (mine.size_bound, mine.fill) == (1.0, 1.0)
        assert (whole.running, whole.free_seats, whole.mean_batch) == (5, 3, 5.0)
        assert whole.size_bound == 0.0
        assert (mine.steps, mine.step_time) == (whole.steps, whole.step_time)
        assert seen.last is not None
        assert (seen.last.proposed.max_batch_size, seen.last.applied.max_batch_size) == (2, 2)

    def test_a_tier_without_a_cap_has_reached_its_limit_when_it_fills_the_batch(self) -> None:
        rig = Rig.build(size=2, own={"free": stay})
        rig.stage.arrive("free", new=1000)
        rig.stage.poll()
        rig.run(1.0)
        assert rig.shown_to("free").executors[0].size_bound == 0.0
        rig.stage.arrive("free", new=1000)
        rig.stage.poll()
        rig.run(5.0)
        assert rig.shown_to("free").executors[0].size_bound == 1.0

    def test_the_step_model_tells_of_its_sequences_beside_the_others(self) -> None:
        rig = Rig.build(size=8, own={"free": stay})
        for tier in ("free", "paid", "paid", "paid"):
            rig.stage.arrive(tier, new=1000)
        rig.stage.poll()
        rig.run(1.0)
        known = replace(model(a=0.02, b=1e-6, c=0.001), c_above=0.002, knee=4)
        seats = rig.stage.batcher.executors["e"]
        totals = rig.observer.executors["e"].totals(0.0, reach=0.0, at_least=0)
        whole = replace(rig.policy.seen[-1], model=known)
        mine = alone(whole, FREE, [(seats, totals)], last=None).model
        assert mine is not None
        for size in (0, 1, 2, 5):
            assert mine.predict(size, 100 * size) == pytest.approx(
                known.predict(3 + size, 100 * (3 + size))
            )


class TestGuard:
    def test_its_seats_grow_only_when_they_are_all_taken(self) -> None:
        rig = Rig.build(size=8, own={"free": to(2)})
        rig.tick()
        rig.loop.tiers[0].succession.switch(Named("growing", Scripted(more)))
        rig.stage.arrive("free", new=1000)
        for _ in range(3):
            rig.stage.arrive("paid", new=1000)
        rig.stage.poll()
        rig.run(3.0)
        (free,) = rig.last.tiers
        assert (free.after.max_batch_size, free.notes[0].code) == (2, Code.NOT_BINDING)
        for _ in range(5):
            rig.stage.arrive("free", new=1000)
        rig.stage.poll()
        rig.run(10.0)
        # Five free ones and three paid ones fill the batch: the sixth seat cannot be taken.
        assert rig.loop.limits.tiers["free"].max_seats == 6
        assert seated(rig) == {"free": 5, "paid": 3}

    @pytest.mark.parametrize("size", [0, -3, 10**9, float("nan")])
    def test_seats_stay_between_one_and_the_size_of_the_batch(self, size: int) -> None:
        rig = Rig.build(size=4, own={"free": to(size)})
        rig.tick()
        seats = seat_cap(FREE, rig.loop.limits)
        assert seats in (None, 1)
        rig.stage.arrive("free")
        rig.stage.poll()
        assert seated(rig) == {"free": 1}

    def test_a_configured_cap_is_the_most_that_its_policy_may_have(self) -> None:
        capped = replace(FREE, max_seats=3)
        rig = Rig.build(size=8, tiers=(PAID, capped, OFFLINE), own={"free": to(8)})
        rig.tick()
        (free,) = rig.last.tiers
        assert (free.before.max_batch_size, free.judged.max_batch_size) == (3, 3)
        assert free.notes[0].code == Code.ENVELOPE

    def test_seats_follow_a_batch_that_shrinks(self) -> None:
        rig = Rig.build(size=8, own={"free": to(6)})
        rig.tick()
        rig.policy.rule = to(4)
        rig.tick()
        assert rig.loop.limits.tiers["free"].max_seats == 4


class TestWhoWrites:
    def test_the_policy_of_the_group_does_not_write_a_tier_that_has_its_own(self) -> None:
        def greedy(signals: Signals, limits: Limits) -> Proposal:
            tiers = {"free": TierLimits(1, 0.0), "offline": TierLimits(3, 0.01), "x": TierLimits(1)}
            return Proposal(replace(limits, tiers=tiers), "all")

        rig = Rig.build(greedy, size=8, own={"free": to(5)})
        rig.tick()
        assert rig.loop.limits.tiers == {
            "free": TierLimits(5, 0.0),
            "offline": TierLimits(3, 0.01),
        }

    def test_what_it_writes_for_others_leaves_them_a_seat_and_the_envelope_its_wait(self) -> None:
        def absurd(signals: Signals, limits: Limits) -> Proposal:
            tiers = {"paid": TierLimits(0, 9.0), "free": TierLimits(10**9)}
            return Proposal(replace(limits, tiers=tiers), "absurd")

        rig = Rig.build(absurd, size=4)
        rig.tick()
        assert rig.loop.limits.tiers == {"paid": TierLimits(1, 0.05), "free": TierLimits(4, None)}

    def test_limits_by_hand_hold_those_of_tiers_as_they_are(self) -> None:
        rig = Rig.build(size=8, own={"free": to(5)})
        rig.tick()
        rig.loop.hold(replace(rig.loop.limits, max_batch_size=6), until=10.0)
        rig.loop.tiers[0].succession.switch(Named("less", Scripted(to(2))))
        rig.tick()
        assert rig.loop.limits.tiers == {"free": TierLimits(5, 0.0)}
        rig.stage.now = 10.0
        rig.tick()
        assert rig.loop.limits.tiers == {"free": TierLimits(2, 0.0)}


class TestFailure:
    def test_its_own_policy_that_fails_leaves_everybody_else_alone(self) -> None:
        rig = Rig.build(to(6), size=8, own={"free": broken})
        for _ in range(3):
            rig.tick()
        (free,) = rig.last.tiers
        assert (free.error, free.successor) == ("RuntimeError: no", "static")
        assert (rig.last.error, rig.loop.policy.name) == ("", "scripted")
        assert rig.loop.limits.max_batch_size == 6
        assert "free no change: policy 'own' failed 3 times in a row" in rig.last.sentence()
        rig.tick()
        assert rig.last.tiers[0].policy == "static"


class TestShares:
    def test_a_confined_tier_still_gets_its_share_and_is_not_starved(self) -> None:
        free = replace(FREE, min_share=0.25, max_starvation_s=5.0)
        rig = Rig.build(size=2, tiers=(PAID, free, OFFLINE), own={"free": to(1)})
        rig.tick()
        for _ in range(60):
            rig.stage.arrive("paid", new=10)
            rig.stage.arrive("free", new=10)
        rig.stage.poll()
        rig.run(20.0)
        ended = [ended.request.tier for ended in rig.stage.ended]
        assert 0.2 < ended.count("free") / len(ended) < 0.3


def test_a_decision_tells_what_became_of_a_tier_in_the_same_sentence() -> None:
    rig = Rig.build(to(6), size=8, wait_s=0.02, own={"free": to(2, wait_s=0.005)})
    rig.tick()
    assert rig.last.sentence() == "B 8 -> 6: to 6; free seats 8 -> 2, W 20 ms -> 5 ms: to 2"
    assert [tuple(change) for change in rig.last.changes()] == [
        (None, "max_batch_size", "down", "policy"),
        ("free", "max_batch_size", "down", "policy"),
        ("free", "wait_timeout_s", "down", "policy"),
    ]
