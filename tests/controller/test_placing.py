from __future__ import annotations

import pytest

from controller.tiers import Targets, Tier
from executor.contract import StepSample
from policies.contract import StepEstimate
from tests.controller.stage import OFFLINE, Stage, capacity, model

# A step of 10 ms and 5 ms for each row, and one of 30 ms whatever it holds.
FAST, SLOW = model(a=0.010, c=0.005), model(a=0.030)
PLAIN = (Tier("paid", 1),)


def pair(fast: StepEstimate = FAST, slow: StepEstimate = SLOW, *, size: int = 16) -> Stage:
    models = {"fast": fast, "slow": slow}
    return Stage.build(executors=("slow", "fast"), models=models, size=size, tiers=PLAIN)


def test_whoever_is_next_goes_where_it_will_be_done_first() -> None:
    stage = pair()
    for _ in range(6):
        stage.arrive()
    stage.poll(0.0)
    # A fourth row would make steps of the fast one as long as those of the other, which has less.
    assert (stage.ids("fast"), stage.ids("slow")) == (["r0", "r1", "r2"], ["r3", "r4", "r5"])


def test_where_all_seats_are_wanted_all_are_taken() -> None:
    stage = pair(size=4)
    for _ in range(12):
        stage.arrive()
    stage.poll(0.0)
    assert (len(stage.ids("fast")), len(stage.ids("slow"))) == (4, 4)


def test_prompts_that_still_have_to_be_computed_are_work_too() -> None:
    stage = pair(model(a=0.010, d=0.001), model(a=0.030, d=0.001))
    stage.arrive(prompt=500, new=10)
    stage.arrive(prompt=10, new=10)
    stage.poll(0.0)
    # Half a second of prompt is more than ten steps of 20 ms that the fast one would save.
    assert (stage.ids("fast"), stage.ids("slow")) == (["r0"], ["r1"])
    stage.report(
        executor="fast", tokens=[("r0", 0, [1])], sample=StepSample(0.5, 1, 0, 0, 500, 250_000)
    )
    stage.arrive(prompt=10, new=10)
    stage.poll(0.6)
    assert stage.ids("fast") == ["r0", "r2"]


def test_like_executors_share_equally() -> None:
    stage = pair(SLOW, SLOW)
    for _ in range(8):
        stage.arrive()
    stage.poll(0.0)
    assert (len(stage.ids("fast")), len(stage.ids("slow"))) == (4, 4)


def test_and_so_do_those_of_which_models_say_that_they_are_nearly_alike() -> None:
    stage = pair(model(a=0.0290), SLOW)
    for _ in range(8):
        stage.arrive()
    stage.poll(0.0)
    assert (len(stage.ids("fast")), len(stage.ids("slow"))) == (4, 4)


def test_of_what_nothing_is_known_something_is_learnt() -> None:
    stage = Stage.build(executors=("known", "new"), models={"known": FAST}, tiers=PLAIN)
    for _ in range(2):
        stage.arrive()
    stage.poll(0.0)
    assert (stage.ids("known"), stage.ids("new")) == (["r0"], ["r1"])


def test_what_is_too_long_for_one_waits_for_the_other_and_those_behind_it_do_not() -> None:
    stage = pair(size=1)
    stage.start("slow", capacity(max_context_tokens=50))
    stage.arrive(prompt=20, new=1000)
    stage.poll(0.0)
    assert stage.ids("fast") == ["r0"]
    stage.arrive(prompt=20, new=1000)
    stage.arrive(prompt=20, new=20)
    stage.poll(0.1)
    assert stage.ids("slow") == ["r2"]
    stage.finish("r0", executor="fast")
    stage.poll(0.2)
    assert stage.ids("fast") == ["r1"]


def test_a_request_is_due_by_what_it_takes_where_it_takes_least() -> None:
    tiers = (Tier("paid", 1, Targets(e2e_s=1.0)),)
    models = {"slow": SLOW, "fast": FAST}
    stage = Stage.build(executors=("slow", "fast"), models=models, tiers=tiers)
    # A first token and ten more: eleven steps of 15 ms on the fast one.
    assert stage.arrive(new=10).due == pytest.approx(1.0 - 11 * 0.015)


