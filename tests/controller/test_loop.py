from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.asking import Named
from controller.gates import Code
from controller.signals import Device
from executor.contract import StepSample
from policies.contract import Cause, Limits, Passed, Proposal, Shape, Signals, TierLimits
from tests.controller.loop_rig import Rig, Scripted, broken, more, to


class TestSignals:
    def test_no_traffic_is_no_data_and_neither_zero_nor_nan(self) -> None:
        signals = Rig.build().tick()
        assert signals.age_s is None
        assert signals.model is None
        paid = signals.tiers[0]
        assert (paid.ttft, paid.itl, paid.e2e, paid.oldest_wait_s) == (None, None, None, None)
        assert [v.state for v in paid.verdicts] == ["unknown", "unknown"]
        executor = signals.executors[0]
        assert (executor.step_time, executor.size_bound, executor.utilization) == (None,) * 3

    def test_the_first_request_after_a_silence_is_served_at_once(self) -> None:
        rig = Rig.build()
        for _ in range(100):
            rig.stage.now += 0.25
            rig.tick()
        request = rig.stage.arrive()
        rig.stage.poll()
        assert request.times.dispatched == rig.stage.now

    def test_what_was_measured_before_ready_is_known_to_the_step_model_and_to_no_window(
        self,
    ) -> None:
        rig = Rig.build()
        steps = [StepSample(0.02 + 0.001 * n, n, n, 64 * n, 0, 0) for n in (1, 2, 4, 8, 16)]
        rig.observer.warmed_up("e", steps)
        signals = rig.tick()
        assert signals.model is not None
        assert signals.model.predict(8, 512) == pytest.approx(0.028, rel=0.05)
        executor = signals.executors[0]
        assert (signals.age_s, executor.steps, executor.step_time) == (None, 0, None)

    def test_the_time_of_day_comes_with_the_signals(self) -> None:
        rig = Rig.build()
        rig.loop.tick(5.0, wall=1.7e9, devices={})
        assert rig.policy.seen[-1].wall_s == 1.7e9

    def test_what_steps_held_is_averaged_over_the_window(self) -> None:
        rig = Rig.build(size=4)
        for _ in range(3):
            rig.stage.arrive(new=1000)
        rig.stage.poll()
        for _ in range(40):
            rig.step(0.05)
        executor = rig.tick().executors[0]
        assert executor.mean_batch == 3.0
        assert executor.fill == 0.75
        assert executor.size_bound == 0.0
        assert executor.mean_context == 100.0
        assert executor.step_time is not None
        assert executor.step_time.p50 == pytest.approx(0.05, rel=0.02)
        assert executor.tokens_per_s == pytest.approx(60.0, rel=0.05)
        assert executor.utilization is not None
        assert executor.utilization.source == "busy"
        assert executor.utilization.value == pytest.approx(1.0)

    def test_what_requests_came_to_is_averaged_and_goodput_counts_who_met_every_target(
        self,
    ) -> None:
        rig = Rig.build(size=4)
        for new in (2, 4):
            rig.stage.arrive("paid", new=new)
        rig.stage.poll()
        # The second one waits 0.15 s for each of its last two tokens: over its target of 0.1.
        for seconds in (0.05, 0.05, 0.15, 0.15):
            rig.step(seconds)
        rig.stage.now = 10.0
        paid = rig.tick().tiers[0]
        assert paid.passed == Passed(
            prompt_tokens=10.0,
            queue_s=0.0,
            hold_s=0.0,
            prefill_s=0.05,
            new_tokens=3.0,
            goodput=0.1,
        )

    def test_what_an_executor_is_stands_in_the_signals(self) -> None:
        shape = Rig.build(seats=7).tick().executors[0].shape
        assert shape == Shape(
            max_seqs=7,
            max_step_tokens=8192,
            kv_tokens=100_000,
            runs_to_completion=False,
            splits_prefill=True,
        )

    def test_the_device_is_believed_before_the_stand_in(self) -> None:
        rig = Rig.build()
        rig.stage.arrive()
        rig.stage.poll()
        rig.step(0.05)
        rig.loop.tick(rig.stage.now, wall=0.0, devices={"e": Device(utilization=0.4)})
        seen = rig.policy.seen[-1].executors[0].utilization
        assert seen is not None
        assert (seen.value, seen.source) == (0.4, "nvml")

    def test_steps_under_earlier_limits_say_nothing_about_those_in_force(self) -> None:
        rig = Rig.build(size=2)
        for _ in range(4):
            rig.stage.arrive(new=1000)
        rig.stage.poll()
        for _ in range(40):
            rig.step(0.05)
        assert rig.tick().executors[0].size_bound == 1.0
        rig.loop.hold(Limits(8, 8192, 0.0), until=1e9)
        rig.tick()
        assert rig.tick().executors[0].steps == 0


