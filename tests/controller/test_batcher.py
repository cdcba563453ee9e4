from __future__ import annotations

import pytest

from controller.batcher import Streamed
from controller.errors import ContextLengthExceeded, Draining, NotReady, QueueFull
from controller.plan import Why
from controller.request import Outcome, Request
from controller.tiers import Tier
from executor.contract import Key, Logprobs, Report, StepSample, TokenLogprob, Tokens
from policies.contract import Limits, TierLimits
from tests.controller.stage import PAID, Stage, capacity


def arrivals(stage: Stage, count: int, tier: str = "paid") -> list[Request]:
    return [stage.arrive(tier) for _ in range(count)]


class TestHold:
    def test_wait_counts_from_the_arrival_of_the_oldest_not_from_the_poll(self) -> None:
        stage = Stage.build(wait_s=0.010)
        stage.now = 1.0
        stage.arrive()
        # The loop looked late; the hold still ends 10 ms after the arrival.
        assert stage.poll(1.004).wake_at == pytest.approx(1.010)
        stage.arrive()
        assert stage.poll(1.008).wake_at == pytest.approx(1.010)
        stage.poll(1.010)
        assert stage.ids() == ["r0", "r1"]
        assert stage.dispatches[-1].why is Why.TIMEOUT
        assert stage.dispatches[-1].held_s == pytest.approx(0.010)

    def test_wait_counts_from_the_instant_the_executor_became_free_if_that_is_later(self) -> None:
        stage = Stage.build(wait_s=0.010, size=1, ready=capacity(runs_to_completion=True))
        stage.arrive()
        stage.poll(0.0)
        stage.batcher.set_limits("default", Limits(4, 8192, 0.010), 1)
        stage.now = 0.5
        stage.arrive()
        assert stage.poll().work["e"].submit == []
        stage.now = 2.0
        stage.finish("r0")
        assert stage.poll().wake_at == pytest.approx(2.010)
        stage.poll(2.010)
        assert stage.ids() == ["r1"]

    def test_a_full_batch_goes_at_once(self) -> None:
        stage = Stage.build(wait_s=10.0, size=3)
        arrivals(stage, 3)
        stage.poll(0.0)
        assert stage.dispatches[-1].why is Why.FULL
        assert stage.dispatches[-1].size == 3

    def test_a_running_continuous_batch_is_joined_without_a_hold(self) -> None:
        stage = Stage.build(wait_s=0.010)
        stage.arrive()
        stage.poll(0.010)
        stage.now = 0.5
        late = stage.arrive()
        stage.poll()
        assert stage.dispatches[-1].why is Why.JOIN
        assert late.hold_s == 0.0

    def test_a_mixed_batch_holds_for_the_smallest_wait_of_its_members(self) -> None:
        stage = Stage.build(
            tiers=(Tier("paid", 1, wait_timeout_s=0.002), Tier("free", 0)), wait_s=0.050
        )
        stage.arrive("free")
        assert stage.poll(0.0).wake_at == pytest.approx(0.050)
        stage.now = 0.010
        stage.arrive("paid")
        plan = stage.poll()
        # Counted from the oldest member, 2 ms are over already.
        assert [submit.request_id for submit in plan.work["e"].submit] == ["r1", "r0"]

    def test_a_tier_wait_set_by_the_controller_wins_over_the_configured_one(self) -> None:
        stage = Stage.build(tiers=(Tier("paid", 1, wait_timeout_s=0.002),), wait_s=0.050)
        limits = Limits(4, 8192, 0.050, {"paid": TierLimits(wait_timeout_s=0.030)})
        stage.batcher.set_limits("default", limits, 1)
        stage.arrive()
        assert stage.poll(0.0).wake_at == pytest.approx(0.030)

    def test_without_a_wait_nothing_asks_to_be_woken(self) -> None:
        stage = Stage.build(wait_s=0.0)
        stage.arrive()
        assert stage.poll(0.0).wake_at is None
        assert stage.poll(1.0).wake_at is None

    def test_draining_ends_a_hold(self) -> None:
        stage = Stage.build(wait_s=10.0)
        stage.arrive()
        stage.poll(0.0)
        stage.batcher.drain()
        stage.poll(0.1)
        assert stage.dispatches[-1].why is Why.DRAIN
        with pytest.raises(Draining):
            stage.arrive()


