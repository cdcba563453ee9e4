"""Executors that are not alike under one queue, for minutes of virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from bench.arrivals import Clients, FaultAt, Workload
from bench.journal import Journal
from bench.lengths import Lengths
from bench.placements import CONFIG, FIRST, WAITS, Rule, executors, gpu_and_cpu, outcomes
from bench.simulator import Rules, Simulator
from controller.config import Config
from controller.config_control import (
    ControlConfig,
    EnvelopeConfig,
    GroupConfig,
    LimitsConfig,
    OwnPolicyConfig,
    PolicyConfig,
)
from controller.config_load import load
from controller.core import Core, build_core
from controller.ledger import ExecutorSeats
from controller.listener import Listener
from controller.tiers import Targets, Tier
from executor.contract import Report, SimulatedSettings

PAID = Tier("paid", 1, Targets(ttft_s=60.0, itl_s=1.0))
SHORT = Lengths("short", 30, 0.5, 30, 0.5, 100, 100)
FAST = SimulatedSettings(a_s=0.010, c_s=0.001, d_s=1e-4, max_seqs=16)
SLOW = SimulatedSettings(a_s=0.040, c_s=0.004, d_s=4e-4, max_seqs=16)
MINUTE = 60.0
Made = Callable[[Config], dict[str, SimulatedSettings]]


@dataclass
class Count(Listener):
    """Tokens by executor, and the seconds in which they came, of the first minute."""

    tokens: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, set[int]] = field(default_factory=dict)

    def stepped(self, seats: ExecutorSeats, report: Report, now: float) -> None:
        # Afterwards only what is left is served.
        more = sum(len(one.ids) for one in report.tokens) if now < MINUTE else 0
        self.tokens[seats.name] += more
        if more:
            self.seconds.setdefault(seats.name, set()).add(int(now))


def play(
    count: int,
    *,
    executors: Sequence[str] = ("fast", "slow"),
    faults: Sequence[FaultAt] = (),
    policy: str = "static",
) -> tuple[Count, Journal, Core]:
    """So many clients, who do not think, on executors each in a group of its own."""
    settings = {name: FAST if name == "fast" else SLOW for name in executors}
    counted, journal = Count(), Journal()
    core = build_core(
        (PAID,),
        {name: name for name in executors},
        limits=LimitsConfig(max_batch_size=8, max_batch_tokens=2048, wait_timeout=0.0),
        envelope=EnvelopeConfig(max_batch_size=(1, 16), max_batch_tokens=(64, 2048)),
        control=ControlConfig(policy=PolicyConfig(type=policy)),
        listeners=(journal, counted),
        started=0.0,
        stopwatch=lambda: 0.0,
        own={"slow": GroupConfig(limits=LimitsConfig(max_batch_size=4, max_batch_tokens=1024))},
    )
    workload = Workload(
        "clients", MINUTE, (), (Clients("paid", count, 0.0, SHORT),), faults=tuple(faults)
    )
    rules = Rules(drain_s=600.0)
    Simulator(core, settings, {"paid": PAID}, workload, journal, rules, 1).run()
    return counted, journal, core


def test_each_serves_as_much_as_it_would_by_itself_where_there_is_work_for_all() -> None:
    both, _, core = play(32)
    fast, _, _ = play(32, executors=("fast",))
    slow, _, _ = play(32, executors=("slow",))
    assert core.batcher.executors["slow"].limits.max_batch_size == 4
    assert both.tokens["fast"] == pytest.approx(fast.tokens["fast"], rel=0.05)
    assert both.tokens["slow"] == pytest.approx(slow.tokens["slow"], rel=0.05)
    # Eight rows in 18 ms against four in 56.
    assert both.tokens["fast"] > 5 * both.tokens["slow"]


def test_while_the_fast_one_is_quicker_even_when_it_is_busier_the_slow_one_rests() -> None:
    few, journal, _ = play(4)
    assert few.tokens["slow"] == 0
    assert all(fate.outcome == "finished" for fate in journal.fates)


def test_one_that_dies_leaves_its_work_to_the_other_and_is_used_again() -> None:
    counted, journal, _ = play(32, faults=[FaultAt(20.5, "exit", 10.0, "fast")])
    assert {fate.outcome for fate in journal.fates} == {"finished"}
    while_away = set(range(22, 30))
    assert not counted.seconds["fast"] & while_away
    assert while_away <= counted.seconds["slow"]
    assert set(range(32, 60)) <= counted.seconds["fast"]


def test_one_that_fails_steps_loses_nobody() -> None:
    faults = [FaultAt(10.0 + number, "fail", 0.0, "fast") for number in range(5)]
    counted, journal, core = play(32, faults=faults)
    assert {fate.outcome for fate in journal.fates} == {"finished"}
    assert core.batcher.standings.of["fast"].failures == 0
    assert set(range(16, 60)) <= counted.seconds["fast"]


def test_policies_of_groups_come_to_limits_of_their_own() -> None:
    """At 60 ms between tokens the fast one may have all of its seats, the slow one a few."""
    journal = Journal()
    tier = Tier("paid", 1, Targets(ttft_s=60.0, itl_s=0.060))
    core = build_core(
        (tier,),
        {"fast": "fast", "slow": "slow"},
        limits=LimitsConfig(max_batch_size=8, max_batch_tokens=2048, wait_timeout=0.0),
        envelope=EnvelopeConfig(max_batch_size=(1, 16), max_batch_tokens=(64, 2048)),
        control=ControlConfig(policy=PolicyConfig(type="slo")),
        listeners=(journal,),
        started=0.0,
        stopwatch=lambda: 0.0,
        own={"slow": GroupConfig(policy=OwnPolicyConfig(type="latency_model"))},
    )
    assert [loop.policy.name for loop in core.loops.values()] == ["slo", "latency_model"]
    workload = Workload("clients", MINUTE, (), (Clients("paid", 64, 0.0, SHORT),))
    settings = {"fast": FAST, "slow": SLOW}
    Simulator(core, settings, {"paid": tier}, workload, journal, Rules(drain_s=600.0), 1).run()
    fast, slow = (core.loops[name].limits.max_batch_size for name in ("fast", "slow"))
    assert fast == 16
    # A step of five takes 60 ms.
    assert slow <= 5
    estimates = {name: core.observer.estimate(name) for name in ("fast", "slow")}
    assert all(one is not None for one in estimates.values())
    assert [round(one.a, 3) for one in estimates.values() if one] == [0.010, 0.040]


@pytest.mark.parametrize(("rule", "made"), [(FIRST, executors), (WAITS, gpu_and_cpu)])
def test_each_rule_keeps_more_targets_than_are_kept_without_it(rule: Rule, made: Made) -> None:
    """A minute and a half of `python -m bench.placements`."""
    config = load(CONFIG, env={})
    without, within = outcomes(rule, config, made(config), [0.4], seeds=[1], stretch=0.15)
    assert (without.name, within.name) == (rule.without, rule.within)
    assert within.attainment > without.attainment
    assert within.itl_p99_s < 0.1
