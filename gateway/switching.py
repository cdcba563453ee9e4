"""Which policy an operator puts in force, in all control loops or in none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import structlog

from controller.asking import Named
from controller.errors import InvalidRequest
from controller.loop import ControlLoop
from gateway.asking import aside
from gateway.views import policy_view
from policies.contract import Signals
from policies.registry import PolicyError, build, problems
from policies.static import Static

# A policy of somebody's own is imported, which may bring in anything, and takes its time.
BUILD_TIMEOUT_S = 10.0


class Switching:
    """Switches all loops to another policy, and back."""

    def __init__(
        self, loops: Mapping[str, ControlLoop], *, build_timeout_s: float = BUILD_TIMEOUT_S
    ) -> None:
        self._loops = loops
        self._build_timeout_s = build_timeout_s
        self._log: Any = structlog.get_logger("headway.control")

    async def switch(self, kind: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Build a policy for each loop, then put all of them in force; answers what is in force
        and what was. Raises InvalidRequest, naming the key that is wrong."""
        count = len(self._loops)
        try:
            made = await aside(
                lambda: _built(kind, parameters, count), timeout_s=self._build_timeout_s
            )
        except TimeoutError:
            raise InvalidRequest(
                f"type: {kind!r} took longer than {self._build_timeout_s:g} s to be imported and "
                "built",
                param="type",
            ) from None
        before = {name: loop.policy for name, loop in self._loops.items()}
        for loop, named in zip(self._loops.values(), made, strict=True):
            # The first refuses for the same reason as all: none is switched, or every one.
            try:
                loop.switch(named)
            except PolicyError as error:
                raise InvalidRequest(f"type: {error}", param="type") from None
        return self._told(before, "by hand")

    def roll_back(self) -> dict[str, Any]:
        """Put the last good policy of each loop in force that has one, and answer as `switch`.

        Raises InvalidRequest where none has.
        """
        before = {name: loop.policy for name, loop in self._loops.items()}
        refused = ""
        for loop in self._loops.values():
            try:
                loop.succession.roll_back()
            except PolicyError as error:
                refused = str(error)
            else:
                _hold_again(loop)
        if all(loop.policy is before[name] for name, loop in self._loops.items()):
            raise InvalidRequest(f"rollback: {refused}", param="rollback")
        return self._told(before, "rolled back by hand")

    def _told(self, before: Mapping[str, Named], how: str) -> dict[str, Any]:
        for name, loop in self._loops.items():
            if loop.policy is not before[name]:
                self._log.info(
                    "policy switched",
                    group=name,
                    policy=loop.policy.name,
                    parameters=dict(loop.policy.parameters),
                    before=before[name].name,
                    how=how,
                )
        return {
            "groups": {
                name: {
                    "policy": policy_view(loop.policy),
                    "before": policy_view(before[name]),
                    "last_good": _shown(loop.succession.last_good),
                }
                for name, loop in self._loops.items()
            }
        }


def _built(kind: str, parameters: Mapping[str, Any], count: int) -> Sequence[Named]:
    """So many of it, each with a state of its own. Raises InvalidRequest."""
    wrong = problems(kind, parameters)
    if wrong:
        keys = [".".join(["parameters", *map(str, path)]) if path else "type" for path, _ in wrong]
        told = [f"{key}: {message}" for key, (_, message) in zip(keys, wrong, strict=True)]
        raise InvalidRequest("; ".join(told), param=keys[0])
    given = MappingProxyType(dict(parameters))
    try:
        return [Named(kind, build(kind, given), given) for _ in range(count)]
    except PolicyError as error:
        raise InvalidRequest(f"type: {error}", param="type") from error


def _hold_again(loop: ControlLoop) -> None:
    """Where `static` is back, put in force what it holds: the guard would let it grow only as far
    as there is load, and it holds what somebody has written."""
    static = loop.policy.policy
    if isinstance(static, Static) and loop.mode == "apply":
        before = loop.limits if loop.pin is None else loop.pin.before
        held = static.decide(Signals(interval_s=0.0, age_s=None), before).limits
        loop.begin_again(replace(held, tiers=before.tiers))


def _shown(named: Named | None) -> dict[str, Any] | None:
    return None if named is None else policy_view(named)
