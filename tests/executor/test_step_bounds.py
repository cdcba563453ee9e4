"""No step takes more than it may, whatever comes: so decoding goes on beside any prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.contract import Key, Sampling, SimulatedSettings, Submit
from executor.simulated_rows import Plan, Row, plan_chunked, plan_prefill_first
from executor.simulation import Simulation

# A third of the rows decode, the others have prompts of up to 60 tokens to go.
ROWS = st.lists(st.one_of(st.just(0), st.integers(1, 9), st.integers(1, 60)), max_size=20)


def rows_of(needs: list[int]) -> list[Row]:
    return [
        Row(
            key=Key(str(number), 1),
            sampling=Sampling(),
            need=need,
            position=0,
            length=9,
            ends_at=None,
        )
        for number, need in enumerate(needs)
    ]


def computed(plan: Plan) -> int:
    return sum(count for _, count in plan)


@given(ROWS, st.integers(1, 100), st.integers(0, 120))
def test_a_chunked_step_keeps_to_its_tokens_and_memory_and_wastes_neither(
    needs: list[int], budget: int, free: int
) -> None:
    rows = rows_of(needs)
    plan, stalled = plan_chunked(rows, budget, free=free)
    decodes = [row for row in rows if not row.need]
    assert all(0 < count <= (row.need or 1) for row, count in plan)
    assert len({id(row) for row, _ in plan}) == len(plan)
    assert computed(plan) == min(budget, free, len(decodes) + sum(needs))
    # Decodes first: no prompt has a token while one that decodes has none.
    assert [row for row, _ in plan if not row.need] == decodes[: min(budget, free)]
    if free >= budget:
        assert stalled == []
    else:
        moved = {row.key for row, _ in plan}
        asked = {row.key for row in rows} - {row.key for row in decodes[budget:]}
        assert set(stalled) == asked - moved


@given(ROWS, st.integers(1, 100), st.integers(0, 120))
def test_a_step_of_whole_prompts_keeps_to_its_tokens_and_memory(
    needs: list[int], budget: int, free: int
) -> None:
    rows = rows_of(needs)
    plan, _ = plan_prefill_first(rows, budget, free=free)
    assert computed(plan) <= free
    if any(row.need for row, _ in plan):
        prompts = [row for row in rows if row.need]
        assert plan == [(row, row.need) for row in prompts[: len(plan)]]
        # The one exception: what cannot be split and was let in goes, and goes alone.
        assert computed(plan) <= budget or len(plan) == 1
    else:
        decodes = [row for row in rows if not row.need]
        assert plan == [(row, 1) for row in decodes[: min(budget, free)]]


def test_a_whole_prompt_over_the_limit_of_a_step_has_it_for_itself() -> None:
    rows = rows_of([0, 50, 1, 1])
    assert plan_prefill_first(rows, 20, free=100) == ([(rows[1], 50)], [])


@pytest.mark.parametrize("budget", [64, 512])
def test_beside_a_stream_of_long_prompts_every_token_comes_after_one_full_step(
    budget: int,
) -> None:
    model = Simulation(SimulatedSettings(kv_tokens=10**6, a_s=0.01, d_s=0.0001))
    model.limit(1, budget)
    streams = [f"stream {number}" for number in range(8)]
    model.begin([ask(name, 1, 500) for name in streams])
    model.next_step()
    begun = ended = 0
    for _ in range(400):
        while begun < ended + 2:
            model.begin([ask(f"long {begun}", 4000, 1)])
            begun += 1
        duration_s, report = model.next_step()
        assert [tokens.request_id for tokens in report.tokens][:8] == streams
        # One of 4,000 tokens at once would take 0.41 s.
        assert duration_s == pytest.approx(0.01 + 0.0001 * (budget - 8))
        ended += len(report.finished)
    assert ended == (400 * (budget - 8)) // 4000


def ask(name: str, length: int, new: int) -> Submit:
    return Submit(name, 1, [0] * length, length, new, Sampling(ignore_eos=True))