class TestVerdicts:
    def run(self, rig: Rig, step_s: float, *, steps: int = 60, prefill: int = 0) -> Signals:
        for _ in range(4):
            rig.stage.arrive("paid", new=1000)
        rig.stage.poll()
        for _ in range(steps):
            rig.step(step_s, prefill=prefill)
        return rig.tick()

    def test_slow_decoding_is_a_breach_caused_by_decode(self) -> None:
        verdict = self.run(Rig.build(), 0.13).tiers[0].verdicts[1]
        assert (verdict.metric, verdict.state, verdict.cause) == ("itl", "breach", Cause.DECODE)
        assert verdict.value_s == pytest.approx(0.13)
        assert verdict.misses == verdict.samples > 0

    def test_a_few_slow_samples_are_no_breach_yet(self) -> None:
        # Four sequences of eight tokens each: four samples, all of them misses.
        verdict = self.run(Rig.build(), 0.13, steps=9).tiers[0].verdicts[1]
        assert (verdict.samples, verdict.misses, verdict.state) == (4, 4, "unknown")

    def test_fast_decoding_with_few_samples_is_room_by_the_step_model(self) -> None:
        rig = Rig.build()
        verdict = self.run(rig, 0.05).tiers[0].verdicts[1]
        assert (verdict.metric, verdict.state) == ("itl", "room")
        assert verdict.samples < 160

    def test_steps_that_are_slow_by_their_prefills_only_are_caused_by_prefill(self) -> None:
        rig = Rig.build()
        for i in range(60):
            if i % 12 == 0:
                for _ in range(4):
                    rig.stage.arrive("paid", new=12)
                rig.stage.poll()
            rig.step(0.30 if i % 2 else 0.05, prefill=500 if i % 2 else 0)
        verdict = rig.tick().tiers[0].verdicts[1]
        assert (verdict.state, verdict.cause) == ("breach", Cause.PREFILL)
        assert (verdict.samples, verdict.misses) == (20, 20)

    def test_a_prefill_now_and_then_that_no_requests_mean_feels_is_no_breach(self) -> None:
        rig = Rig.build()
        for i in range(320):
            if i % 80 == 0:
                for _ in range(4):
                    rig.stage.arrive("paid", new=80)
                rig.stage.poll()
            # Every sixteenth step takes 0.9 s: a token takes 94 ms in the mean, and half of the
            # time over 0.1 s in the mean of the last eight.
            rig.step(0.9 if i % 16 == 15 else 0.04, prefill=4000 if i % 16 == 15 else 0)
        verdict = rig.tick().tiers[0].verdicts[1]
        assert (verdict.samples, verdict.misses, verdict.state) == (16, 0, "room")

    def test_waiting_while_decode_has_time_to_spare_is_caused_by_the_queue(self) -> None:
        rig = Rig.build(size=1)
        for _ in range(40):
            rig.stage.arrive("paid", new=4)
        rig.stage.poll()
        for _ in range(120):
            rig.step(0.05)
        ttft = rig.tick().tiers[0].verdicts[0]
        assert (ttft.metric, ttft.state, ttft.cause) == ("ttft", "breach", Cause.QUEUE)

    def test_waiting_while_decode_is_over_target_too_is_overload(self) -> None:
        rig = Rig.build(size=1)
        for _ in range(40):
            rig.stage.arrive("paid", new=10)
        rig.stage.poll()
        for _ in range(120):
            rig.step(0.15)
        ttft, itl = rig.tick().tiers[0].verdicts
        assert (ttft.state, ttft.cause) == ("breach", Cause.OVERLOAD)
        assert (itl.state, itl.cause) == ("breach", Cause.DECODE)

    def test_requests_that_still_wait_beyond_their_target_are_misses_already(self) -> None:
        rig = Rig.build(size=1)
        rig.stage.arrive("paid", new=10_0)
        rig.stage.poll()
        for _ in range(30):
            rig.stage.arrive("paid")
        rig.step(0.05)
        rig.stage.now += 1.5
        ttft = rig.tick().tiers[0].verdicts[0]
        assert ttft.misses == 30
        assert (ttft.state, ttft.cause) == ("breach", Cause.QUEUE)


