"""How a control loop is shown to an operator, and what has to be noted about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from controller.guard import NAMES
from controller.loop import ControlLoop
from gateway.views import limits_view, policy_view


def group_view(loop: ControlLoop, now: float) -> dict[str, Any]:
    """The limits of a group, who sets them, and what came of it last."""
    envelope, pin, good = loop.guard.envelope, loop.pin, loop.succession.last_good
    return {
        "policy": loop.policy.name,
        "parameters": dict(loop.policy.parameters),
        "last_good": None if good is None else policy_view(good),
        "fallen_back": loop.fallen_back,
        "mode": loop.mode,
        "epoch": loop.epoch,
        "limits": limits_view(loop.limits),
        "pinned_for_s": None if pin is None else round(max(0.0, pin.until - now), 3),
        "envelope": {
            limit: [getattr(envelope.low, limit), getattr(envelope.high, limit)] for limit in NAMES
        },
        "memory_ceiling": _ceiling_view(loop, now),
        "tiers": {
            control.tier.name: {
                **policy_view(control.succession.policy),
                "fallen_back": control.succession.fallen_back,
            }
            for control in loop.tiers
        },
        "shadows": {label: policy_view(one) for label, one in loop.shadows.by_label.items()},
        "last_decision": loop.decisions[-1].sentence() if loop.decisions else None,
    }


def _ceiling_view(loop: ControlLoop, now: float) -> dict[str, Any] | None:
    """What one executor may hold since memory ran out; null: it has not."""
    known = loop.guard.ceiling.known(now)
    if known is None:
        return None
    tokens, left_s = known
    return {"tokens": int(tokens), "probed_in_s": round(left_s, 3)}


def notes(loops: Mapping[str, ControlLoop], *, abandoned: int) -> Iterator[str]:
    """What an operator should know although the daemon is ready."""
    for name, loop in loops.items():
        if loop.mode == "observe":
            yield f"group '{name}' only observes: nothing of what its policy proposes is applied"
        if loop.fallen_back:
            yield f"policy of group '{name}' failed and was replaced by '{loop.policy.name}'"
        for control in loop.tiers:
            if control.succession.fallen_back:
                yield (
                    f"policy of tier '{control.tier.name}' in group '{name}' failed and was "
                    f"replaced by '{control.succession.policy.name}'"
                )
    if abandoned:
        counted = "1 policy does" if abandoned == 1 else f"{abandoned} policies do"
        yield f"{counted} not answer and cannot be ended before the daemon is"
