"""A control loop on the stage, with policies that do as the test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from controller.asking import Asker, InlineAsker, Named
from controller.config_control import GuardConfig
from controller.decision import Decision, Mode
from controller.guard import Envelope, Guard
from controller.loop import ControlLoop
from controller.observer import Observer
from controller.records import Windows
from controller.signals import SignalSource
from controller.succession import Succession
from controller.tier_control import TierControl
from controller.tiers import Tier
from executor.contract import Finished, Key, Report, StepSample, Tokens
from policies.contract import Limits, Proposal, Signals
from tests.controller.stage import FREE, OFFLINE, PAID, Stage, capacity

Decide = Callable[[Signals, Limits], Proposal]
NOBODY: Mapping[str, Decide] = MappingProxyType({})


@dataclass
class Scripted:
    """A policy that does as the test says, and keeps what it was shown."""

    rule: Decide
    seen: list[Signals] = field(default_factory=list)

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        self.seen.append(signals)
        return self.rule(signals, limits)


def stay(signals: Signals, limits: Limits) -> Proposal:
    return Proposal(limits, "as it is")


def more(signals: Signals, limits: Limits) -> Proposal:
    return Proposal(replace(limits, max_batch_size=limits.max_batch_size + 1), "more")


def broken(signals: Signals, limits: Limits) -> Proposal:
    raise RuntimeError("no")


def to(size: int, *, wait_s: float | None = None) -> Decide:
    """A rule that wants this size, and this hold."""

    def rule(signals: Signals, limits: Limits) -> Proposal:
        hold = limits.wait_timeout_s if wait_s is None else wait_s
        return Proposal(replace(limits, max_batch_size=size, wait_timeout_s=hold), f"to {size}")

    return rule


def guard() -> Guard:
    envelope = Envelope(Limits(1, 64, 0.0), Limits(64, 8192, 0.05))
    return Guard(GuardConfig(), envelope, min_samples=20)


def tier_control(tier: Tier, rule: Decide) -> TierControl:
    succession = Succession(
        Named("own", Scripted(rule)),
        Named("static", Scripted(stay)),
        refusal=InlineAsker().refusal,
    )
    return TierControl(tier, succession, guard())


@dataclass
class Rig:
    """A stage under a control loop; `step` runs everybody's next token on the executor."""

    stage: Stage
    loop: ControlLoop
    observer: Observer
    policy: Scripted
    made: dict[Key, int] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        rule: Decide = stay,
        *,
        size: int = 4,
        wait_s: float = 0.0,
        seats: int = 64,
        tiers: Sequence[Tier] = (PAID, FREE, OFFLINE),
        own: Mapping[str, Decide] = NOBODY,
        mode: Mode = "apply",
        shadows: Mapping[str, Decide] = NOBODY,
        asker: Asker | None = None,
    ) -> Rig:
        """`own` are the rules of tiers that have one, `shadows` those that are only asked."""
        observer = Observer(tiers, ["e"], started=0.0, watched=own)
        stage = Stage.build(
            tiers=tiers,
            size=size,
            wait_s=wait_s,
            listeners=[observer],
            ready=capacity(max_seqs=seats),
        )
        policy = Scripted(rule)
        loop = ControlLoop(
            stage.batcher,
            observer,
            SignalSource(stage.batcher, observer, "default", Windows()),
            group="default",
            policy=Named("scripted", policy),
            fallback=Named("static", Scripted(stay)),
            guard=guard(),
            history=100,
            stopwatch=lambda: 0.0,
            mode=mode,
            shadows=[Named(name, Scripted(rule)) for name, rule in shadows.items()],
            asker=asker,
        )
        loop.rule_tiers([tier_control(one, own[one.name]) for one in tiers if one.name in own])
        return cls(stage, loop, observer, policy)

    @property
    def last(self) -> Decision:
        """What was decided last."""
        return self.loop.decisions[-1]

    def shown_to(self, tier: str) -> Signals:
        """What the tier's own policy saw last."""
        (control,) = [control for control in self.loop.tiers if control.tier.name == tier]
        policy = control.succession.policy.policy
        assert isinstance(policy, Scripted)
        return policy.seen[-1]

    def run(self, seconds: float, *, step_s: float = 0.05, finish_at: int = 10**9) -> None:
        """Steps, and four ticks a second."""
        until, tick_at = self.stage.now + seconds, self.stage.now + 0.25
        while self.stage.now < until - 1e-9:
            self.step(step_s, finish_at=finish_at)
            if self.stage.now >= tick_at - 1e-9:
                self.tick()
                tick_at += 0.25

    def tick(self) -> Signals:
        self.loop.tick(self.stage.now, wall=self.stage.now, devices={})
        self.stage.poll()
        return self.policy.seen[-1]

    def step(self, seconds: float, *, prefill: int = 0, finish_at: int = 10**9) -> None:
        self.stage.now += seconds
        tokens, finished = [], []
        for submit in list(self.stage.running["e"].values()):
            key = Key(submit.request_id, submit.attempt)
            index = len(submit.tokens) - submit.prompt_length + self.made.get(key, 0)
            self.made[key] = self.made.get(key, 0) + 1
            tokens.append(Tokens(*_of(key), index, [1]))
            if index + 1 >= min(finish_at, submit.max_new_tokens):
                finished.append(Finished(*_of(key), "length"))
                del self.stage.running["e"][submit.request_id]
        n = len(tokens)
        report = Report(
            epoch=self.stage.batcher.executors["e"].epoch,
            sample=StepSample(seconds, n, n, 100 * n, prefill, prefill**2),
            kv_tokens=100 * n,
            tokens=tokens,
            finished=finished,
        )
        incarnation = self.stage.incarnation["e"]
        self.stage.batcher.on_report("e", incarnation, report, self.stage.now)
        self.stage.poll()


def _of(key: Key) -> tuple[str, int]:
    return key.request_id, key.attempt
