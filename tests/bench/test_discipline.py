"""What the queues promise, kept in virtual time by the whole core around a simulated executor."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from bench.arrivals import Arrival, Clients, Workload
from bench.lengths import Lengths
from executor.contract import SimulatedSettings
from tests.bench.runs import given, run
from tests.controller.stage import FREE, OFFLINE, PAID

# Steps of 23 ms, 0.14 ms for a token of prompt.
EXECUTOR = SimulatedSettings(
    a_s=0.023,
    c_s=6e-5,
    d_s=1.4e-4,
    max_seqs=256,
    max_step_tokens=8192,
    max_context_tokens=40_000,
    kv_tokens=80_000,
)


@pytest.mark.parametrize("tier", ["paid", "offline"])
def test_short_prompts_do_not_wait_for_the_whole_of_a_long_one(tier: str) -> None:
    come = [Arrival(0.0, tier, 32_000, 5), *[Arrival(0.5, "paid", 100, 5) for _ in range(50)]]
    journal, _ = run(given(*come), settings=EXECUTOR, size=128, tokens=512)
    firsts = [(fate.first_s or math.inf, fate.prompt) for fate in journal.fates]
    waits = sorted(first_s - 0.5 for first_s, prompt in firsts if prompt == 100)
    (long_s,) = [first_s for first_s, prompt in firsts if prompt == 32_000]
    # The long one alone would take six seconds; half of each step is left to it.
    assert waits[0] < 0.2
    assert waits[-1] < 2.0
    assert long_s < 7.0


def test_while_paid_traffic_takes_all_it_can_the_others_have_their_share() -> None:
    tiers = (PAID, replace(FREE, min_share=0.2), replace(OFFLINE, min_share=0.1))
    lengths = Lengths("even", 100, 0.0, 50, 0.0)
    groups = tuple(Clients(tier.name, 40, 0.0, lengths) for tier in tiers)
    settings = SimulatedSettings(a_s=0.1, max_seqs=64, kv_tokens=100_000)
    workload = Workload("full", 1200.0, (), groups)
    journal, _ = run(workload, settings=settings, tiers=tiers, size=16, tokens=8192)
    served: Counter[str] = Counter()
    for fate in journal.fates:
        served[fate.tier] += fate.tokens
    share = {tier: tokens / served.total() for tier, tokens in served.items()}
    assert share["free"] == pytest.approx(0.2, abs=0.01)
    assert share["offline"] == pytest.approx(0.1, abs=0.01)
    assert journal.longest_starvation_s()["offline"] < 60.0
