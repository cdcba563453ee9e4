"""Other tiers while requests wait and run: in force for who comes, and nobody loses anything."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.errors import HeadwayError, QueueFull
from controller.observer import Observer
from controller.request import Outcome
from controller.tiers import Late, Order, Targets, Tier
from executor.contract import StepSample
from tests.controller.stage import FREE, OFFLINE, PAID, Stage, model

KNOWN = model(a=0.02, c=0.01, d=0.001)


def retier(stage: Stage, tier: str = "paid", **changes: Any) -> None:
    """Change some fields of one tier."""
    tiers = [queue.tier for queue in stage.batcher.queues.values()]
    stage.batcher.retier([replace(one, **changes) if one.name == tier else one for one in tiers])


def order(stage: Stage) -> list[str]:
    """Everybody who waits, in the order in which one executor with one seat would begin them."""
    begun = []
    while stage.batcher.queued():
        (name,) = stage.poll().work["e"].submit
        begun.append(name.request_id)
        stage.finish(name.request_id)
    return begun


def full(**more: Any) -> Stage:
    """One seat, and it is taken, by a request that no tier gives up."""
    stage = Stage.build(size=1, **more)
    stage.arrive("paid", name="first")
    stage.poll(0.0)
    return stage


def test_names_and_priorities_have_to_stay() -> None:
    stage = Stage.build()
    for tiers in ([PAID, FREE], [PAID, FREE, replace(OFFLINE, priority=7)]):
        with pytest.raises(ValueError, match="names and priorities"):
            stage.batcher.retier(tiers)
    assert stage.batcher.queues["offline"].tier == OFFLINE


class TestWhoWaits:
    def test_is_due_as_promised_and_who_comes_as_is_promised_now(self) -> None:
        stage = full()
        old = stage.arrive("offline")
        retier(stage, "offline", targets=Targets(e2e_s=60.0))
        new = stage.arrive("offline")
        assert (old.due, new.due) == (600.0, 60.0)
        stage.finish("first")
        assert order(stage) == [new.id, old.id]

    @pytest.mark.parametrize(
        ("rule", "expected"),
        [("edf", ["b", "a", "c"]), ("fcfs", ["a", "b", "c"]), ("shortest", ["b", "c", "a"])],
    )
    @pytest.mark.parametrize("before", ["edf", "fcfs", "shortest"])
    def test_is_sorted_by_the_order_in_force(
        self, before: Order, rule: Order, expected: list[str]
    ) -> None:
        tier = Tier("paid", 1, Targets(e2e_s=50.0), order=before)
        stage = full(tiers=[tier], model=KNOWN)
        stage.arrive(name="a", new=200)  # 6 s of work, due 44 s after its arrival
        stage.now = 1.0
        stage.arrive(name="b", new=20)  # 0.6 s
        stage.now = 3.0
        due = [one.due for one in stage.batcher.queues["paid"].firsts(2)]
        retier(stage, order=rule)
        assert sorted(due) == sorted(one.due for one in stage.batcher.queues["paid"].firsts(2))
        if rule == "edf":
            retier(stage, targets=Targets(e2e_s=80.0))
        stage.arrive(name="c", new=20)
        if rule == "edf":
            # By work it would have been before `a`: its promise is a longer one.
            expected = ["a", "b", "c"]
        stage.finish("first")
        assert order(stage) == expected

    def test_stays_when_the_queue_is_made_smaller_and_only_who_comes_is_turned_away(self) -> None:
        stage = full()
        waiting = [stage.arrive("free") for _ in range(5)]
        retier(stage, "free", max_queue_requests=2)
        with pytest.raises(QueueFull, match="5 requests of 2 waiting"):
            stage.arrive("free")
        stage.finish("first")
        assert order(stage) == [one.id for one in waiting]
        stage.arrive("free")

    def test_expires_when_it_was_to_expire_when_it_came(self) -> None:
        stage = full()
        one = stage.arrive("free", start_by=3.0)
        retier(stage, "free", start_within_s=60.0)
        stage.poll(3.0)
        assert stage.outcome(one) == (Outcome.EXPIRED, "start_by")

    def test_waits_last_once_it_is_late_and_is_dropped_where_the_tier_now_says_so(self) -> None:
        stage = full()
        late = stage.arrive("paid")
        stage.poll(2.0)
        assert stage.batcher.queues["paid"].is_last(late)
        retier(stage, late="drop")
        stage.poll(2.0)
        assert stage.outcome(late) == (Outcome.EXPIRED, "late")

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ({"targets": Targets()}, {"targets": Targets(ttft_s=1.0)}),
            ({"order": "fcfs"}, {"order": "edf"}),
            ({"targets": Targets(ttft_s=1.0)}, {"order": "shortest"}),
        ],
    )
    def test_does_not_hide_who_is_late_behind_it(
        self, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        """With others before it that were promised more, or nothing."""
        tier = replace(Tier("paid", 1, Targets(ttft_s=9.0)), **before)
        stage = full(tiers=[tier])
        stage.arrive(name="old")
        retier(stage, **({"targets": Targets(ttft_s=1.0)} | after))
        stage.now = 0.5
        new = stage.arrive(name="new")
        assert new.due == 1.5
        stage.poll(1.5)
        assert not stage.batcher.queues["paid"].is_last(new)
        stage.poll(1.51)
        assert stage.batcher.queues["paid"].is_last(new)

    def test_goes_back_to_where_the_order_in_force_has_it_when_it_lost_its_seat(self) -> None:
        stage = Stage.build(tiers=[Tier("paid", 1, Targets(e2e_s=600.0))], size=1)
        ran = stage.arrive(name="ran")
        stage.poll(0.0)
        retier(stage, order="fcfs")
        stage.now = 1.0
        stage.arrive(name="later")
        stage.report(returned=["ran"])
        assert (ran.rank, ran.due) == (0.0, 600.0)
        assert order(stage) == ["ran", "later"]


class TestTurns:
    def test_a_share_is_earned_from_then_on_and_what_was_owed_stays_owed(self) -> None:
        tiers = [Tier("paid", 2), Tier("free", 1, min_share=0.5)]
        stage = full(tiers=tiers)
        stage.arrive("free")
        stage.arrive("paid")
        stage.finish("first")
        stage.poll()
        assert stage.batcher.scheduler.owed()["free"] == 10.0
        retier(stage, "free", min_share=0.1)
        assert stage.batcher.scheduler.owed()["free"] == 10.0
        stage.arrive("paid")
        stage.finish(*stage.ids())
        stage.poll()
        # Of 20 tokens more that were booked, and of 10 fewer that were used before.
        assert stage.batcher.scheduler.owed()["free"] == 10.0 + 0.1 * 20 - 0.1 * 10
        retier(stage, "free", min_share=0.0)
        assert stage.batcher.scheduler.owed()["free"] == 0.0

    def test_patience_counts_from_when_the_tier_began_to_wait(self) -> None:
        stage = full()
        stage.arrive("offline", name="patient")
        stage.poll(0.0)
        stage.now = 4.0
        stage.arrive("paid")
        retier(stage, "offline", max_starvation_s=5.0)
        stage.finish("first")
        stage.poll(5.0)
        assert stage.ids() == ["patient"]

    def test_seats_are_capped_and_not_taken_away(self) -> None:
        stage = Stage.build(size=4)
        for _ in range(3):
            stage.arrive("free")
        stage.poll(0.0)
        retier(stage, "free", max_seats=2)
        waiting = stage.arrive("free")
        stage.poll(0.1)
        assert stage.ids() == ["r0", "r1", "r2"]
        stage.finish("r0")
        stage.poll(0.2)
        assert stage.ids() == ["r1", "r2"]
        retier(stage, "free", max_seats=None)
        stage.poll(0.3)
        assert stage.ids() == ["r1", "r2", waiting.id]

    def test_a_hold_is_bounded_by_the_wait_in_force(self) -> None:
        stage = Stage.build(wait_s=0.05)
        stage.arrive("paid")
        assert stage.poll(0.0).wake_at == 0.05
        retier(stage, wait_timeout_s=0.02)
        assert stage.poll(0.0).wake_at == 0.02
        stage.batcher.hold_by("join_gain")
        stage.poll(0.0)
        assert stage.ids() == ["r0"]  # nobody is known to come

    def test_a_preemption_keeps_the_share_in_force(self) -> None:
        stage = Stage.build(size=4, model=model(a=0.02))
        for _ in range(4):
            stage.arrive("offline", new=1000)
        stage.poll(0.0)
        retier(stage, "offline", min_share=0.75)
        for _ in range(3):
            stage.arrive("paid")
        stage.poll(0.95)
        assert len(stage.released["e"]) == 1

    def test_a_pace_is_kept_by_the_target_in_force(self) -> None:
        """A bucket that was emptied is as empty as it was, in tokens of the new target."""
        stage = Stage.build(size=64, model=model(a=0.04, d=0.001))
        stage.arrive("paid", new=1000)
        stage.poll(0.0)
        stage.report(tokens=[("r0", 0, [1])], sample=StepSample(2.16, 1, 0, 0, 10, 100))
        retier(stage, targets=Targets(ttft_s=100.0, itl_s=1.0))
        stage.arrive("free", prompt=100)
        plan = stage.poll(0.0)
        # 24 tokens of 0.9 s lack; each step of 40 ms gains 0.86 s.
        assert plan.wake_at == pytest.approx(math.ceil(21.6 / 0.86) * 0.04)
        retier(stage, targets=Targets(ttft_s=100.0))
        stage.poll(0.0)
        assert stage.ids() == ["r0", "r1"]

    def test_who_is_not_sheddable_any_more_is_not_shed(self) -> None:
        stage = Stage.build(tiers=[PAID, replace(FREE, sheddable=True)])
        stage.batcher.admission.press({"paid": 1.0})
        with pytest.raises(HeadwayError):
            stage.arrive("free")
        retier(stage, "free", sheddable=False)
        stage.arrive("free")


class TestWindows:
    def test_a_changed_target_starts_again_and_the_others_go_on(self) -> None:
        observer = Observer([PAID, FREE], ["e"], started=0.0)
        for tier in ("paid", "free"):
            for metric in ("ttft", "itl", "e2e"):
                measured = observer.tiers[tier].metrics[metric]
                measured.add(0.5, 1.0, epoch=0, target=0.1)
        changed = replace(PAID, targets=replace(PAID.targets, ttft_s=0.3, attainment=0.5))
        observer.retier([changed, FREE])
        counts = {
            (tier, metric): (measured.values.since(0.0).samples, measured.misses.total(0.0))
            for tier, record in observer.tiers.items()
            for metric, measured in record.metrics.items()
        }
        assert counts.pop(("paid", "ttft")) == (0, 0.0)
        assert set(counts.values()) == {(1, 1.0)}
        assert observer.tiers["paid"].tier == changed
        assert observer.tiers["paid"].targets == {"ttft": 0.3, "itl": 0.1}


TARGETS = st.sampled_from(
    [Targets(), Targets(ttft_s=1.0, itl_s=0.1), Targets(e2e_s=5.0), Targets(ttft_s=0.2, itl_s=0.03)]
)


@st.composite
def a_tier(draw: st.DrawFn, name: str, priority: int) -> Tier:
    orders: list[Order] = ["edf", "fcfs", "shortest"]
    lates: list[Late] = ["last", "drop"]
    return Tier(
        name,
        priority,
        draw(TARGETS),
        min_share=draw(st.sampled_from([0.0, 0.3])),
        max_starvation_s=draw(st.sampled_from([0.5, 30.0])),
        order=draw(st.sampled_from(orders)),
        late=draw(st.sampled_from(lates)),
        max_queue_requests=draw(st.sampled_from([3, 1000])),
        max_seats=draw(st.sampled_from([None, 1, 2])),
        wait_timeout_s=draw(st.sampled_from([None, 0.0, 0.3])),
    )


TIERS = st.tuples(a_tier("paid", 2), a_tier("free", 1), a_tier("offline", 0))
PLAY = st.lists(
    st.tuples(
        st.sampled_from(["paid", "free", "offline"]),
        st.integers(1, 50),
        st.sampled_from([0.0, 0.05, 0.4]),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(before=TIERS, after=TIERS, play=PLAY)
def test_an_idle_core_with_other_tiers_is_one_that_was_built_with_them(
    before: tuple[Tier, ...], after: tuple[Tier, ...], play: list[tuple[str, int, float]]
) -> None:
    changed, built = (
        Stage.build(tiers=tiers, size=3, wait_s=0.1, model=KNOWN) for tiers in (before, after)
    )
    changed.batcher.retier(after)
    for stage in (changed, built):
        for tier, tokens, later in play:
            stage.poll(stage.now + later)
            try:
                stage.arrive(tier, prompt=tokens, new=tokens)
            except HeadwayError:
                continue
            stage.poll()
            stage.report(
                tokens=[
                    (name, len(stage.batcher.book.requests[name].tokens), [1])
                    for name in stage.ids()
                    if name in stage.batcher.book.requests
                ],
                sample=StepSample(0.05, 3, 2, 100, tokens, 0),
            )
            for name in stage.ids()[:1]:
                stage.finish(name)
    assert changed.dispatches == built.dispatches
    assert [(e.request.id, *e[1:]) for e in changed.ended] == [
        (e.request.id, *e[1:]) for e in built.ended
    ]
    assert changed.ids() == built.ids()
    assert changed.batcher.scheduler.owed() == built.batcher.scheduler.owed()
