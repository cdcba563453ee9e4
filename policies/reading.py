"""What several policies read from signals in the same way, and how they put it into words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from policies.contract import Limits, Metric, Signals, TierSignals, Utilization, Verdict
from policies.parameters import parameter


def verdicts_on_itl(signals: Signals) -> Iterator[tuple[str, Verdict]]:
    """Tier and verdict of every target on inter-token latency that has samples."""
    for tier in signals.tiers:
        for verdict in tier.verdicts:
            if verdict.metric == "itl" and verdict.samples > 0:
                yield tier.name, verdict


def present(signals: Signals) -> list[TierSignals]:
    """The tiers that run or wait: the promises to others cannot be broken now."""
    return [tier for tier in signals.tiers if tier.running or tier.queued]


def tightest_itl(signals: Signals, *, at_least: int = 0) -> tuple[str, Verdict] | None:
    """Tier and verdict of the shortest target on inter-token latency among the tiers that run or
    wait, of those with `at_least` so many samples."""
    known = [
        (tier.name, verdict)
        for tier in present(signals)
        for verdict in tier.verdicts
        if verdict.metric == "itl" and verdict.samples >= at_least
    ]
    return min(known, key=lambda pair: pair[1].target_s, default=None)


def itl_targets(tiers: Iterable[TierSignals]) -> list[tuple[str, float]]:
    """Tier and target on inter-token latency (seconds), the tightest first."""
    return _targets(tiers, "itl")


def ttft_targets(tiers: Iterable[TierSignals]) -> list[tuple[str, float]]:
    """Tier and target on the time to first token (seconds), the tightest first."""
    return _targets(tiers, "ttft")


def _targets(tiers: Iterable[TierSignals], metric: Metric) -> list[tuple[str, float]]:
    found = [(t.name, v.target_s) for t in tiers for v in t.verdicts if v.metric == metric]
    return sorted(found, key=lambda pair: pair[1])


def size_bound(signals: Signals) -> float | None:
    """Fraction of steps in which `max_batch_size` was reached, of the executor most bound.

    The most bound counts because the limit is the same for all, and that one is held up by it.
    """
    known = [e.size_bound for e in signals.executors if e.ready and e.size_bound is not None]
    return max(known, default=None)


def binding_fraction(
    doc: str = "B grows when it was reached in this fraction of the steps.",
) -> Any:
    """The parameter `binding`, for `not_binding`: half of the steps, as the guard has it."""
    return parameter(0.5, doc, low=0.01, high=1, unit="fraction")


def not_binding(signals: Signals, least: float) -> str | None:
    """Why B must not grow: it was reached in less than the fraction `least` of the steps; None
    when it was."""
    bound = size_bound(signals)
    if bound is not None and bound >= least:
        return None
    seen = "unknown" if bound is None else f"{bound:.0%}"
    return f"B does not bind (reached in {seen} of the steps)"


def tokens_bound(signals: Signals) -> float | None:
    """Fraction of steps with prompts in which `max_batch_tokens` was reached; likewise."""
    known = [e.tokens_bound for e in signals.executors if e.ready and e.tokens_bound is not None]
    return max(known, default=None)


def queued_per_seat(signals: Signals, limits: Limits) -> float | None:
    """Waiting requests over seats of the executors that are ready; None when none is."""
    seats = limits.max_batch_size * sum(executor.ready for executor in signals.executors)
    return sum(tier.queued for tier in signals.tiers) / seats if seats else None


def throughput(signals: Signals) -> float | None:
    """Tokens per second of all executors together; None when none is known."""
    known = [e.tokens_per_s for e in signals.executors if e.tokens_per_s is not None]
    return sum(known) if known else None


def utilization(signals: Signals) -> Utilization | None:
    """Of the busiest device that has the best source there is (a counter before a stand-in)."""
    known = [e.utilization for e in signals.executors if e.ready and e.utilization is not None]
    counters = [given for given in known if given.source != "busy"]
    return max(counters or known, key=lambda given: given.value, default=None)


def with_limits(limits: Limits, *, size: int, tokens: int, wait_timeout_s: float) -> Limits:
    """All three limits anew; T not below B."""
    size = max(1, size)
    return replace(
        limits,
        max_batch_size=size,
        max_batch_tokens=max(tokens, size),
        wait_timeout_s=wait_timeout_s,
    )


def with_size(limits: Limits, size: int, *, wait_timeout_s: float | None = None) -> Limits:
    """Limits with another B (at least 1), with T not below it, and with another W where given."""
    wait_s = limits.wait_timeout_s if wait_timeout_s is None else wait_timeout_s
    return with_limits(limits, size=size, tokens=limits.max_batch_tokens, wait_timeout_s=wait_s)


def itl_in_words(tier: str, verdict: Verdict) -> str:
    """A verdict in words: `paid ITL 163 ms over 150 ms in 12 of 40 requests`."""
    target = f"{verdict.target_s * 1e3:.0f} ms"
    value = "" if verdict.value_s is None else f" {verdict.value_s * 1e3:.0f} ms,"
    value = value.removesuffix(",") if verdict.state == "breach" else value
    return f"{tier} ITL{value} over {target} in {verdict.misses} of {verdict.samples} requests"
