from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.lengths import ENOUGH, REMEMBERED, LengthHistory
from controller.memory import peak_tokens
from executor.contract import StepSample
from tests.controller.stage import Stage, capacity

HOLDINGS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 200)), max_size=12)


def stepped(holdings: list[tuple[int, int]]) -> int:
    """The peak, by taking every step."""
    most = sum(has for _, has in holdings)
    for _ in range(max((to_come for to_come, _ in holdings), default=0)):
        holdings = [(to_come - 1, has + 1) for to_come, has in holdings if to_come]
        most = max(most, sum(has for _, has in holdings))
        holdings = [(to_come, has) for to_come, has in holdings if to_come]
    return most


@given(HOLDINGS)
def test_the_peak_is_what_taking_every_step_would_come_to(holdings: list[tuple[int, int]]) -> None:
    assert peak_tokens(holdings) == stepped(holdings)


def test_not_everybody_holds_its_most_at_once() -> None:
    # 300 + 100 to come and 300 + 1 to come: together never 701.
    assert peak_tokens([(100, 300), (1, 300)]) == 602


def test_by_their_peak_more_fit_than_by_their_sum() -> None:
    stage = Stage.build(size=8, ready=capacity(kv_tokens=1000))
    stage.arrive(prompt=400, new=10)
    stage.arrive(prompt=300, new=300)
    stage.poll(0.0)
    # At most 400 + 300 + 20 while both run, and 600 after.
    assert stage.ids() == ["r0", "r1"]
    stage.arrive(prompt=250, new=40)
    stage.poll()
    # 400 + 300 + 250 + 3 * 10 would be 980 of 970.
    assert stage.ids() == ["r0", "r1"]
    stage.finish("r0")
    stage.poll()
    assert stage.ids() == ["r1", "r2"]


def test_sixty_four_prompts_of_30k_tokens_are_not_sixty_four_of_a_hundred() -> None:
    stage = Stage.build(
        size=64, tokens=100_000, ready=capacity(kv_tokens=100_000, max_context_tokens=32_000)
    )
    for _ in range(64):
        stage.arrive("offline", prompt=100, new=20)
    stage.poll(0.0)
    assert len(stage.ids()) == 64
    stage.report(tokens=[(name, 0, [1] * 20) for name in stage.ids()], finished=stage.ids())
    for _ in range(30):
        stage.arrive("offline", prompt=30_000, new=20)
    for count in range(1, 4):
        stage.poll()
        assert len(stage.ids()) == count
        stage.report(tokens=[(stage.ids()[-1], 0, [1])])
    stage.poll()
    assert len(stage.ids()) == 3


def test_prompts_go_to_an_executor_for_two_steps_ahead_and_not_more() -> None:
    stage = Stage.build(size=64, tokens=500)
    for _ in range(10):
        stage.arrive("offline", prompt=300, new=20)
    stage.poll(0.0)
    # 900 are less than two steps of 500, 1200 are not.
    assert len(stage.ids()) == 4
    assert not stage.batcher.has_news()
    stage.report(sample=StepSample(0.1, 2, 0, 0, 500, 0), tokens=[("r0", 0, [1])])
    assert stage.batcher.has_news()
    stage.poll()
    assert len(stage.ids()) == 5


def test_what_blocks_hold_beyond_their_tokens_counts() -> None:
    stage = Stage.build(size=8, ready=capacity(kv_tokens=1000))
    stage.arrive(prompt=500, new=50, expected=50)
    stage.poll(0.0)
    stage.report(tokens=[("r0", 0, [1])], kv_tokens=501 + 200)
    stage.arrive(prompt=300, new=20, expected=20)
    stage.poll()
    assert stage.ids() == ["r0"]
    stage.report(tokens=[("r0", 1, [1])], kv_tokens=502)
    stage.finish()
    stage.arrive("offline", prompt=1, new=1)
    stage.batcher.executors["e"].too_large = None
    stage.poll()
    assert "r1" in stage.ids()