class TestGrowth:
    def test_nothing_grows_when_the_load_has_ended(self) -> None:
        rig = Rig.build(more, size=2)
        for _ in range(8):
            rig.stage.arrive(new=60)
        rig.stage.poll()
        while rig.stage.running["e"]:
            rig.step(0.05)
            rig.tick()
        reached = rig.loop.limits.max_batch_size
        assert reached > 2
        for _ in range(400):
            rig.stage.now += 0.25
            rig.tick()
        assert rig.loop.limits.max_batch_size == reached
        assert {note.code for note in rig.loop.decisions[-1].notes} == {Code.STALE}

    def test_three_in_flight_do_not_raise_a_limit_of_sixteen(self) -> None:
        rig = Rig.build(more, size=16)
        for _ in range(3):
            rig.stage.arrive(new=1000)
        rig.stage.poll()
        for _ in range(100):
            rig.step(0.05)
            rig.tick()
        assert rig.loop.limits.max_batch_size == 16
        assert {note.code for note in rig.loop.decisions[-1].notes} == {Code.NOT_BINDING}

    def test_a_limit_that_binds_may_rise_above_its_start(self) -> None:
        rig = Rig.build(more, size=2)
        for _ in range(40):
            rig.stage.arrive(new=1000)
        rig.stage.poll()
        for _ in range(200):
            rig.step(0.05)
            rig.tick()
        # Ten seconds at one step of growth a second, the cooldown, once 20 steps are counted.
        assert 8 <= rig.loop.limits.max_batch_size <= 11
        assert rig.loop.epoch == rig.loop.limits.max_batch_size - 2


