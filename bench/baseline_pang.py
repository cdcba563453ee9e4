"""Pang's search at a part of the targets that tiers were promised."""

from __future__ import annotations

from dataclasses import dataclass, replace

from policies.contract import Limits, Policy, Proposal, Signals, TierSignals
from policies.parameters import parameter
from policies.registry import build

SEARCH = "sla_search"


class Pang:
    """`sla_search` as the product has it, aimed at so much of each inter-token target.

    The search brings the mean latency to what it aims at, and a target that 99 % of the requests
    are to meet has to be aimed below; how far is left to whoever sets it up. As a baseline it is
    played at several aims, of which the best in hindsight counts.
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """Those of the search itself keep their defaults."""

        aim: float = parameter(1.0, "Part of each target.", low=0.1, high=2)

    def __init__(self, parameters: Parameters) -> None:
        self._aim = parameters.aim
        self._search: Policy = build(SEARCH, {})

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """What the search makes of it."""
        tiers = tuple(map(self._aimed, signals.tiers))
        return self._search.decide(replace(signals, tiers=tiers), limits)

    def _aimed(self, tier: TierSignals) -> TierSignals:
        verdicts = tuple(
            replace(verdict, target_s=self._aim * verdict.target_s)
            if verdict.metric == "itl"
            else verdict
            for verdict in tier.verdicts
        )
        return replace(tier, verdicts=verdicts)
