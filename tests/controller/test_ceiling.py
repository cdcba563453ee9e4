"""What failed is tried again in halves, remembered, and approached again by small steps."""

from __future__ import annotations

import math
from typing import Any

import pytest

from controller.ceiling import Ceiling, Memory
from controller.config_control import GuardConfig
from controller.errors import ContextLengthExceeded
from controller.request import Outcome
from executor.contract import StepSample
from tests.controller.stage import Stage, capacity

NOW = 1000.0
KV = 100_000


def memory(**config: Any) -> Memory:
    return Memory(ceiling=Ceiling(GuardConfig(**config)))


def fail(known: Memory, held: int, step: int, *, rows: int = 8, now: float = NOW) -> Memory:
    known.ran_out(held, step, now, rows=rows, least_step=8)
    known.look(KV, 8192, now)
    return known


class TestCeiling:
    def test_four_fifths_of_what_failed_are_kept_and_half_of_it_is_tried_at_first(self) -> None:
        known = fail(memory(), 1000, 400)
        assert (known.held, known.ceiling.known(NOW)) == (800.0, (800.0, 600.0))
        assert (known.retry.held, known.step) == (500, 200)
        known.fitted(490, 150)
        known.look(KV, 8192, NOW)
        # Twice of what has fitted, and no more than is kept; steps stay small as long as it is not
        # known that they were to blame.
        assert (known.retry.held, known.held, known.step) == (980, 800.0, 200)
        known.look(KV, 8192, NOW + 600.0)
        known.fitted(490, 150)
        known.look(KV, 8192, NOW + 600.0)
        assert known.step == 300

    def test_failing_again_with_less_lowers_it_and_with_more_does_not_raise_it(self) -> None:
        known = fail(fail(memory(), 1000, 400), 500, 200, now=NOW + 1.0)
        assert (known.held, known.retry.held) == (400.0, 250)
        assert fail(known, 2000, 100, now=NOW + 2.0).held == 400.0
        assert known.ceiling.known(NOW + 2.0) == (400.0, 600.0)

    def test_after_ten_minutes_it_rises_by_a_twentieth_a_minute_and_ends_beyond_all_memory(
        self,
    ) -> None:
        known = fail(memory(), 1000, 1000)
        tokens = [known.ceiling.tokens(NOW + s) for s in (599.9, 600.0, 659.9, 660.0)]
        assert tokens == pytest.approx([800.0, 840.0, 840.0, 882.0])
        for config, at in (({}, 1e9), ({"oom_probe_step": 1.0}, 1e9)):
            known = fail(memory(**config), 1000, 1000)
            known.look(KV, 8192, NOW + at)
            assert (known.held, known.ceiling.known(NOW + at)) == (math.inf, None)

    def test_what_failed_is_forgotten_when_as_much_has_fitted(self) -> None:
        known = fail(memory(), 1000, 400)
        known.fitted(999, 100)
        assert known.ceiling.tokens(NOW) == 800.0
        known.fitted(1000, 100)
        assert known.ceiling.tokens(NOW) == math.inf
        assert known.ceiling.step_tokens(NOW) == 320.0
        known.fitted(100, 400)
        assert known.ceiling.step_tokens(NOW) == math.inf

    def test_what_has_fitted_is_given_up_by_half_at_once_and_altogether_if_it_fails_again(
        self,
    ) -> None:
        known = memory()
        known.fitted(1000, 64)
        fail(known, 100, 16)
        assert (known.held, known.retry.held) == (500.0, 50)
        fail(known, 50, 16, now=NOW + 1.0)
        assert (known.held, known.retry.held) == (40.0, 25)

    def test_a_step_that_was_larger_than_any_before_is_to_blame_and_not_what_was_held(self) -> None:
        known = memory()
        known.fitted(5000, 512)
        fail(known, 3000, 2048)
        assert known.ceiling.tokens(NOW) == math.inf
        assert known.ceiling.step_tokens(NOW) == pytest.approx(1638.4)

    def test_a_step_like_those_before_is_not_to_blame(self) -> None:
        known = memory()
        known.fitted(2900, 2048)
        fail(known, 3000, 2048)
        assert known.ceiling.tokens(NOW) == 2400.0
        assert known.ceiling.step_tokens(NOW) == math.inf

    @pytest.mark.parametrize("largest", [100, 700, 1024, 2047])
    def test_a_prompt_that_fails_for_its_steps_alone_gets_there_in_smaller_ones(
        self, largest: int
    ) -> None:
        """A prompt of 30,000 tokens in steps of 2048, of which only `largest` fit."""
        known, done, failures = memory(), 0, 0
        while done < 30_000:
            step = min(2048, 30_000 - done, max(8, math.floor(min(known.step, 2048))))
            if step > largest:
                fail(known, done + step, step, rows=1)
                assert not known.alone
                done, failures = 0, failures + 1
            else:
                done += step
                known.fitted(done, step)
                known.look(KV, 2048, NOW)
        assert failures <= 12

    def test_a_request_that_fails_for_what_it_holds_is_told_by_its_second_failure(self) -> None:
        known = memory()
        for _ in range(2):
            for held in (2048, 4096, 6144):
                known.fitted(held, 2048)
            assert fail(known, 7000, 2048, rows=1).alone

    def test_a_request_that_fails_in_its_first_step_is_tried_in_smaller_ones_before_that(
        self,
    ) -> None:
        known = memory()
        assert not fail(known, 1500, 1500, rows=1).alone
        for _ in range(2):
            assert known.step == 750
            known.fitted(750, 750)
            known.look(KV, 2048, NOW)
            assert fail(known, 1500, 750, rows=1).alone

    def test_with_a_fraction_of_nothing_only_one_at_a_time_is_left(self) -> None:
        assert fail(memory(oom_keep=0.0), 1000, 100).held == 0.0


