from __future__ import annotations

from controller.promises import unreachable
from controller.tiers import Targets, Tier
from tests.controller.stage import OFFLINE, PAID, model


def test_a_target_below_the_shortest_step_is_told_with_both_figures() -> None:
    tight = Tier("live", 3, Targets(ttft_s=0.5, itl_s=0.01))
    assert unreachable([tight, PAID, OFFLINE], model(a=0.023)) == [
        "tier 'live' is promised itl 10 ms, but a step takes 23 ms at least: no limits can keep "
        "that"
    ]


def test_while_nothing_is_known_nothing_is_said() -> None:
    assert unreachable([PAID], None) == []