def test_what_waits_is_thought_to_be_served_by_all_together() -> None:
    stage = pair(model(a=0.010), model(a=0.030), size=1)
    # A token takes 10 ms on the one and 30 ms on the other: 7.5 ms of both.
    assert stage.batcher.forecast.drain_s([(0, 400)]) == pytest.approx(3.0)
    alike = pair(SLOW, SLOW, size=1)
    assert alike.batcher.forecast.drain_s([(0, 400)]) == pytest.approx(6.0)
    assert pair(model(d=0.001), model(d=0.003)).batcher.forecast.prompts_s(400) == (
        pytest.approx(0.3)
    )


class TestPromises:
    def stage(self) -> Stage:
        """A slow executor, whose steps are twice what the paid tier is promised, and a fast one
        that is taken by a paid request."""
        tiers = (Tier("paid", 2, Targets(ttft_s=1.0, itl_s=0.1)), OFFLINE)
        models = {"slow": model(a=0.2), "fast": model(a=0.02)}
        stage = Stage.build(executors=("slow", "fast"), models=models, size=1, tiers=tiers)
        stage.arrive("paid", new=100)
        stage.poll(0.0)
        assert stage.ids("fast") == ["r0"]
        return stage

    def test_who_is_promised_tokens_sooner_than_one_can_waits_for_another(self) -> None:
        stage = self.stage()
        paid, offline = stage.arrive("paid"), stage.arrive("offline")
        plan = stage.poll(0.1)
        assert stage.ids("slow") == [offline.id]
        stage.finish("r0", executor="fast")
        stage.poll(0.2)
        assert stage.ids("fast") == [paid.id]
        assert plan.wake_at == pytest.approx(paid.due)

    def test_who_has_to_begin_begins_where_there_is_room(self) -> None:
        stage = self.stage()
        paid = stage.arrive("paid")
        assert stage.poll(0.1).wake_at == pytest.approx(paid.due)
        stage.poll(paid.due)
        assert stage.ids("slow") == [paid.id]

    def test_where_no_other_could_keep_it_nobody_waits(self) -> None:
        stage = self.stage()
        stage.lose("fast")
        stage.poll(0.1)
        assert stage.ids("slow") == ["r0"]


class TestPreemption:
    def full(self) -> Stage:
        """Two executors that are full of offline work."""
        tiers = (Tier("paid", 2, Targets(ttft_s=1.0)), OFFLINE)
        stage = Stage.build(executors=("a", "b"), model=model(), size=2, tiers=tiers)
        for _ in range(4):
            stage.arrive("offline", new=1000)
        stage.poll(0.0)
        for name in ("a", "b"):
            stage.report(executor=name, tokens=[(each, 0, [7]) for each in stage.ids(name)])
        return stage

    def test_one_seat_is_given_up_for_one_request_and_not_one_on_each_executor(self) -> None:
        stage = self.full()
        paid = stage.arrive("paid")
        stage.poll(0.1)
        assert [len(stage.released[name]) for name in ("a", "b")] == [1, 0]
        stage.poll(0.11)
        assert [len(stage.released[name]) for name in ("a", "b")] == [1, 0]
        stage.acknowledge("a")
        stage.poll(0.12)
        assert paid.id in stage.ids("a")

    def test_more_than_one_executor_can_give_have_seats_of_both(self) -> None:
        stage = self.full()
        for _ in range(3):
            stage.arrive("paid")
        stage.poll(0.1)
        assert [len(stage.released[name]) for name in ("a", "b")] == [2, 1]

    def test_a_seat_that_becomes_free_in_time_on_another_is_waited_for(self) -> None:
        tiers = (Tier("paid", 2, Targets(ttft_s=1.0)), OFFLINE)
        stage = Stage.build(executors=("a", "b"), model=model(), size=1, tiers=tiers)
        stage.arrive("offline", new=1000)
        stage.arrive("offline", new=10)
        stage.poll(0.0)
        assert stage.ids("b") == ["r1"]
        stage.arrive("paid")
        # As on a single executor: 10 tokens of 20 ms are 0.2 s, and it has to begin by 0.98 s.
        assert stage.poll(0.0).wake_at == pytest.approx(0.54)
        assert [len(stage.released[name]) for name in ("a", "b")] == [0, 0]
