from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import ContextLengthExceeded, Infeasible, QueueFull, Shed
from controller.request import Outcome
from controller.tiers import Order, Targets, Tier
from policies.contract import Limits
from tests.controller.stage import FREE, OFFLINE, PAID, Stage, capacity, model

SMALL = (
    Tier("paid", 2, Targets(ttft_s=1.0), max_queue_requests=2),
    Tier("free", 1, max_queue_requests=2),
    Tier("offline", 0, max_queue_requests=2),
)


def busy(**options: object) -> Stage:
    """One seat, taken for long by the highest tier: everybody waits."""
    stage = Stage.build(size=1, **options)  # type: ignore[arg-type]  # Stage.build's, by name
    stage.arrive("paid", new=5000)
    stage.poll(0.0)
    stage.report(tokens=[("r0", 0, [1])])
    return stage


class TestMakingRoom:
    def test_when_full_the_newest_of_the_lowest_tier_makes_room(self) -> None:
        stage = busy(tiers=SMALL)
        lower = [stage.arrive(tier) for tier in ("free", "free", "offline", "offline")]
        paid = [stage.arrive("paid") for _ in range(4)]
        stage.poll()
        ends = [(r.outcome, r.reason) for r in lower]
        gone, stays = (Outcome.REJECTED, "evicted"), (None, "")
        assert ends == [stays, stays, gone, gone]
        stage.arrive("paid")
        stage.poll()
        assert [r.reason for r in lower] == ["", "evicted", "evicted", "evicted"]
        assert all(request.outcome is None for request in paid)

    def test_equal_and_higher_tiers_make_no_room(self) -> None:
        stage = busy(tiers=SMALL)
        for tier in ("paid", "paid", "free", "free", "offline", "offline"):
            stage.arrive(tier)
        with pytest.raises(QueueFull, match="tier 'offline' is full"):
            stage.arrive("offline")
        stage.poll()
        assert stage.outcome_counts() == {}

    def test_places_that_a_higher_tier_took_are_not_there_for_others(self) -> None:
        stage = busy(tiers=SMALL)
        for tier in ("paid", "paid", "free", "free", "offline", "offline"):
            stage.arrive(tier)
        stage.arrive("paid")
        with pytest.raises(QueueFull):
            stage.arrive("offline")
        # The free tier may do the same to the one below.
        stage.arrive("free")
        held = {name: queue.waiting for name, queue in stage.batcher.queues.items()}
        assert held == {"paid": 3, "free": 3, "offline": 0}

    def test_nobody_goes_where_all_of_them_together_would_not_do(self) -> None:
        tiers = (
            Tier("paid", 2, max_queue_tokens=100),
            Tier("free", 1, max_queue_tokens=100),
        )
        stage = Stage.build(size=1, tiers=tiers)
        stage.arrive("paid", prompt=10, new=10)
        stage.poll()
        stage.arrive("paid", prompt=50, new=50)
        free = stage.arrive("free", prompt=10, new=10)
        with pytest.raises(QueueFull, match="100 tokens of 100 waiting"):
            stage.arrive("paid", prompt=40, new=40)
        stage.poll()
        assert free.outcome is None

    def test_one_that_has_begun_is_not_sent_away(self) -> None:
        stage = Stage.build(size=1, tiers=SMALL, model=model())
        begun = stage.arrive("offline", new=1000)
        stage.poll(0.0)
        stage.report(tokens=[(begun.id, 0, [1])])
        stage.arrive("paid", new=1000)
        stage.poll(0.1)
        stage.acknowledge()
        stage.poll()
        for _ in range(2):
            stage.arrive("paid")
        with pytest.raises(QueueFull):
            stage.arrive("paid")
        assert begun.outcome is None

    @given(st.lists(st.sampled_from(["paid", "free", "offline"]), max_size=40))
    def test_all_queues_together_never_hold_more_than_all_their_bounds(
        self, come: list[str]
    ) -> None:
        stage = busy(tiers=SMALL)
        for tier in come:
            with contextlib.suppress(QueueFull):
                stage.arrive(tier)
            assert stage.batcher.queued() <= 6
            stage.poll()
        batcher = stage.batcher
        assert batcher.book.offered == batcher.book.outcomes.total() + batcher.queued() + 1


