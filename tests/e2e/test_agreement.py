from __future__ import annotations

import pytest

from bench.agreement import compare


def test_the_simulator_says_what_a_daemon_of_the_same_coefficients_does() -> None:
    """A few seconds of one seed; `python -m bench.agreement` takes the time to be exact."""
    real, ours = compare(1, 4.0)
    assert ours.requests == real.medians.requests > 50
    assert ours.e2e_s == pytest.approx(real.medians.e2e_s, rel=0.1)
    # A few steps of 8 ms, to which the way through HTTP and tokeniser adds.
    assert ours.ttft_s == pytest.approx(real.medians.ttft_s, abs=0.01)
