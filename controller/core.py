"""The core, joined from its configuration: the same for the daemon and for the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from controller.asking import Asker, InlineAsker
from controller.batcher import Batcher
from controller.config_control import (
    ControlConfig,
    EnvelopeConfig,
    LimitsConfig,
    OwnPolicyConfig,
    PolicyConfig,
)
from controller.guard import Envelope, Guard
from controller.listener import Listener
from controller.loop import ControlLoop, Named
from controller.observer import Observer
from controller.records import Windows
from controller.signals import SignalSource
from controller.succession import Succession
from controller.tier_control import TierControl
from controller.tiers import Tier
from policies.contract import Limits
from policies.registry import build as build_policy

NO_POLICIES: Mapping[str, OwnPolicyConfig] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Core:
    """What decides: the batcher, what it remembers, and one control loop for each group."""

    batcher: Batcher
    observer: Observer
    loops: Mapping[str, ControlLoop]


def build_core(
    tiers: Iterable[Tier],
    groups: Mapping[str, str],
    *,
    limits: LimitsConfig,
    envelope: EnvelopeConfig,
    control: ControlConfig,
    listeners: Sequence[Listener],
    started: float,
    stopwatch: Callable[[], float],
    tier_policies: Mapping[str, OwnPolicyConfig] = NO_POLICIES,
    asker: Callable[[], Asker] = InlineAsker,
) -> Core:
    """Build and join the core. `groups` maps each executor to its group.

    `started` is monotonic, `stopwatch` measures what a tick costs; both in seconds. `listeners`
    are told after the observer. `tier_policies` are those of tiers that have one of their own, by
    tier; `asker` makes what asks the policies of one group. Raises PolicyError for a policy that
    cannot be built.
    """
    tiers = tuple(tiers)
    observer = Observer(tiers, groups, started=started, watched=tier_policies)
    begin = Limits(limits.max_batch_size, limits.max_batch_tokens, limits.wait_timeout)
    batcher = Batcher(
        tiers,
        groups,
        begin,
        listeners=(observer, *listeners),
        estimate=observer.estimate,
        hold=control.hold,
    )
    hard = _envelope(envelope)
    loops = {}
    for group in sorted(set(groups.values())):
        asks = asker()
        loops[group] = ControlLoop(
            batcher,
            observer,
            SignalSource(batcher, observer, group, windows_of(control)),
            group=group,
            policy=named(control.policy),
            fallback=_fallback(control),
            guard=Guard(control.guard, hard, min_samples=control.min_samples),
            history=control.history,
            stopwatch=stopwatch,
            mode=control.mode,
            tiers=[
                _tier_control(tier, tier_policies[tier.name], control=control, hard=hard, asks=asks)
                for tier in tiers
                if tier.name in tier_policies
            ],
            shadows=[named(shadow) for shadow in control.shadows],
            asker=asks,
        )
    return Core(batcher, observer, loops)


def named(written: PolicyConfig | OwnPolicyConfig) -> Named:
    """The policy that stands in a configuration. Raises PolicyError."""
    parameters = MappingProxyType(dict(written.parameters))
    return Named(written.type, build_policy(written.type, parameters), parameters)


def windows_of(control: ControlConfig) -> Windows:
    """How far back the signals look."""
    return Windows(
        fast_s=control.fast_window,
        slow_s=control.slow_window,
        at_most_s=control.max_window,
        min_samples=control.min_samples,
    )


def _fallback(control: ControlConfig) -> Named:
    return Named(control.fallback, build_policy(control.fallback, {}))


def _tier_control(
    tier: Tier, written: OwnPolicyConfig, *, control: ControlConfig, hard: Envelope, asks: Asker
) -> TierControl:
    alone = replace(hard, low=replace(hard.low, max_batch_size=1))
    return TierControl(
        tier,
        Succession(named(written), _fallback(control), refusal=asks.refusal),
        Guard(control.guard, alone, min_samples=control.min_samples),
    )


def _envelope(written: EnvelopeConfig) -> Envelope:
    size, tokens, wait = written.max_batch_size, written.max_batch_tokens, written.wait_timeout
    return Envelope(Limits(size[0], tokens[0], wait[0]), Limits(size[1], tokens[1], wait[1]))