class TestRetryAfter:
    def test_a_full_queue_tells_how_long_it_takes_to_drain(self) -> None:
        stage = busy(tiers=SMALL, model=model(a=0.1, d=0.01))
        for _ in range(2):
            stage.arrive("paid", prompt=100, new=50)
        with pytest.raises(QueueFull) as full:
            stage.arrive("paid")
        # Two prompts of 100 tokens at 10 ms, 100 new tokens at 100 ms each.
        assert full.value.retry_after_s == pytest.approx(12.0)

    def test_while_nothing_is_known_it_is_a_second(self) -> None:
        stage = busy(tiers=SMALL)
        for _ in range(2):
            stage.arrive("paid")
        with pytest.raises(QueueFull) as full:
            stage.arrive("paid")
        assert full.value.retry_after_s == 1.0


class TestFeasibility:
    def test_a_deadline_that_the_work_ahead_does_not_leave_is_refused_at_the_door(self) -> None:
        stage = busy(model=model(a=0.1))
        for _ in range(4):
            stage.arrive("paid", new=50)
        # 200 tokens of 100 ms wait in front.
        with pytest.raises(Infeasible, match="of work waits in tier 'paid'") as refused:
            stage.arrive("paid", start_by=5.0)
        assert refused.value.retry_after_s == pytest.approx(15.0)
        stage.arrive("paid", start_by=17.0)

    def test_work_of_lower_tiers_is_not_ahead(self) -> None:
        stage = busy(model=model(a=0.1))
        for _ in range(4):
            stage.arrive("offline", new=50)
        stage.arrive("paid", start_by=2.0)
        assert len(stage.batcher.queues["paid"]) == 1

    def test_where_nobody_waits_nobody_is_refused(self) -> None:
        stage = Stage.build(model=model(a=100.0))
        stage.arrive("paid", start_by=1.0)
        assert len(stage.batcher.queues["paid"]) == 1

    def test_a_tier_that_drops_the_late_refuses_what_would_be_late(self) -> None:
        tiers = (PAID, Tier("free", 1, Targets(ttft_s=5.0), late="drop"))
        stage = busy(model=model(a=0.1), tiers=tiers)
        for _ in range(2):
            stage.arrive("free", new=50)
        with pytest.raises(Infeasible):
            stage.arrive("free")

    def test_one_that_can_never_fit_is_told_the_limit(self) -> None:
        stage = Stage.build(ready=capacity(splits_prefill=False, max_context_tokens=100_000))
        with pytest.raises(ContextLengthExceeded, match="9000 tokens, but at most 8192 fit into"):
            stage.arrive("offline", prompt=9000)


class TestShedding:
    SHEDDABLE = (PAID, Tier("free", 1, sheddable=True), OFFLINE)

    def test_as_many_are_turned_away_as_others_miss_too_much(self) -> None:
        stage = Stage.build(tiers=self.SHEDDABLE)
        stage.batcher.admission.press({"paid": 0.3})
        shed = 0
        for _ in range(1000):
            try:
                stage.batcher.give_back(
                    stage.batcher.reserve("free", requests=1, tokens=1, size=1, now=0.0)
                )
            except Shed:
                shed += 1
        assert 250 < shed < 350
        assert stage.batcher.book.outcomes == {Outcome.REJECTED: shed}

    @pytest.mark.parametrize("tier", ["paid", "offline"])
    def test_tiers_that_are_not_sheddable_are_never_shed(self, tier: str) -> None:
        stage = Stage.build(tiers=self.SHEDDABLE)
        stage.batcher.admission.press({"paid": 1.0})
        stage.arrive(tier)
        assert len(stage.batcher.queues[tier]) == 1

    def test_what_lower_tiers_miss_sheds_nobody(self) -> None:
        stage = Stage.build(tiers=self.SHEDDABLE)
        stage.batcher.admission.press({"offline": 1.0, "free": 1.0})
        assert stage.batcher.admission.shed == {}
        stage.arrive("free")

    def test_it_is_over_when_the_trouble_is(self) -> None:
        stage = Stage.build(tiers=self.SHEDDABLE)
        stage.batcher.admission.press({"paid": 1.0})
        with pytest.raises(Shed):
            stage.arrive("free")
        stage.batcher.admission.press({})
        stage.arrive("free")


