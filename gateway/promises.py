"""Which promises of the tiers no executor can keep as it is, and that this is told once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog

from controller.promises import unreachable
from controller.tiers import Tier
from policies.contract import StepEstimate


class Promises:
    """Targets beyond what an executor can do, as far as its step model knows; `words` has a line
    for each. `estimate` answers the step model of an executor."""

    def __init__(
        self, tiers: Iterable[Tier], estimate: Callable[[str], StepEstimate | None]
    ) -> None:
        self.words: list[str] = []
        self._tiers = tuple(tiers)
        self._estimate = estimate
        # The figures in the words move with every step: what was told is known by its number.
        self._told: dict[tuple[str, str], int] = {}
        self._log: Any = structlog.get_logger("headway.control")

    def retier(self, tiers: Iterable[Tier]) -> None:
        """Look at these promises from now on; what was told of those that are the same stays so."""
        before, self._tiers = {tier.name: tier.targets for tier in self._tiers}, tuple(tiers)
        changed = {tier.name for tier in self._tiers if before.get(tier.name) != tier.targets}
        self._told = {key: told for key, told in self._told.items() if key[1] not in changed}

    def look(self, executors: Iterable[str]) -> None:
        """Ask the step models once more; log what was not known before."""
        self.words = []
        for executor in executors:
            estimate = self._estimate(executor)
            for tier in self._tiers:
                broken = unreachable([tier], estimate)
                self._tell(executor, tier.name, broken)
                self.words += [f"executor '{executor}': {words}" for words in broken]

    def _tell(self, executor: str, tier: str, broken: Sequence[str]) -> None:
        told = self._told.get((executor, tier), 0)
        for words in broken[told:]:
            self._log.warning("a promise cannot be kept", executor=executor, why=words)
        self._told[executor, tier] = max(told, len(broken))
