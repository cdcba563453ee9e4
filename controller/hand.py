"""Limits that an operator holds by hand: for how long, and what comes after them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from policies.contract import Limits

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