class TestLimits:
    def test_a_lowered_size_kills_nobody_and_admits_nobody_until_fewer_run(self) -> None:
        stage = Stage.build(size=32)
        running = arrivals(stage, 32)
        stage.poll(0.0)
        stage.batcher.set_limits("default", Limits(8, 8192, 0.0), 1)
        waiting = stage.arrive()
        for request in running[:24]:
            stage.finish(request.id)
            assert [s.request_id for s in stage.poll().work["e"].submit] == []
        assert stage.batcher.running() == 8
        stage.finish(running[24].id)
        assert [s.request_id for s in stage.poll().work["e"].submit] == [waiting.id]
        assert all(r.outcome in (None, Outcome.FINISHED) for r in running)

    def test_a_size_above_the_capacity_admits_the_capacity(self) -> None:
        stage = Stage.build(size=100, ready=capacity(max_seqs=5))
        arrivals(stage, 9)
        stage.poll(0.0)
        assert len(stage.ids()) == 5

    def test_new_limits_reach_the_executor_with_their_epoch_and_hold_from_the_next_batch(
        self,
    ) -> None:
        stage = Stage.build(size=2)
        arrivals(stage, 5)
        stage.poll(0.0)
        assert stage.ids() == ["r0", "r1"]
        stage.batcher.set_limits("default", Limits(3, 512, 0.0), 7)
        work = stage.poll().work["e"]
        assert (work.epoch, work.max_batch_tokens) == (7, 512)
        assert [submit.request_id for submit in work.submit] == ["r2"]

    def test_step_tokens_are_never_below_the_size(self) -> None:
        stage = Stage.build()
        stage.batcher.set_limits("default", Limits(32, 8, 0.0), 1)
        assert stage.poll().work["e"].max_batch_tokens == 32

    def test_a_tier_takes_no_more_seats_than_its_cap(self) -> None:
        stage = Stage.build(tiers=(PAID, Tier("free", 1, max_seats=2)), size=4)
        arrivals(stage, 4, "free")
        stage.poll(0.0)
        assert len(stage.ids()) == 2
        stage.arrive("paid")
        stage.poll()
        assert len(stage.ids()) == 3

    def test_limits_belong_to_a_group(self) -> None:
        stage = Stage.build(executors=("a",), size=4)
        stage.batcher.set_limits("other", Limits(1, 8192, 0.0), 9)
        assert stage.batcher.executors["a"].epoch == 0
        assert stage.poll().work == {}


class TestMemory:
    def test_nobody_is_admitted_beyond_the_memory(self) -> None:
        stage = Stage.build(size=8, ready=capacity(kv_tokens=45))
        arrivals(stage, 4)  # 20 tokens each
        stage.poll(0.0)
        assert stage.ids() == ["r0", "r1"]

    def test_a_small_request_does_not_overtake_one_that_waits_for_memory(self) -> None:
        stage = Stage.build(size=8, ready=capacity(kv_tokens=100))
        stage.arrive(prompt=60, new=20)
        stage.arrive(prompt=60, new=20)
        stage.arrive(prompt=1, new=1)
        stage.poll(0.0)
        assert stage.ids() == ["r0"]
        stage.finish("r0")
        stage.poll()
        assert stage.ids() == ["r1", "r2"]

    def test_what_can_never_fit_is_refused_with_both_numbers(self) -> None:
        stage = Stage.build(ready=capacity(kv_tokens=100))
        with pytest.raises(ContextLengthExceeded, match=r"90 tokens .* 101 in all.* 100 fit"):
            stage.arrive(prompt=90, new=11)


