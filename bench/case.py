"""One run as data: everything that its outcome depends on, and how it is played."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import msgspec
import yaml

from bench.arrivals import Workload
from bench.journal import Journal
from bench.outcome import Outcome, reckon
from bench.simulator import ALL, Rules, Simulator
from bench.traces import Fitting, read, replay
from bench.workloads import WORKLOADS, Scene
from controller.config import Config
from controller.config_control import ControlConfig, LimitsConfig, PolicyConfig
from controller.core import build_core
from controller.hold import HoldRule
from controller.tiers import Tier
from executor.contract import SimulatedSettings
from policies.parameters import told
from policies.registry import TYPES, problems


class BadContender(ValueError):
    """A policy that cannot be played; the message says why."""


@dataclass(frozen=True, slots=True)
class Contender:
    """What is compared: a policy, its parameters, the limits that it begins with, the queues.

    `fifo`: one queue for everybody. `hold` is how company is waited for. None leaves what is
    configured.
    """

    label: str
    type: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    size: int | None = None
    tokens: int | None = None
    wait_s: float | None = None
    fifo: bool = False
    hold: HoldRule | None = None

    @classmethod
    def parse(cls, text: str) -> Contender:
        """From `TYPE` or `TYPE:KEY=VALUE,...`: parameters of the policy, or B, T, W (seconds) as
        the limits at the start, or `queue=fifo`, `hold=fixed`. Raises BadContender."""
        # `module:Class` has a colon of its own.
        head, _, rest = text.rpartition(":")
        if head in TYPES and "=" not in rest:
            raise BadContender(f"policy {text!r}: {rest!r} should be KEY=VALUE")
        if "=" not in rest:
            head, rest = text, ""
        words: dict[str, Any] = {}
        for pair in filter(None, rest.split(",")):
            key, equals, value = pair.partition("=")
            if not equals:
                raise BadContender(f"policy {text!r}: {pair!r} should be KEY=VALUE")
            words[key] = yaml.safe_load(value)
        queue = words.pop("queue", "tiers")
        if queue not in ("tiers", "fifo"):
            raise BadContender(f"policy {text!r}: queue should be tiers or fifo, not {queue!r}")
        if queue == "fifo" and head != "static":
            raise BadContender(
                f"policy {text!r}: one queue for all knows no targets, which {head} may go by: "
                "queue=fifo is for static"
            )
        hold = words.pop("hold", None)
        if hold not in (None, *get_args(HoldRule)):
            rules = " or ".join(get_args(HoldRule))
            raise BadContender(f"policy {text!r}: hold should be {rules}, not {hold!r}")
        size, tokens, wait_s = (words.pop(key, None) for key in ("B", "T", "W"))
        for key, value in (("B", size), ("T", tokens)):
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise BadContender(f"policy {text!r}: {key} should be a number from 1, not {value}")
        if wait_s is not None and not _is_wait(wait_s):
            raise BadContender(f"policy {text!r}: W should be seconds from 0, not {wait_s}")
        if size is not None and tokens is not None and tokens < size:
            raise BadContender(f"policy {text!r}: T={tokens} is below B={size}: each needs a token")
        if wrong := problems(head, words):
            refusals = "; ".join(told(problem) for problem in wrong)
            raise BadContender(f"policy {text!r}: {refusals}; limits are B, T, W, and queue, hold")
        return cls(text, head, words, size, tokens, wait_s, queue == "fifo", hold)


def _is_wait(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf


@dataclass(frozen=True, slots=True)
class Case:
    """One run. `workload` is a name or the path of a trace; None for `load` is its own."""

    config: Config
    executors: Mapping[str, SimulatedSettings]
    workload: str
    contender: Contender
    seed: int
    load: float | None = None
    stretch: float = 1.0
    fitting: Fitting = field(default_factory=Fitting)
    leap: bool = True

    def identity(self) -> str:
        """Everything that decides the outcome, but for the code and the content of a trace.

        Not what it is called: static limits are the same under any name.
        """
        contender = msgspec.to_builtins(self.contender)
        del contender["label"]
        told = {
            "config": self.config.model_dump(mode="json"),
            "executors": {name: msgspec.to_builtins(s) for name, s in self.executors.items()},
            "workload": self.workload,
            "contender": contender,
            "rest": msgspec.to_builtins((self.seed, self.load, self.stretch, self.fitting)),
        }
        return json.dumps(told, sort_keys=True)


def fitted(config: Config, executors: Mapping[str, SimulatedSettings]) -> Config:
    """The configuration with an envelope that reaches as far as the executors do, where it still
    is the default, which is made for a small machine."""
    if config.envelope != Config().envelope:
        return config
    seqs = min(settings.max_seqs for settings in executors.values())
    tokens = min(settings.max_step_tokens for settings in executors.values())
    low = config.envelope
    wider = low.model_copy(
        update={
            "max_batch_size": (1, seqs),
            "max_batch_tokens": (min(64, tokens), tokens),
        }
    )
    return config.model_copy(update={"envelope": wider})


def play(case: Case) -> Outcome:
    """Run a case from beginning to end. Raises BadTrace, PolicyError."""
    simulator = simulator_of(case)
    simulator.run()
    return reckon(simulator.journal, simulator.workload, simulator.tiers, ended_s=simulator.now)


def simulator_of(case: Case, *, stopwatch: Callable[[], float] = lambda: 0.0) -> Simulator:
    """A case that is ready to run; `stopwatch` (s) measures what its ticks cost.

    Raises BadTrace, PolicyError.
    """
    config, contender = case.config, case.contender
    tiers = {tier.name: tier for tier in config.tier_list()}
    groups = dict.fromkeys(case.executors, "default")
    groups |= {e.name: e.group for e in config.executors if e.name in groups}
    workload = _workload(case)
    journal = Journal()
    core = build_core(
        [_one_for_all(tiers.values())] if contender.fifo else tiers.values(),
        groups,
        limits=_limits(config.limits, contender),
        envelope=config.envelope,
        control=_control(config.control, contender),
        listeners=(journal,),
        started=0.0,
        stopwatch=stopwatch,
        tier_policies={} if contender.fifo else config.tier_policies(),
    )
    rules = Rules(
        config.control.interval,
        fifo=contender.fifo,
        expected_new_tokens=config.server.expected_new_tokens,
        leap=case.leap,
    )
    return Simulator(core, case.executors, tiers, workload, journal, rules, case.seed)


def _workload(case: Case) -> Workload:
    named = WORKLOADS.get(case.workload)
    settings = next(iter(case.executors.values()))
    load = case.load if case.load is not None else named.load if named else 1.0
    scene = Scene(settings, load, case.seed, len(case.executors), case.stretch)
    if named is not None:
        return named.make(scene)
    lines = read(Path(case.workload))
    return replay(Path(case.workload).name, lines, scene, case.fitting)


def _limits(written: LimitsConfig, contender: Contender) -> LimitsConfig:
    given = {
        "max_batch_size": contender.size,
        "max_batch_tokens": contender.tokens,
        "wait_timeout": contender.wait_s,
    }
    return written.model_copy(update={key: v for key, v in given.items() if v is not None})


def _control(written: ControlConfig, contender: Contender) -> ControlConfig:
    policy = PolicyConfig(type=contender.type, parameters=dict(contender.parameters))
    hold = written.hold if contender.hold is None else contender.hold
    # Whoever is compared has the say, and nobody beside it.
    alone = {"policy": policy, "hold": hold, "mode": "apply", "shadows": ()}
    return written.model_copy(update=alone)


def _one_for_all(tiers: Iterable[Tier]) -> Tier:
    """The one tier of a queue that knows none, nor any target: first come, first served, with the
    bounds of all together."""
    tiers = list(tiers)
    return Tier(
        ALL,
        0,
        order="fcfs",
        max_queue_requests=sum(tier.max_queue_requests for tier in tiers),
        max_queue_tokens=sum(tier.max_queue_tokens for tier in tiers),
        max_queue_bytes=sum(tier.max_queue_bytes for tier in tiers),
    )
