"""Batch size by a noisy binary search on measured inter-token latency, under a memory bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

from policies.contract import Limits, Proposal, Signals, Verdict
from policies.costs import load, seats
from policies.parameters import parameter
from policies.reading import binding_fraction, not_binding, tightest_itl, with_size


class SlaSearch:
    """B = min(what memory holds, the middle of a bracket that closes on the ITL target).

    Memory: 0.95 of the blocks over those that a running sequence holds. Search: mean ITL above its
    target by more than the tolerance: the bracket's top comes down to the batch that was seen, its
    bottom by `step`; below: the bottom comes up, the top by `step`; it never closes to less than
    `width`, so that it follows when traffic changes. Within the tolerance B stays.

    Regime: steady traffic of one kind on a continuous executor, and a target on inter-token latency
    (the shortest of the tiers that run or wait; without one, memory alone bounds B). It waits for
    samples under each new B, so it follows a change within tens of moves, and takes every latency
    above target for B's fault, others' prefills too. Batches that run to completion are searched
    by the pace of their tokens likewise; how long anybody waits for a batch is not looked at.
    Source: Pang et al., "Optimizing LLM inference throughput via memory-aware and SLA-constrained
    dynamic batching", 2025 (arXiv 2503.05248). Ours: B stays within the tolerance, where the paper
    centres on the batch that was seen, and nothing grows while B does not bind.
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """Sizes are sequences."""

        tolerance: float = parameter(
            0.05,
            "Within this of the target B stays.",
            low=0,
            high=0.5,
            unit="fraction of the target",
        )
        width: int = parameter(
            16, "The bracket is never narrower.", low=2, high=1024, unit="sequences"
        )
        step: int = parameter(
            4, "The bracket's far end moves by this.", low=1, high=1024, unit="sequences"
        )
        memory_share: float = parameter(
            0.95, "So much of the KV memory may be held.", low=0.1, high=1, unit="fraction"
        )
        memory_band: float = parameter(
            0.05,
            "The memory bound follows when it has moved by more than this.",
            low=0,
            high=0.5,
            unit="fraction of the bound",
        )
        samples: int = parameter(
            10, "Latencies under the B in force before the next move.", low=1, high=1000
        )
        binding: float = binding_fraction()

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._low = math.nan
        self._high = math.nan
        self._memory = math.inf

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """One step of the search, if there are samples for it, under the memory bound."""
        before = limits.max_batch_size
        size, why = self._searched(signals, before)
        memory = self._memory_bound(signals)
        if memory < size:
            size, why = max(1, math.floor(memory)), f"memory holds {memory:.0f} sequences"
        if size > before and (idle := not_binding(signals, self._parameters.binding)):
            return Proposal(limits, f"{why}, but {idle}")
        return Proposal(with_size(limits, size), why)

    def _searched(self, signals: Signals, before: int) -> tuple[int, str]:
        wanted = self._parameters
        if tightest_itl(signals) is None:
            # None of those who are here was promised anything: memory decides.
            most = seats(signals)
            return before if most is None else most, "no target on ITL"
        found, steps = tightest_itl(signals, at_least=wanted.samples), load(signals)
        if found is None or found[1].value_s is None or steps is None:
            return before, "waits for latencies under this B"
        tier, verdict = found
        told = f"{tier} ITL {found[1].value_s * 1e3:.0f} ms for {verdict.target_s * 1e3:.0f} ms"
        side = self._side(verdict)
        if side == 0:
            self._centre(before)
            return before, f"{told}: within tolerance"
        if side < 0 and (idle := not_binding(signals, wanted.binding)):
            return before, f"{told}, but {idle}"
        self._narrow(side, steps.sequences, before, seats(signals))
        told = f"{told}, searching {self._low:.0f}..{self._high:.0f}"
        middle = max(1, math.floor((self._low + self._high) / 2))
        # A batch far from B says where the bracket goes, never that B moves against the latency.
        return (min(middle, before) if side > 0 else max(middle, before)), told

    def _side(self, verdict: Verdict) -> int:
        """-1 below the target, 1 above it, 0 within the tolerance."""
        value_s, tolerance_s = verdict.value_s or 0.0, self._parameters.tolerance * verdict.target_s
        off_s = value_s - verdict.target_s
        return 0 if abs(off_s) <= tolerance_s else (1 if off_s > 0 else -1)

    def _narrow(self, side: int, batch: float, before: int, most: int | None) -> None:
        width, step = self._parameters.width, self._parameters.step
        if math.isnan(self._low):
            self._centre(before)
        if side > 0:
            self._high = max(batch, self._low + width)
            self._low = max(1.0, self._low - step)
        else:
            self._low = max(1.0, min(batch, self._high - width))
            self._high = min(self._high + step, math.inf if most is None else most)

    def _centre(self, size: int) -> None:
        half = self._parameters.width / 2
        self._low, self._high = max(1.0, size - half), size + half

    def _memory_bound(self, signals: Signals) -> float:
        """Sequences that the memory holds, if each holds what one holds now."""
        known = [
            self._parameters.memory_share * e.running / e.kv
            for e in signals.executors
            if e.ready and e.kv and e.running
        ]
        bound = min(known, default=self._memory)
        if math.isinf(self._memory) or abs(bound / self._memory - 1) > self._parameters.memory_band:
            self._memory = bound
        return self._memory
