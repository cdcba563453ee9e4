"""The model of an engine that queues and preempts by itself."""

from __future__ import annotations

from typing import Any

from bench.preempting import BLOCK, PreemptingSimulation
from executor.contract import Report, Sampling, SimulatedSettings, Submit

NOW: dict[str, Any] = {"begin_within_s": 0.0, "end_within_s": 0.0}


def begun(*asked: tuple[str, int, int], blocks: int, budget: int = 1000) -> PreemptingSimulation:
    settings = SimulatedSettings(
        a_s=1.0, kv_tokens=10**9, max_context_tokens=10**6, max_step_tokens=budget
    )
    model = PreemptingSimulation(settings, {}, blocks=blocks)
    model.begin(
        Submit(name, 1, [0] * prompt, prompt, output, Sampling()) for name, prompt, output in asked
    )
    return model


def step(model: PreemptingSimulation) -> Report:
    return model.leap(**NOW)[1]


def got(report: Report) -> str:
    return "".join(tokens.request_id for tokens in report.tokens)


def test_who_waits_comes_in_order_and_only_where_the_whole_prompt_fits() -> None:
    model = begun(("a", 2 * BLOCK, 9), ("b", 2 * BLOCK, 9), ("c", 1, 9), blocks=3)
    # There is a block for c, but b is before it.
    assert got(step(model)) == "a"


def test_a_prompt_over_the_budget_takes_several_steps_beside_the_decoding() -> None:
    model = begun(("a", 10, 9), ("b", 50, 9), blocks=100, budget=30)
    assert [got(step(model)) for _ in range(3)] == ["a", "a", "ab"]


def test_the_youngest_makes_room_and_computes_everything_anew() -> None:
    model = begun(("a", BLOCK - 1, 20), ("b", BLOCK - 2, 20), blocks=3)
    assert [got(step(model)) for _ in range(3)] == ["ab"] * 3
    # The third block is a's, and b, whose first is full, finds none.
    assert got(step(model)) == "a"
    assert model.preempted == 1
    while "b" not in got(report := step(model)):
        assert got(report) == "a"
    # It had three tokens: they are prefilled with the prompt, and the next is the fourth.
    (tokens,) = report.tokens
    assert report.sample is not None
    assert (tokens.index, report.sample.prefill_tokens) == (3, BLOCK - 2 + 3)


def test_all_end_with_all_their_tokens_and_the_memory_is_free_again() -> None:
    asked = [(name, 10 + 3 * index, 30) for index, name in enumerate("abcdefgh")]
    model = begun(*asked, blocks=9, budget=40)
    made = dict.fromkeys("abcdefgh", 0)
    while model.has_work():
        report = step(model)
        for tokens in report.tokens:
            assert tokens.index == made[tokens.request_id]
            made[tokens.request_id] += len(tokens.ids)
    assert set(made.values()) == {30}
    assert model.preempted > 0
    assert model.free_blocks == 9
