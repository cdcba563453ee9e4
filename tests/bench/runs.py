"""Small runs for the tests of the simulator: a journal of what happened, in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.arrivals import Arrival, Workload
from bench.journal import Fate, Journal
from bench.simulator import Rules, Simulator
from controller.config_control import ControlConfig, EnvelopeConfig, LimitsConfig, PolicyConfig
from controller.core import build_core
from controller.hold import HoldRule
from controller.listener import Listener
from controller.tiers import Tier
from executor.contract import SimulatedSettings
from policies.contract import Limits, Proposal, Signals
from policies.static import Static
from tests.controller.stage import FREE, OFFLINE, PAID

TIERS = (PAID, FREE, OFFLINE)
# A step takes a second, a row and a token of prompt nothing: instants are easily told.
SECONDS: Mapping[str, Any] = {"a_s": 1.0, "max_seqs": 64}


class Still:
    """As `static`, but asked at every tick, since nobody knows that it does not look."""

    Parameters = Static.Parameters

    def __init__(self, parameters: Static.Parameters) -> None:
        self._static = Static(parameters)

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        return self._static.decide(signals, limits)


def run(
    workload: Workload,
    *,
    settings: SimulatedSettings | None = None,
    executors: Sequence[str] = ("e",),
    tiers: Sequence[Tier] = TIERS,
    size: int = 64,
    tokens: int = 8192,
    wait_s: float = 0.0,
    policy: str = "static",
    hold: HoldRule = "fixed",
    rules: Rules | None = None,
    seed: int = 1,
    listeners: Sequence[Listener] = (),
) -> tuple[Journal, Simulator]:
    """Play a workload on executors of one kind; answers what was written down, and the run."""
    journal = Journal()
    core = build_core(
        tiers,
        dict.fromkeys(executors, "default"),
        limits=LimitsConfig(max_batch_size=size, max_batch_tokens=tokens, wait_timeout=wait_s),
        envelope=EnvelopeConfig(
            max_batch_size=(1, 4096), max_batch_tokens=(1, 65536), wait_timeout=(0.0, 10.0)
        ),
        control=ControlConfig(policy=PolicyConfig(type=policy), hold=hold),
        listeners=(journal, *listeners),
        started=0.0,
        stopwatch=lambda: 0.0,
    )
    made = settings or SimulatedSettings(**SECONDS)
    simulator = Simulator(
        core,
        dict.fromkeys(executors, made),
        {tier.name: tier for tier in tiers},
        workload,
        journal,
        rules or Rules(),
        seed,
    )
    simulator.run()
    return journal, simulator


def given(*arrivals: Arrival, duration_s: float = 100.0, **more: Any) -> Workload:
    """A workload of exactly these."""
    return Workload("given", duration_s, arrivals, **more)


def times(fate: Fate) -> tuple[float | None, float | None, float]:
    """First token, last token, end; to a nanosecond."""

    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 9)

    return rounded(fate.first_s), rounded(fate.last_s), round(fate.ended_s, 9)
