"""How a running daemon takes another configuration: what can fail comes first, the rest at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from controller.config import Config
from controller.core import (
    Core,
    named,
    named_fallback,
    reconfigure,
    rule_tiers,
    starting_limits,
)
from controller.errors import ConfigError
from controller.loop import ControlLoop, Named
from controller.shadows import Shadows
from gateway import logs
from gateway.dispatcher import Dispatcher
from gateway.front import Front, access_of, settings_of
from gateway.promises import Promises
from gateway.ticker import Ticker
from policies.contract import Limits, Signals
from policies.registry import PolicyError

# The policy whose limits are the configured ones.
STATIC = "static"
SetUpLogs = Callable[[str, Literal["auto", "console", "json"]], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A configuration with all that is built of it. `policies` are those that take over, by group:
    none where the ones there are go on; likewise `fallbacks` and `shadows`. `tiers` has by group
    the policies of all tiers that have one of their own, those that go on among them. `waiting` has
    the `static` of changed limits for groups where a policy put in force by hand has its place."""

    config: Config
    front: Front
    policies: Mapping[str, Named]
    fallbacks: Mapping[str, Named]
    shadows: Mapping[str, list[Named]]
    tiers: Mapping[str, Mapping[str, tuple[Named, Named]]]
    waiting: Mapping[str, Named]


