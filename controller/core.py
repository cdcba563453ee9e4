"""The core, joined from its configuration: the same for the daemon and for the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from controller.asking import Asker, InlineAsker
from controller.batcher import Batcher
from controller.config_control import (
    ControlConfig,
    EnvelopeConfig,
    GroupConfig,
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
from controller.tier_control import TierControl, alone
from controller.tiers import Tier
from policies.contract import Limits
from policies.registry import build as build_policy

NO_POLICIES: Mapping[str, OwnPolicyConfig] = MappingProxyType({})
NO_GROUPS: Mapping[str, GroupConfig] = MappingProxyType({})
_LIKE_ALL = GroupConfig()


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
    own: Mapping[str, GroupConfig] = NO_GROUPS,
    asker: Callable[[], Asker] = InlineAsker,
) -> Core:
    """Build and join the core. `groups` maps each executor to its group.

    `started` is monotonic, `stopwatch` measures what a tick costs; both in seconds. `listeners`
    are told after the observer. `tier_policies` are those of tiers that have one of their own, by
    tier, and `own` is what groups have in place of what is common; `asker` makes what asks the
    policies of one group. Raises PolicyError for a policy that cannot be built.
    """
    tiers = tuple(tiers)
    observer = Observer(tiers, groups, started=started, watched=tier_policies)
    batcher = Batcher(
        tiers,
        groups,
        starting_limits(limits),
        listeners=(observer, *listeners),
        estimate=observer.estimate,
        hold=control.hold,
    )
    loops = {}
    for group in sorted(set(groups.values())):
        its = own.get(group, _LIKE_ALL)
        within = its.envelope or envelope
        batcher.set_limits(group, starting_limits(its.limits or limits), 0)
        loop = loops[group] = ControlLoop(
            batcher,
            observer,
            SignalSource(batcher, observer, group, _windows(control)),
            group=group,
            policy=named(its.policy or control.policy),
            fallback=named_fallback(control),
            guard=Guard(control.guard, _envelope(within), min_samples=control.min_samples),
            history=control.history,
            stopwatch=stopwatch,
            mode=control.mode,
            shadows=[named(shadow) for shadow in control.shadows],
            asker=asker(),
        )
        of_tiers = {
            tier: (named(written), named_fallback(control))
            for tier, written in tier_policies.items()
        }
        rule_tiers(loop, tiers, of_tiers, control=control, envelope=within)
    return Core(batcher, observer, loops)


def named(written: PolicyConfig | OwnPolicyConfig) -> Named:
    """The policy that stands in a configuration. Raises PolicyError."""
    parameters = MappingProxyType(dict(written.parameters))
    return Named(written.type, build_policy(written.type, parameters), parameters)


def reconfigure(
    loop: ControlLoop, control: ControlConfig, envelope: EnvelopeConfig, *, fallback: Named | None
) -> None:
    """Let a loop work by what is configured now, but for its policies; `fallback` None: the one
    that it has."""
    loop.reconfigure(
        guard=control.guard,
        envelope=_envelope(envelope),
        windows=_windows(control),
        fallback=fallback,
        history=control.history,
    )
    loop.mode = control.mode


def rule_tiers(
    loop: ControlLoop,
    tiers: Iterable[Tier],
    own: Mapping[str, tuple[Named, Named]],
    *,
    control: ControlConfig,
    envelope: EnvelopeConfig,
) -> None:
    """Let these tiers of a group, and no others, have policies of their own: `own` has each with
    the fallback that is its alone. A tier that has this very policy already goes on with it."""
    here = {one.tier.name: one for one in loop.tiers}
    made = []
    for tier in tiers:
        if tier.name not in own:
            continue
        policy, fallback = own[tier.name]
        one = here.get(tier.name)
        if one is None or one.configured is not policy:
            one = TierControl(
                tier,
                Succession(policy, fallback, refusal=loop.refusal),
                Guard(control.guard, alone(_envelope(envelope)), min_samples=control.min_samples),
            )
        made.append(one)
    loop.rule_tiers(made)


def named_fallback(control: ControlConfig) -> Named:
    """The policy that takes over where none before was good. Raises PolicyError."""
    return Named(control.fallback, build_policy(control.fallback, {}))


def starting_limits(written: LimitsConfig) -> Limits:
    """The limits in force at start."""
    return Limits(written.max_batch_size, written.max_batch_tokens, written.wait_timeout)


def _windows(control: ControlConfig) -> Windows:
    return Windows(
        fast_s=control.fast_window,
        slow_s=control.slow_window,
        at_most_s=control.max_window,
        min_samples=control.min_samples,
    )


def _envelope(written: EnvelopeConfig) -> Envelope:
    size, tokens, wait = written.max_batch_size, written.max_batch_tokens, written.wait_timeout
    return Envelope(Limits(size[0], tokens[0], wait[0]), Limits(size[1], tokens[1], wait[1]))
