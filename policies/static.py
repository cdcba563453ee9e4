"""Limits that stay as they are configured."""

from __future__ import annotations

from dataclasses import dataclass

from policies.contract import Limits, Proposal, Signals


class Static:
    """Proposes the limits that were in force when it was first asked, for ever.

    Regime: where the best limits are known and the traffic does not change; the baseline for
    every other policy, and the fallback when one fails (it then holds the last good limits).
    Source: the fixed batch size and batch delay of Triton, TensorFlow Serving and vLLM.
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """It has none: its limits are the section `limits`."""

    def __init__(self, parameters: Parameters) -> None:
        self._held: Limits | None = None

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """The same limits as ever."""
        if self._held is None:
            self._held = limits
        return Proposal(self._held, "as configured")