class TestDeadlines:
    def test_what_could_not_begin_in_time_is_removed_where_it_waits(self) -> None:
        stage = Stage.build(size=1)
        stage.arrive()
        stage.poll(0.0)
        late = stage.arrive(start_by=2.0)
        assert stage.poll(1.0).wake_at == 2.0
        stage.poll(2.0)
        assert stage.outcome(late) == (Outcome.EXPIRED, "start_by")
        stage.finish("r0")
        stage.poll(3.0)
        assert stage.ids() == []

    def test_finish_by_ends_what_runs_and_asks_for_its_release(self) -> None:
        stage = Stage.build()
        request = stage.arrive(finish_by=3.0)
        stage.poll(0.0)
        assert stage.poll(3.0).work["e"].release == [Key(request.id, 1)]
        assert stage.outcome(request) == (Outcome.EXPIRED, "finish_by")

    def test_the_deadline_of_an_ended_request_wakes_nobody(self) -> None:
        stage = Stage.build()
        stage.arrive(finish_by=3.0)
        stage.poll(0.0)
        stage.finish("r0")
        assert stage.poll(1.0).wake_at is None


class TestCancel:
    def test_a_waiting_request_leaves_the_queue_at_once(self) -> None:
        stage = Stage.build(size=1)
        arrivals(stage, 2)
        stage.poll(0.0)
        assert stage.batcher.cancel("r1", 0.0, Outcome.CANCELLED, "disconnect")
        assert stage.batcher.queued() == 0
        assert not stage.batcher.cancel("r1", 0.0, Outcome.CANCELLED, "disconnect")

    def test_the_seat_of_a_cancelled_request_stays_taken_until_it_is_acknowledged(self) -> None:
        stage = Stage.build(size=1)
        first, second = arrivals(stage, 2)
        stage.poll(0.0)
        stage.batcher.cancel(first.id, 0.0, Outcome.CANCELLED, "disconnect")
        plan = stage.poll()
        assert plan.work["e"].release == [Key("r0", 1)]
        assert plan.work["e"].submit == []
        assert stage.outcome(first) == (Outcome.CANCELLED, "disconnect")
        # Tokens that race the release reach nobody.
        assert stage.report(tokens=[("r0", 0, [5])]) == []
        stage.report(released=[Key("r0", 1)])
        assert [submit.request_id for submit in stage.poll().work["e"].submit] == [second.id]

    def test_a_finish_that_races_the_release_frees_the_seat(self) -> None:
        stage = Stage.build(size=1)
        first, second = arrivals(stage, 2)
        stage.poll(0.0)
        stage.batcher.cancel(first.id, 0.0, Outcome.FINISHED, "stop")
        stage.report(finished=["r0"])
        stage.poll()
        assert stage.ids() == [second.id]
        assert stage.outcome(first) == (Outcome.FINISHED, "stop")


class TestReports:
    def test_tokens_are_streamed_once_and_in_order(self) -> None:
        stage = Stage.build()
        request = stage.arrive()
        stage.poll(0.0)
        assert stage.report(tokens=[("r0", 0, [5, 6])]) == [(request, [5, 6])]
        assert stage.report(tokens=[("r0", 1, [6, 7])]) == [(request, [7])]
        assert stage.report(tokens=[("r0", 0, [5])]) == []
        assert request.tokens == [5, 6, 7]

    def test_log_probabilities_go_with_their_tokens_and_neither_comes_twice(self) -> None:
        stage = Stage.build()
        request = stage.arrive()
        stage.poll(0.0)
        told = [TokenLogprob(-1.0), TokenLogprob(-2.0), TokenLogprob(-3.0)]

        def report(index: int, ids: list[int], logprobs: Logprobs | None) -> list[Streamed]:
            tokens = [Tokens("r0", 1, index, ids, logprobs=logprobs)]
            return stage.batcher.on_report("e", 1, Report(epoch=0, tokens=tokens), stage.now)

        first = Logprobs(told[:2], [TokenLogprob(-9.0)])
        assert report(0, [5, 6], first) == [(request, [5, 6], first)]
        # Of what overlaps only the rest is new, and no prompt comes with that.
        assert report(0, [5, 6, 7], Logprobs(told, first.prompt)) == [
            (request, [7], Logprobs(told[2:]))
        ]
        assert report(0, [5], Logprobs(told[:1], first.prompt)) == []
        assert report(3, [8], None) == [(request, [8], None)]

    def test_a_hole_in_the_tokens_fails_the_request(self) -> None:
        stage = Stage.build()
        request = stage.arrive()
        stage.poll(0.0)
        assert stage.report(tokens=[("r0", 2, [7])]) == []
        stage.poll()
        assert stage.outcome(request) == (Outcome.FAILED, "tokens_missing")

    def test_a_freed_seat_is_answered_even_with_nothing_to_do(self) -> None:
        stage = Stage.build()
        stage.arrive()
        stage.poll(0.0)
        stage.finish("r0")
        assert stage.poll().work["e"].submit == []
        assert stage.poll().work == {}