class TestLateness:
    DROPS = (PAID, Tier("free", 1, Targets(ttft_s=5.0), late="drop"))

    def test_what_can_no_longer_begin_in_time_is_dropped_where_it_waits(self) -> None:
        stage = busy(tiers=self.DROPS, model=model(a=0.5))
        free = stage.arrive("free")
        stage.poll(4.5)
        assert free.outcome is None
        # Its first token takes half a second: 4.5 s is the last call.
        stage.poll(4.51)
        assert stage.outcome(free) == (Outcome.EXPIRED, "late")

    @pytest.mark.parametrize("order", ["edf", "fcfs"])
    def test_the_plan_says_when_somebody_is_to_be_dropped(self, order: Order) -> None:
        tiers = (PAID, Tier("free", 1, Targets(ttft_s=5.0), late="drop", order=order))
        stage = busy(tiers=tiers)
        stage.arrive("free")
        plan = stage.poll()
        assert plan.wake_at == pytest.approx(5.001)
        assert stage.poll(plan.wake_at).ended[0].reason == "late"

    def test_elsewhere_it_goes_last_in_its_tier_oldest_first(self) -> None:
        stage = busy(tiers=(PAID, FREE))
        late = [stage.arrive("free") for _ in range(2)]
        stage.poll(6.0)
        timely = stage.arrive("free")
        stage.poll(6.0)
        assert stage.batcher.queues["free"].firsts(3) == [timely, *late]
        assert stage.batcher.queues["free"].late(6.0) == 2

    def test_a_target_that_cannot_be_met_at_all_turns_nobody_away(self) -> None:
        """Half a second for the first token, and a step takes longer than that."""
        tiers = (Tier("free", 1, Targets(ttft_s=0.5), late="drop"),)
        stage = Stage.build(size=1, tiers=tiers, model=model(a=0.6))
        requests = [stage.arrive("free") for _ in range(3)]
        for turn in range(3):
            stage.poll(10.0 * turn)
            stage.finish(*stage.ids())
        stage.poll()
        assert [stage.outcome(r)[0] for r in requests] == [Outcome.FINISHED] * 3

    def test_one_that_cannot_meet_it_lets_those_go_first_who_can(self) -> None:
        stage = busy(tiers=(PAID, FREE), model=model(d=0.01))
        hopeless = stage.arrive("paid", prompt=200)
        able = stage.arrive("paid", prompt=20)
        stage.poll()
        assert stage.batcher.queues["paid"].firsts(2) == [able, hopeless]

    def test_the_longer_prompt_has_to_begin_earlier(self) -> None:
        stage = busy(tiers=(PAID,), model=model(d=0.001))
        short, long = stage.arrive("paid", prompt=10), stage.arrive("paid", prompt=500)
        assert stage.batcher.queues["paid"].firsts(2) == [long, short]
        assert long.due == pytest.approx(1.0 - 0.02 - 0.5)

    def test_first_come_first_served_where_the_tier_says_so(self) -> None:
        tiers = (Tier("paid", 1, Targets(ttft_s=1.0), order="fcfs"),)
        stage = busy(tiers=tiers, model=model(d=0.001))
        short, long = stage.arrive("paid", prompt=10), stage.arrive("paid", prompt=500)
        assert stage.batcher.queues["paid"].firsts(2) == [short, long]

    def test_the_shortest_first_but_no_longer_than_its_own_length(self) -> None:
        stage = busy(tiers=(Tier("paid", 1, order="shortest"),), model=model(a=0.1))
        long = stage.arrive("paid", new=50)  # 5.1 s of work
        stage.now = 5.0
        short = stage.arrive("paid", new=1)
        assert stage.batcher.queues["paid"].firsts(2) == [long, short]
        stage.now = 0.0
        early = stage.arrive("paid", new=2)
        assert stage.batcher.queues["paid"].firsts(1) == [early]

    def test_what_a_prompt_takes_follows_the_limit_of_a_step(self) -> None:
        stage = busy(tiers=(PAID,), model=model(a=0.01), tokens=1001)
        # One step, beside the one that runs.
        assert stage.arrive("paid", prompt=1000).due == pytest.approx(1.0 - 0.01)
        stage.batcher.set_limits("default", Limits(1, 101, 0.0), 1)
        # Now ten steps of a hundred.
        assert stage.arrive("paid", prompt=1000).due == pytest.approx(1.0 - 0.1)
