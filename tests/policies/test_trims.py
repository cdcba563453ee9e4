from __future__ import annotations

from typing import Literal

import pytest

from policies.contract import Cause, Metric, TierSignals, Verdict
from policies.trims import Trims

State = Literal["breach", "room", "unknown"]


def tier(state: State, cause: Cause | None = None, *, metric: Metric = "itl") -> TierSignals:
    verdict = Verdict(metric, 0.1, 0.99, 100, 5, state, 0.1, cause)
    return TierSignals("paid", 1, 0, 0, None, 4, verdicts=(verdict,))


def trims(*, rows: float = 1.0, prompts: float = 1.0) -> Trims:
    return Trims(backoff=0.9, back_per_s=0.02, least=0.25, rows=rows, prompts=prompts)


def test_slow_decoding_cuts_rows_and_slow_prefills_cut_prompts() -> None:
    cut = trims()
    assert cut.see([tier("breach", Cause.DECODE)], 0.25, full=False) == (True, False)
    assert (cut.rows, cut.prompts) == (0.9, 1.0)
    want = trims()
    assert want.see([tier("breach", Cause.MEMORY)], 0.25, full=False) == (True, False)
    assert cut.see([tier("breach", Cause.PREFILL)], 0.25, full=False) == (False, True)
    assert (cut.rows, cut.prompts) == (0.9, 0.9)


def test_slow_prefills_cut_rows_too_where_batches_are_full() -> None:
    cut = trims()
    assert cut.see([tier("breach", Cause.PREFILL)], 0.25, full=True) == (True, True)
    assert (cut.rows, cut.prompts) == (0.9, 0.9)


def test_no_cut_goes_below_the_least() -> None:
    cut = trims(rows=0.26)
    cut.see([tier("breach", Cause.DECODE)], 0.25, full=False)
    assert cut.rows == 0.25


def test_what_was_cut_comes_back_with_time_while_there_is_room_and_stays_while_nobody_knows() -> (
    None
):
    cut = trims(rows=0.5, prompts=0.5)
    cut.see([tier("unknown")], 10.0, full=False)
    assert (cut.rows, cut.prompts) == (0.5, 0.5)
    cut.see([tier("room")], 10.0, full=False)
    assert cut.rows == pytest.approx(0.7)
    assert cut.prompts == pytest.approx(0.7)
    cut.see([tier("room")], 100.0, full=False)
    assert (cut.rows, cut.prompts) == (1.0, 1.0)


def test_requests_that_begin_late_for_their_prefills_get_longer_steps_while_itl_has_room() -> None:
    cut = trims()
    late = tier("breach", Cause.PREFILL, metric="ttft")
    cut.see([tier("room"), late], 10.0, full=False)
    assert cut.prompts == pytest.approx(1.2)
    cut.see([tier("unknown"), late], 5.0, full=False)
    assert cut.prompts == pytest.approx(1.1)


@pytest.mark.parametrize("cause", [Cause.QUEUE, Cause.OVERLOAD, Cause.HOLD, Cause.MEMORY])
def test_a_queue_cuts_nothing(cause: Cause) -> None:
    cut = trims()
    assert cut.see([tier("breach", cause, metric="ttft")], 0.25, full=False) == (False, False)
    assert (cut.rows, cut.prompts) == (1.0, 1.0)


def test_what_is_trimmed_is_said_and_nothing_else() -> None:
    assert trims().words() == ""
    assert trims(rows=0.81).words() == " (B x 0.81 by counted misses)"