class TestFailure:
    def test_a_policy_that_raises_costs_one_tick(self) -> None:
        def moody(signals: Signals, limits: Limits) -> Proposal:
            if signals.interval_s == 1.0:
                raise ZeroDivisionError("oops")
            return Proposal(replace(limits, max_batch_size=2), "less")

        rig = Rig.build(moody)
        rig.stage.now = 1.0
        rig.tick()
        rig.stage.now = 2.0
        rig.tick()
        assert rig.loop.decisions[-1].error == "ZeroDivisionError: oops"
        assert rig.loop.limits.max_batch_size == 2
        assert not rig.loop.fallen_back

    def test_three_failures_in_a_row_bring_the_fallback(self) -> None:
        rig = Rig.build(broken)
        for _ in range(3):
            rig.tick()
        assert rig.loop.fallen_back
        assert "failed 3 times in a row" in rig.loop.decisions[-1].reason
        assert [decision.policy for decision in rig.loop.decisions] == ["scripted"] * 3
        rig.loop.tick(1.0, wall=1.0, devices={})
        assert rig.loop.decisions[-1].policy == "static"
        assert rig.loop.decisions[-1].error == ""

    def test_an_answer_that_is_no_proposal_is_a_failure(self) -> None:
        rig = Rig.build(lambda signals, limits: None)  # type: ignore[arg-type,return-value]  # the mistake is the point
        rig.tick()
        assert "should answer a Proposal" in rig.loop.decisions[-1].error

    @pytest.mark.parametrize(
        ("tiers", "told"),
        [
            (None, "TypeError: Limits.tiers should map names to TierLimits, got None"),
            ({"paid": 3}, "TypeError: Limits.tiers['paid'] should be TierLimits, got 3"),
            (
                {"paid": TierLimits(max_seats=-1)},
                "TypeError: Limits.tiers['paid'] holds -1, which is no limit",
            ),
        ],
    )
    def test_an_answer_with_impossible_tiers_costs_one_tick(self, tiers: Any, told: str) -> None:
        rig = Rig.build(lambda _, limits: Proposal(replace(limits, tiers=tiers), "?"))
        rig.tick()
        assert rig.loop.decisions[-1].error == told
        assert rig.loop.limits.tiers == {}

    def test_a_number_beyond_all_floats_is_no_limit(self) -> None:
        rig = Rig.build(lambda _, limits: Proposal(replace(limits, max_batch_size=10**400), "?"))
        rig.tick()
        assert rig.loop.limits.max_batch_size == 4
        assert rig.loop.decisions[-1].notes[0].code == Code.INVALID


class TestPin:
    def test_limits_pinned_by_hand_hold_until_they_expire(self) -> None:
        rig = Rig.build(lambda s, _: Proposal(Limits(2, 8192, 0.0), "two"))
        rig.loop.hold(Limits(9, 4096, 0.02), until=10.0)
        rig.stage.now = 9.9
        rig.tick()
        assert rig.loop.limits == Limits(9, 4096, 0.02)
        assert rig.loop.decisions[-1].notes[-1].code == Code.PINNED
        rig.stage.now = 10.0
        rig.tick()
        assert rig.loop.limits.max_batch_size == 2
        assert rig.loop.pin is None
        assert rig.last.reason == "no longer held by hand (expired); two"

    def test_after_a_pin_the_limits_are_those_from_before_also_on_an_idle_system(self) -> None:
        rig = Rig.build(size=4)
        rig.loop.hold(Limits(2, 4096, 0.02), until=5.0)
        rig.tick()
        rig.loop.hold(Limits(1, 4096, 0.02), until=10.0)
        rig.stage.now = 6.0
        rig.tick()
        assert rig.loop.limits == Limits(1, 4096, 0.02)
        rig.stage.now = 10.0
        rig.tick()
        assert rig.loop.limits == Limits(4, 8192, 0.0)
        rig.loop.hold(Limits(2, 4096, 0.02), until=99.0)
        rig.tick()
        rig.loop.release()
        rig.tick()
        assert (rig.loop.limits, rig.loop.pin) == (Limits(4, 8192, 0.0), None)
        assert rig.last.reason == "no longer held by hand (released); as it is"

    def test_a_pin_outlives_a_switch_of_the_policy_and_a_mode_that_only_observes(self) -> None:
        rig = Rig.build(size=4)
        rig.loop.hold(Limits(2, 4096, 0.02), until=10.0)
        rig.tick()
        rig.loop.switch(Named("other", Scripted(to(3))))
        rig.loop.mode = "observe"
        rig.tick()
        assert (rig.last.policy, rig.last.code) == ("other", "pinned")
        assert rig.loop.limits == Limits(2, 4096, 0.02)
        rig.stage.now = 10.0
        rig.tick()
        assert rig.last.code == "unpinned"
        assert rig.loop.limits == Limits(4, 8192, 0.0)

    def test_a_size_over_the_capacity_is_clamped_and_says_so(self) -> None:
        rig = Rig.build(seats=3, size=16)
        rig.tick()
        decision = rig.loop.decisions[-1]
        assert decision.after.max_batch_size == 3
        assert decision.sentence() == ("B 16 -> 3: as it is (B capacity: 16 is above 3)")
