"""How fast prompts may be prefilled so that those who decode beside them keep their pace.

A prefill in a step, or between two steps, makes everybody who decodes wait for the next token. The
target is the mean of a request, so prefills may come in bursts as long as the mean holds: a bucket
for each tier that runs is filled by its inter-token target with each step that decodes, and emptied
by the time that steps take. Ours; the idea of a bucket is Turner's (1986).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from controller.ledger import ExecutorSeats
from controller.tiers import Tier
from executor.contract import Report
from policies.contract import StepEstimate

# The mean is held this much below the target: what comes after a prompt was let in is not known.
MARGIN = 0.9
# A bucket holds so many tokens' time. More helps those who wait in a burst, and hurts the mean of
# completions that are hardly longer.
BURST_TOKENS = 24
# The closer steps alone come to the target, the less a pause helps, and the longer it would be: a
# bucket fills by at least this part of the target with each step that only decodes.
LEAST_GAIN = 0.2


class Pace:
    """The buckets of one executor, in seconds, by tier."""

    def __init__(self, tiers: Iterable[Tier]) -> None:
        self._tiers = _paced(tiers)
        # How many reports were booked: between two of them nothing changes.
        self.reports = 0
        self._credit = {name: BURST_TOKENS * itl_s for name, _, itl_s in self._tiers}

    def retier(self, tiers: Iterable[Tier]) -> None:
        """Take other targets: a bucket stays as full as it was, one that is new is full."""
        filled = {name: self._credit[name] / itl_s for name, _, itl_s in self._tiers if itl_s}
        self._tiers = _paced(tiers)
        self._credit = {
            name: filled.get(name, BURST_TOKENS) * itl_s for name, _, itl_s in self._tiers
        }
        self.reports += 1

    def stepped(self, seats: ExecutorSeats, report: Report) -> None:
        """Book a step, or `steps` equal ones."""
        sample = report.sample
        if sample is None:
            return
        self.reports += 1
        tokens = report.steps if sample.decodes else 0
        for name, _, itl_s in self._tiers:
            full = BURST_TOKENS * itl_s
            if seats.by_tier.get(name):
                gained = tokens * itl_s - sample.duration_s
                if gained > 0 and not sample.prefill_tokens:
                    gained = max(gained, tokens * LEAST_GAIN * itl_s)
                # What one long step has cost cannot be made up for by any pause.
                self._credit[name] = max(-full, min(full, self._credit[name] + gained))
            else:
                self._credit[name] = full

    def wait_s(
        self, seats: ExecutorSeats, priority: int, model: StepEstimate | None, *, late: bool
    ) -> float:
        """Until a prompt of this priority may be begun, 0: now. `model` is that of its steps.

        Those who decode in lower tiers have to bear it, those of the same tier as far as their
        bucket goes, less what prompts that were begun still take. A prompt of a lower tier, or one
        that is `late` anyway, waits until it is full, so that there is always something left for
        the next one that has a target to meet.
        """
        if model is None:
            return 0.0
        wait_s, begun_s = 0.0, model.d * seats.prompt_tokens
        for name, rank, itl_s in self._tiers:
            if rank < priority or not seats.by_tier.get(name):
                continue
            lacks_s = begun_s - self._credit[name]
            if late or rank > priority:
                lacks_s += BURST_TOKENS * itl_s
            if lacks_s > 0:
                step_s = model.predict(len(seats.seats), seats.context_tokens)
                # Where steps alone are too slow, no pause between prompts would help.
                if step_s < itl_s:
                    gain_s = max(itl_s - step_s, LEAST_GAIN * itl_s)
                    wait_s = max(wait_s, math.ceil(lacks_s / gain_s) * step_s)
        return wait_s


def _paced(tiers: Iterable[Tier]) -> list[tuple[str, int, float]]:
    return [
        (tier.name, tier.priority, MARGIN * itl_s)
        for tier in tiers
        if (itl_s := tier.targets.itl_s) is not None
    ]
