"""How a running daemon takes another configuration: what can fail comes first, the rest at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from controller.config import Config
from controller.core import Core, reconfigure, starting_limits
from controller.errors import ConfigError
from controller.loop import ControlLoop, Named
from gateway import logs
from gateway.dispatcher import Dispatcher
from gateway.front import Front, access_of, settings_of
from gateway.promises import Promises
from gateway.ticker import Ticker
from policies.contract import Limits, Signals
from policies.registry import PolicyError, build

# The policy whose limits are the configured ones.
STATIC = "static"
SetUpLogs = Callable[[str, Literal["auto", "console", "json"]], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A configuration with all that is built of it. `policies` are those that take over, by group:
    none where the ones there are go on; likewise `fallbacks`."""

    config: Config
    front: Front
    policies: Mapping[str, Named]
    fallbacks: Mapping[str, Named]


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
        fallbacks = {}
        try:
            policies = {
                group: _policy(new) for group, loop in groups.items() if _gives_way(loop, old, new)
            }
            if control.fallback != old.control.fallback:
                fallbacks = {
                    group: Named(control.fallback, build(control.fallback, {})) for group in groups
                }
        except PolicyError as error:
            raise ConfigError(f"control.policy: {error}") from error
        return Prepared(new, front, policies, fallbacks)

    def apply(self, prepared: Prepared) -> None:
        """Put it in force, between two events. What can fail has been done by `prepare`."""
        new, old = prepared.config, self.config
        tiers = new.tier_list()
        self._core.batcher.retier(tiers)
        self._core.batcher.hold_by(new.control.hold)
        self._core.observer.retier(tiers)
        self._promises.retier(tiers)
        for group, loop in self._core.loops.items():
            fallback = prepared.fallbacks.get(group)
            reconfigure(loop, new.control, new.envelope, fallback=fallback)
            if (policy := prepared.policies.get(group)) is not None:
                if new.control.policy.type == STATIC:
                    loop.begin_again(starting_limits(new.limits))
                loop.switch(policy)
        self._front.become(prepared.front)
        if new.control.interval != old.control.interval:
            self._ticker.every(new.control.interval)
        if new.log != old.log:
            self._set_up_logs(new.log.level, new.log.format)
        self.config = new
        # Who waits may have a seat now, and executors have to hear of new limits.
        self._dispatcher.pump()


def notes(old: Config, new: Config) -> list[str]:
    """What of a change is not what somebody might expect of it."""
    if old.limits == new.limits or new.control.policy.type == STATIC:
        return []
    return [
        f"limits: policy '{new.control.policy.type}' goes on from the limits in force; "
        "these are where it begins at the next start"
    ]


def _gives_way(loop: ControlLoop, old: Config, new: Config) -> bool:
    """Whether a loop gets another policy. `static` holds the configured limits, so that it is
    another one where these are; one that was put in force by hand since stays."""
    if old.control.policy != new.control.policy:
        return True
    configured = new.control.policy.type
    return configured == STATIC == loop.policy.name and old.limits != new.limits


def _policy(config: Config) -> Named:
    written, limits = config.control.policy, starting_limits(config.limits)
    named = Named(written.type, build(written.type, written.parameters))
    if written.type == STATIC:
        _fix(named, limits)
    return named


def _fix(named: Named, limits: Limits) -> None:
    """Ask `static` for the first time: it holds what it was shown then, for ever, and at its next
    question somebody's hand may hold other limits in force."""
    named.policy.decide(Signals(interval_s=0.0, age_s=None), limits)