class InForce:
    """The configuration that a daemon runs by. `environ` has the secrets of keys and tokens."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        core: Core,
        front: Front,
        dispatcher: Dispatcher,
        ticker: Ticker,
        promises: Promises,
        set_up_logs: SetUpLogs = logs.set_up,
    ) -> None:
        self.config = config
        self._environ = environ
        self._core = core
        self._front = front
        self._dispatcher = dispatcher
        self._ticker = ticker
        self._promises = promises
        self._set_up_logs = set_up_logs

    def prepare(self, new: Config) -> Prepared:
        """Build what another configuration takes. Raises ConfigError where that cannot be."""
        settings = settings_of(new, created=self._front.settings.created)
        front = Front.build(settings, access_of(new), environ=self._environ)
        old, control = self.config, new.control
        groups = self._core.loops
        fallbacks: dict[str, Named] = {}
        shadows: dict[str, list[Named]] = {}
        policies = {
            group: _new(_key(group, new), partial(_policy, new, group), loop)
            for group, loop in groups.items()
            if _gives_way(loop, old, new)
        }
        if control.fallback != old.control.fallback:
            fallbacks = {
                group: _new("control.fallback", partial(named_fallback, control), loop)
                for group, loop in groups.items()
            }
        if control.shadows != old.control.shadows:
            shadows = {
                group: [
                    _new(f"control.shadows.{index}", partial(named, one), loop)
                    for index, one in enumerate(control.shadows)
                ]
                for group, loop in groups.items()
            }
        tiers = {group: _of_tiers(loop, old, new) for group, loop in groups.items()}
        waiting = {
            group: _policy(new, group)
            for group in groups
            if group not in policies
            and old.limits_of(group) != new.limits_of(group)
            and new.policy_of(group).type == STATIC
        }
        return Prepared(new, front, policies, fallbacks, shadows, tiers, waiting)

    def apply(self, prepared: Prepared) -> None:
        """Put it in force, between two events. What can fail has been done by `prepare`."""
        new, old = prepared.config, self.config
        tiers = new.tier_list()
        self._core.batcher.retier(tiers)
        self._core.batcher.hold_by(new.control.hold)
        self._core.observer.retier(tiers)
        self._core.observer.watch(new.tier_policies())
        self._promises.retier(tiers)
        for group, loop in self._core.loops.items():
            fallback, envelope = prepared.fallbacks.get(group), new.envelope_of(group)
            reconfigure(loop, new.control, envelope, fallback=fallback)
            own = prepared.tiers[group]
            rule_tiers(loop, tiers, own, control=new.control, envelope=envelope)
            if (shadows := prepared.shadows.get(group)) is not None:
                loop.shadows = Shadows(shadows)
            if (policy := prepared.policies.get(group)) is not None:
                if new.policy_of(group).type == STATIC:
                    loop.begin_again(starting_limits(new.limits_of(group)))
                loop.switch(policy)
            elif (static := prepared.waiting.get(group)) is not None:
                loop.succession.instead(STATIC, static)
        self._front.become(prepared.front)
        if new.control.interval != old.control.interval:
            self._ticker.every(new.control.interval)
        if new.log != old.log:
            self._set_up_logs(new.log.level, new.log.format)
        self.config = new
        # Who waits may have a seat now, and executors have to hear of new limits.
        self._dispatcher.pump()

    def policies(self) -> dict[str, str]:
        """The name of the policy in force by group."""
        return {group: loop.policy.name for group, loop in self._core.loops.items()}


def notes(old: Config, new: Config, policies: Mapping[str, str]) -> list[str]:
    """What of a change is not what somebody might expect of it; `policies` are those in force by
    group."""
    told = []
    for group, policy in policies.items():
        if old.limits_of(group) == new.limits_of(group):
            continue
        configured = new.policy_of(group).type
        key = "limits" if new.limits_of(group) is new.limits else f"groups.{group}.limits"
        if configured != STATIC:
            told.append(
                f"{key}: policy {configured!r} goes on from the limits in force; "
                "these are where it begins at the next start"
            )
        elif policy != STATIC:
            told.append(
                f"{key}: policy {policy!r}, put in force by hand in group {group!r}, goes on from "
                "the limits in force; these come with a rollback to 'static' or at the next start"
            )
    # Of groups that have it all in common once is enough.
    return list(dict.fromkeys(told))


def _gives_way(loop: ControlLoop, old: Config, new: Config) -> bool:
    """Whether a loop gets another policy. `static` holds the configured limits, so that it is
    another one where these are; one that was put in force by hand since stays."""
    group = loop.group
    if old.policy_of(group) != new.policy_of(group):
        return True
    moved = old.limits_of(group) != new.limits_of(group)
    return moved and new.policy_of(group).type == STATIC == loop.policy.name


def _key(group: str, config: Config) -> str:
    """Where the policy of a group is written."""
    common = config.policy_of(group) is config.control.policy
    return "control.policy" if common else f"groups.{group}.policy"


def _new(key: str, make: Callable[[], Named], loop: ControlLoop) -> Named:
    """A policy that a loop is to ask from now on. Raises ConfigError that names the key."""
    try:
        made = make()
    except PolicyError as error:
        raise ConfigError(f"{key}: {error}") from error
    if (why := loop.refusal(made)) is not None:
        raise ConfigError(f"{key}: {why}")
    return made


def _policy(config: Config, group: str) -> Named:
    written, limits = config.policy_of(group), starting_limits(config.limits_of(group))
    made = named(written)
    if written.type == STATIC:
        _fix(made, limits)
    return made


def _of_tiers(loop: ControlLoop, old: Config, new: Config) -> dict[str, tuple[Named, Named]]:
    """The policies of tiers in a group, each with a fallback of its own: where the configured one
    is the same, the one there is."""
    here = {control.tier.name: control.configured for control in loop.tiers}
    before, made = old.tier_policies(), {}
    for tier, written in new.tier_policies().items():
        fallback = _new("control.fallback", partial(named_fallback, new.control), loop)
        if tier in here and before.get(tier) == written:
            made[tier] = here[tier], fallback
        else:
            made[tier] = _new(f"tiers.{tier}.policy", partial(named, written), loop), fallback
    return made


def _fix(named: Named, limits: Limits) -> None:
    """Ask `static` for the first time: it holds what it was shown then, for ever, and at its next
    question somebody's hand may hold other limits in force."""
    named.policy.decide(Signals(interval_s=0.0, age_s=None), limits)
