"""What is about to happen, as far as the step model can tell: how long steps and requests take."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controller.ledger import ExecutorSeats
from policies.contract import StepEstimate

Estimate = Callable[[str], StepEstimate | None]


class Forecast:
    """Answers in seconds, and None where nothing is known yet."""

    def __init__(self, executors: Mapping[str, ExecutorSeats], estimate: Estimate) -> None:
        self._executors = executors
        self._estimate = estimate

    def model(self, executor: str) -> StepEstimate | None:
        """The step model of one executor."""
        return self._estimate(executor)