def test_a_prompt_in_prefill_is_not_counted_twice() -> None:
    stage = Stage.build(size=4, ready=capacity(kv_tokens=1000))
    stage.arrive(prompt=600, new=200)
    stage.poll(0.0)
    stage.report(sample=StepSample(0.1, 1, 0, 0, 512, 0), kv_tokens=512)
    # 512 of the 600 are in memory already: 800 at most, and room for 70 more.
    stage.arrive(prompt=20, new=50, expected=50)
    stage.poll(0.1)
    assert stage.ids() == ["r0", "r1"]


def test_who_did_not_fit_is_looked_at_again_when_a_prompt_is_done_and_after_some_steps() -> None:
    stage = Stage.build(size=4, ready=capacity(kv_tokens=1000))
    stage.arrive(prompt=600, new=200, expected=200)
    stage.poll(0.0)
    # Blocks of which nobody knew what they are for.
    stage.report(kv_tokens=1000)
    stage.arrive(prompt=20, new=50, expected=50)
    stage.poll(0.1)
    assert stage.ids() == ["r0"]
    stage.report(tokens=[("r0", 0, [1])], kv_tokens=600)
    stage.poll(0.2)
    assert stage.ids() == ["r0", "r1"]
    stage.arrive(prompt=20, new=50, expected=50)
    stage.report(kv_tokens=1000)
    stage.poll(0.3)
    assert stage.ids() == ["r0", "r1"]
    for _ in range(32):
        stage.report(kv_tokens=600)
    stage.poll(0.4)
    assert stage.ids() == ["r0", "r1", "r2"]


def test_of_unlike_executors_each_gets_only_what_it_could_hold() -> None:
    stage = Stage.build(executors=("small", "big"), size=8)
    stage.start("small", capacity(kv_tokens=300, max_context_tokens=300))
    stage.start("big", capacity(kv_tokens=20_000, max_context_tokens=8000))
    for _ in range(6):
        stage.arrive("offline", prompt=600, new=50)
    stage.arrive("offline", prompt=100, new=50)
    stage.poll(0.0)
    assert len(stage.ids("big")) >= 6
    assert "r0" not in stage.ids("small")


class TestLengths:
    def test_few_completions_say_nothing(self) -> None:
        history = LengthHistory()
        for _ in range(ENOUGH - 1):
            history.add(50)
        assert history.expected(0, at_most=1000) is None
        history.add(50)
        assert history.expected(0, at_most=1000) == 50
        assert history.expected(0, at_most=30) == 30

    def test_one_that_came_further_is_expected_to_become_as_those_that_did(self) -> None:
        history = LengthHistory()
        for length in [10] * 15 + [100] * 10:
            history.add(length)
        assert history.expected(0, at_most=1000) == 46
        assert history.expected(10, at_most=1000) == 100
        assert history.expected(100, at_most=1000) == 116

    def test_only_the_latest_count(self) -> None:
        history = LengthHistory()
        for _ in range(100):
            history.add(1000)
        for _ in range(REMEMBERED):
            history.add(10)
        assert history.expected(0, at_most=2000) == 10

    def test_a_completion_without_a_bound_is_reserved_by_its_tier_s_history(self) -> None:
        stage = Stage.build(size=64)
        for _ in range(ENOUGH):
            request = stage.arrive("free", new=4000, expected=256)
            stage.poll()
            stage.report(tokens=[(request.id, 0, [1] * 30)], finished=[request.id], reason="stop")
        assert stage.arrive("free", new=4000, expected=256).work_tokens == 10 + 30
        # Another tier has a history of its own, and who sets a bound is taken at his word.
        assert stage.arrive("paid", new=4000, expected=256).work_tokens == 10 + 256
        assert stage.arrive("free", new=4000).work_tokens == 10 + 4000

    def test_who_comes_back_longer_than_expected_is_expected_longer(self) -> None:
        stage = Stage.build(size=64)
        request = stage.arrive("free", new=4000, expected=20)
        stage.poll()
        stage.report(tokens=[(request.id, 0, [1] * 30)], returned=[request.id])
        assert request.expected_new_tokens == 31
        assert stage.batcher.queues["free"].tokens == 41
