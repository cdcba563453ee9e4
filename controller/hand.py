"""Limits that an operator holds by hand: for how long, and what comes after them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from controller.gates import Code
from controller.guard import NAMES, Guard, Judged
from policies.contract import GuardNote, Limits, Signals

HandState = Literal["", "pinned", "unpinned"]


@dataclass(frozen=True, slots=True)
class Pin:
    """Limits held by hand until an instant (monotonic seconds; minus infinity: given up before),
    and those that were in force before: they are in force again afterwards, for none of them was
    given up by the policy."""

    limits: Limits
    until: float
    before: Limits


class Hand:
    """The pin of one group, whichever policy it has."""

    def __init__(self) -> None:
        self.pin: Pin | None = None

    def hold(self, limits: Limits, *, until: float, in_force: Limits) -> None:
        """Hold these limits from the next tick on."""
        before = in_force if self.pin is None else self.pin.before
        self.pin = Pin(limits, until, before)

    def go_back_to(self, limits: Limits) -> None:
        """Have these in force afterwards, where something is held."""
        if self.pin is not None:
            self.pin = replace(self.pin, before=limits)

    def release(self) -> None:
        """Hold nothing from the next tick on."""
        if self.pin is not None:
            self.pin = replace(self.pin, until=-math.inf)

    def ended(self, now: float) -> Pin | None:
        """The pin that is over with this instant, told once."""
        pin = self.pin
        if pin is None or now < pin.until:
            return None
        self.pin = None
        return pin

    def judge(self, guard: Guard, proposal: Limits, signals: Signals, *, now: float) -> Judged:
        """What is held, within the hard bounds, with what the policy would rather have."""
        assert self.pin is not None
        held = guard.bounded(self.pin.limits, signals, now)
        refused = [
            GuardNote(name, Code.PINNED, f"the policy wants {wanted:g}")
            for name in NAMES
            if (wanted := getattr(proposal, name)) != getattr(held.limits, name)
        ]
        return Judged(held.limits, (*held.notes, *refused))

    def state(self, ended: Pin | None) -> HandState:
        """Whether something is held, or was until now: then it is what `ended` just told."""
        return "pinned" if self.pin is not None else "unpinned" if ended is not None else ""

    def reason(self, of_policy: str, ended: Pin | None, now: float) -> str:
        """Why the limits are what they are: the policy's reason, unless somebody's hand was it."""
        if self.pin is not None:
            return f"held by hand for another {self.pin.until - now:.0f} s"
        if ended is None:
            return of_policy
        why = "released" if math.isinf(ended.until) else "expired"
        return f"no longer held by hand ({why}); {of_policy}"