class TestLoss:
    def test_what_ran_on_a_lost_executor_continues_with_its_tokens_and_its_place(self) -> None:
        stage = Stage.build(size=2)
        first, second, third = arrivals(stage, 3)
        stage.poll(0.0)
        stage.report(tokens=[("r0", 0, [5, 6])])
        stage.lose()
        assert stage.poll(1.0).work == {}
        stage.start()
        # One after the other: whichever took the executor down does not take both.
        submits = stage.poll(2.0).work["e"].submit
        assert [(s.request_id, s.attempt) for s in submits] == [(first.id, 2)]
        stage.report(tokens=[("r0", 2, [7])])
        (other,) = stage.poll(2.0).work["e"].submit
        assert (other.request_id, other.attempt) == (second.id, 2)
        assert submits[0].tokens == [1] * 10 + [5, 6]
        assert submits[0].prompt_length == 10
        assert submits[0].max_new_tokens == 8
        assert third.attempt == 0

    def test_a_late_report_of_the_dead_incarnation_changes_nothing(self) -> None:
        stage = Stage.build()
        request = stage.arrive()
        stage.poll(0.0)
        stage.lose()
        stage.start()
        stage.poll(1.0)
        assert stage.report(tokens=[("r0", 0, [9])], incarnation=1) == []
        assert request.tokens == []

    def test_what_cannot_be_resumed_fails_once_it_has_begun(self) -> None:
        stage = Stage.build(ready=capacity(can_resume=False))
        begun, fresh = arrivals(stage, 2)
        stage.poll(0.0)
        stage.report(tokens=[("r0", 0, [5])])
        stage.lose()
        stage.poll()
        assert stage.outcome(begun) == (Outcome.FAILED, "executor_lost")
        assert fresh.outcome is None

    def test_a_request_that_kills_its_executor_three_times_fails(self) -> None:
        stage = Stage.build()
        request = stage.arrive()
        for _ in range(3):
            stage.poll()
            assert request.outcome is None
            stage.lose()
            stage.start()
        stage.poll()
        assert stage.outcome(request) == (Outcome.FAILED, "executor_failed")

    def test_while_the_executor_is_away_requests_wait(self) -> None:
        stage = Stage.build()
        stage.lose(back_at=5.0)
        request = stage.arrive()
        stage.poll(1.0)
        assert request.outcome is None
        stage.start()
        stage.poll(5.0)
        assert stage.ids() == [request.id]

    def test_a_return_too_late_for_the_tier_is_a_503_with_the_time(self) -> None:
        stage = Stage.build(tiers=(Tier("paid", 1, start_within_s=3.0),))
        stage.lose(back_at=5.0)
        with pytest.raises(NotReady, match="back in 5 s, tier 'paid' waits 3 s") as caught:
            stage.arrive()
        assert caught.value.retry_after_s == 5.0

    def test_an_executor_that_never_comes_back_fails_everybody(self) -> None:
        stage = Stage.build(size=1)
        requests = arrivals(stage, 2)
        stage.poll(0.0)
        stage.lose(back_at=None)
        stage.poll()
        assert [stage.outcome(r)[0] for r in requests] == [Outcome.FAILED] * 2

    def test_a_failed_batch_is_tried_again_in_halves(self) -> None:
        stage = Stage.build(size=8)
        arrivals(stage, 8)
        stage.poll(0.0)
        stage.report(returned=[f"r{i}" for i in range(8)])
        arrivals(stage, 1)
        assert [s.request_id for s in stage.poll().work["e"].submit] == ["r0", "r1", "r2", "r3"]
        stage.report(tokens=[(f"r{i}", 0, [1]) for i in range(3)])
        assert [s.request_id for s in stage.poll().work["e"].submit] == ["r4", "r5", "r6"]
        stage.report(tokens=[(f"r{i}", 0, [1]) for i in range(3, 7)])
        assert [s.request_id for s in stage.poll().work["e"].submit] == ["r7"]
        # Whoever was not there at the failure waits until all of them have moved.
        stage.report(finished=["r0"])
        assert stage.poll().work["e"].submit == []
        stage.report(tokens=[("r7", 0, [1])])
        assert [s.request_id for s in stage.poll().work["e"].submit] == ["r8"]

    def test_one_bad_input_fails_alone(self) -> None:
        stage = Stage.build(size=8)
        requests = arrivals(stage, 8)
        bad = requests[5]
        for _ in range(40):
            stage.poll()
            running = stage.ids()
            if bad.id in running:
                stage.report(returned=running)
            elif running:
                stage.report(tokens=[(name, 0, [1] * 10) for name in running], finished=running)
        ends = [stage.outcome(request) for request in requests]
        assert ends[5] == (Outcome.FAILED, "executor_failed")
        assert [end for end in ends if end == (Outcome.FINISHED, "length")] == ends[:5] + ends[6:]

    def test_who_only_had_no_place_in_memory_beside_others_is_not_to_blame(self) -> None:
        stage = Stage.build(size=2)
        arrivals(stage, 2)
        for held in (100, 200, 300, 400, 500):
            stage.poll()
            assert stage.ids()[-1] == "r1"
            alone = StepSample(0.02, 1, 1, 9, 0, 0)
            stage.report(returned=["r1"], why="out_of_memory", sample=alone)
            stage.poll()
            assert stage.ids() == ["r0"]
            # The other one grows beyond what failed, so it failed for something else.
            stage.report(sample=StepSample(0.02, 1, 1, held - 1, 0, 0))
        stage.poll()
        stage.report(tokens=[("r1", 0, [1] * 10)], finished=["r1"])
        stage.poll()
        assert [ended.outcome for ended in stage.ended] == [Outcome.FINISHED]


