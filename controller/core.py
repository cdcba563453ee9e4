"""The core, joined from its configuration: the same for the daemon and for the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.batcher import Batcher
from controller.config_control import ControlConfig, EnvelopeConfig, LimitsConfig
from controller.guard import Envelope, Guard
from controller.listener import Listener
from controller.loop import ControlLoop, Named
from controller.observer import Observer
from controller.records import Windows
from controller.signals import SignalSource
from controller.tiers import Tier
from policies.contract import Limits
from policies.registry import build as build_policy


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
) -> Core:
    """Build and join the core. `groups` maps each executor to its group.

    `started` is monotonic, `stopwatch` measures what a tick costs; both in seconds. `listeners`
    are told after the observer. Raises PolicyError for a policy that cannot be built.
    """
    tiers = tuple(tiers)
    observer = Observer(tiers, groups, started=started)
    batcher = Batcher(
        tiers,
        groups,
        starting_limits(limits),
        listeners=(observer, *listeners),
        estimate=observer.estimate,
        hold=control.hold,
    )
    loops = {
        group: _loop(control, envelope, batcher, observer, group=group, stopwatch=stopwatch)
        for group in sorted(set(groups.values()))
    }
    return Core(batcher, observer, loops)


def _loop(
    control: ControlConfig,
    envelope: EnvelopeConfig,
    batcher: Batcher,
    observer: Observer,
    *,
    group: str,
    stopwatch: Callable[[], float],
) -> ControlLoop:
    policy = control.policy
    return ControlLoop(
        batcher,
        observer,
        SignalSource(batcher, observer, group, _windows(control)),
        group=group,
        policy=Named(policy.type, build_policy(policy.type, policy.parameters)),
        fallback=Named(control.fallback, build_policy(control.fallback, {})),
        guard=Guard(control.guard, _envelope(envelope), min_samples=control.min_samples),
        history=control.history,
        stopwatch=stopwatch,
    )


def reconfigure(
    loop: ControlLoop, control: ControlConfig, envelope: EnvelopeConfig, *, fallback: Named | None
) -> None:
    """Let a loop work by what is configured now, but for its policy; `fallback` None: the one that
    it has."""
    loop.reconfigure(
        guard=control.guard,
        envelope=_envelope(envelope),
        windows=_windows(control),
        fallback=fallback,
        history=control.history,
    )


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