def fill(stage: Stage, count: int, *, new: int = 40) -> None:
    for _ in range(count):
        stage.arrive(prompt=10, new=new)
    stage.poll()


class TestRetry:
    def test_half_of_those_who_failed_go_and_the_others_only_as_the_memory_is_known_to_bear(
        self,
    ) -> None:
        stage = Stage.build(size=8)
        fill(stage, 8, new=15)
        everybody = stage.ids()
        for name in everybody:
            stage.report(tokens=[(name, 0, [1] * 10)])
        stage.report(returned=everybody, why="out_of_memory")
        stage.poll()
        # Each has 20 tokens, and 25 in the end: 160 failed, 80 are tried, 128 are kept.
        assert stage.ids() == everybody[:4]
        stage.report(
            tokens=[(name, 10, [1]) for name in everybody[:4]],
            sample=StepSample(0.02, 4, 0, 0, 80, 1600),
        )
        stage.poll()
        assert stage.ids() == everybody[:5]
        stage.report(tokens=[(everybody[4], 10, [1])])
        stage.poll()
        assert stage.ids() == everybody[:5]
        stage.report(finished=everybody[:1])
        stage.poll()
        assert stage.ids() == everybody[1:6]

    def test_who_was_on_the_way_to_an_executor_that_failed_hides_nothing(self) -> None:
        stage = Stage.build(size=8)
        fill(stage, 4)
        stage.report(tokens=[(name, 0, [1]) for name in stage.ids()])
        old = stage.ids()
        stage.arrive(prompt=10, new=40)
        stage.poll()
        stage.report(returned=old, why="out_of_memory")
        memory = stage.batcher.executors["e"].memory
        assert memory.whole
        assert memory.ceiling.known(0.0) is not None

    def test_a_smaller_step_is_told_to_the_executor(self) -> None:
        stage = Stage.build(size=8, tokens=2048)
        stage.arrive(prompt=3000, new=10)
        assert stage.poll().work["e"].max_batch_tokens == 2048
        stage.report(returned=stage.ids(), why="out_of_memory")
        assert stage.poll().work["e"].max_batch_tokens == 1024
        stage.report(sample=StepSample(0.02, 1, 0, 0, 1024, 1024**2))
        stage.report(sample=StepSample(0.02, 1, 0, 1024, 1024, 1024**2))
        # As much is held as when it failed, so the step was to blame.
        assert stage.poll().work["e"].max_batch_tokens == 1638

    def test_alone_twice_is_the_end_and_says_how_many_tokens_failed(self) -> None:
        stage = Stage.build(size=8, ready=capacity(splits_prefill=False))
        request = stage.arrive(prompt=3000, new=10)
        for _ in range(2):
            stage.poll()
            assert request.outcome is None
            stage.report(returned=[request.id], why="out_of_memory")
        stage.poll()
        assert stage.outcome(request) == (Outcome.FAILED, "does_not_fit")
        assert stage.ended[-1].detail == (
            "memory ran out 2 times for this request alone, which has 3000 tokens "
            "(prompt 3000, generated 0): that many do not fit here"
        )

    def test_a_prompt_as_long_as_one_that_could_never_be_held_is_refused_for_ten_minutes(
        self,
    ) -> None:
        stage = Stage.build(size=8, ready=capacity(splits_prefill=False))
        stage.arrive(prompt=3000, new=10)
        for _ in range(2):
            stage.poll()
            stage.report(returned=stage.ids(), why="out_of_memory")
        message = "the prompt has 3000 tokens, and memory ran out for a single request with 3000"
        with pytest.raises(ContextLengthExceeded, match=message):
            stage.arrive(prompt=3000, new=10)
        shorter = stage.arrive(prompt=2999, new=10)
        stage.poll()
        assert shorter.id in stage.ids()
        stage.now = 600.0
        assert stage.arrive(prompt=3000, new=10).outcome is None

    def test_alone_once_and_once_more_after_a_token_is_no_reason_to_end(self) -> None:
        stage = Stage.build(size=8)
        request = stage.arrive(prompt=10, new=100)
        for index in range(6):
            stage.poll()
            stage.report(tokens=[(request.id, index, [1])])
            stage.report(returned=[request.id], why="out_of_memory")
        stage.poll()
        assert (request.outcome, request.attempt, request.faults) == (None, 7, 0)

    def test_who_came_back_eight_times_in_a_row_without_a_token_goes_alone(self) -> None:
        stage = Stage.build(size=2)
        other, unlucky = stage.arrive(new=1000), stage.arrive(new=1000)
        for held in range(100, 900, 100):
            stage.poll()
            assert unlucky.id in stage.ids()
            step = StepSample(0.02, 1, 1, held - 1, 0, 0)
            stage.report(returned=[unlucky.id], why="out_of_memory", sample=step)
            stage.report(sample=step)
        stage.poll()
        assert stage.ids() == [other.id]
        stage.finish(other.id)
        stage.poll()
        assert stage.ids() == [unlucky.id]

    def test_another_process_of_the_executor_has_tried_nothing_but_knows_the_ceiling(self) -> None:
        stage = Stage.build(size=8)
        fill(stage, 8)
        stage.report(returned=stage.ids(), why="out_of_memory")
        seats = stage.batcher.executors["e"]
        assert (seats.memory.retry.held, seats.kv_limit) == (40, 64.0)
        stage.lose()
        stage.start()
        assert (seats.memory.retry.held, seats.kv_limit) == (math.inf, 64.0)