class TestSeveralExecutors:
    def test_requests_go_where_the_least_work_is(self) -> None:
        stage = Stage.build(executors=("a", "b"), size=4)
        stage.arrive(prompt=100)
        stage.arrive(prompt=10)
        stage.arrive(prompt=10)
        stage.poll(0.0)
        assert stage.ids("a") == ["r0"]
        assert stage.ids("b") == ["r1", "r2"]

    def test_one_that_is_lost_leaves_its_work_to_the_other(self) -> None:
        stage = Stage.build(executors=("a", "b"), size=4)
        arrivals(stage, 2)
        stage.poll(0.0)
        stage.lose("a")
        stage.poll(0.1)
        assert stage.ids("b") == ["r1", "r0"]


class TestDoor:
    def test_before_the_first_executor_is_ready_nobody_waits(self) -> None:
        stage = Stage.build(executors=())
        stage.batcher.executors.clear()
        with pytest.raises(NotReady):
            stage.arrive()

    def test_what_is_turned_away_is_counted_as_rejected(self) -> None:
        stage = Stage.build(tiers=(Tier("paid", 1, max_queue_requests=1),), size=1)
        stage.arrive()
        with pytest.raises(QueueFull):
            stage.arrive()
        assert stage.batcher.book.offered == 2
        assert stage.batcher.book.outcomes[Outcome.REJECTED] == 1
